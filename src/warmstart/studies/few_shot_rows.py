"""The rows of the few-shot picture studies: learners as they are run there, by way and shot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from warmstart.baselines import protonet
from warmstart.core import Learner
from warmstart.learners import abml, gem, gem_head, imaml, maml, meta_sgd, reptile, scratch
from warmstart.tasks.warps import Warp

BASELINES = ("nearest_centroid", "linear_head", "protonet")
WARPED = ", warped"  # behind the name of a learner that is trained on warped pictures
HESSIAN_FREE = imaml.Config(  # the inner problem by Newton's method; "plain gradient" solves it by gradient descent
    inner="newton",
    inner_lr=1.0,
    inner_steps=2,
    test_steps=2,
    inner_solve=3,
    halvings=1,
    prox=0.1,
    solve_steps=3,
    damping=2.0,
    curvature="gauss_newton",
)

# of a prior over a whole network: narrow, or its draws drown the signal, and hardly pulling, or steps overshoot
GAUSSIAN: dict[str, Any] = {"samples": 1, "sd": 1e-3, "kl_weight": 1e-6}


class Setting(NamedTuple):
    way: int
    shot: int

    @property
    def label(self) -> str:
        return f"{self.way}-way {self.shot}-shot"

    @property
    def short(self) -> str:
        return f"{self.way}w{self.shot}s"


def of_sums(descent: Mapping[str, Any], at: Setting) -> dict[str, Any]:
    """Rate and steps of an inner loop for a likelihood that sums the rows which others average."""
    return {**descent, "inner_lr": descent["inner_lr"] / (at.way * at.shot)}


class Entry(NamedTuple):
    """A learner as it is run here: its settings by way and shot, which parameters a task adapts, and how the pictures
    that it is trained on are warped."""

    build: Callable[..., Learner]
    config: Callable[[Setting], Any]
    fast: str = "*"
    warp: Warp | None = None


def entries(paper: Mapping[str, Callable[[Setting], Any]], warp: Warp | None = None) -> dict[str, Entry]:
    """The learners, with settings that a study gives by way and shot; with `warp`, once more on warped pictures."""
    builds: dict[str, Callable[..., Learner]] = {
        "scratch": scratch.build,
        "maml": maml.build,
        "fomaml": maml.build,
        "reptile": reptile.build,
        "imaml": imaml.build,
        "imaml, plain gradient": imaml.build,
        "imaml_head": imaml.build,
        "meta_sgd": meta_sgd.build,
        "anil": maml.build,
        "maml, blank head": maml.build,
        "fomaml, blank head": maml.build,
        "abml": abml.build,
        "gem_bml_plus": gem.build,
        "gem_head": gem_head.build,
        "protonet": protonet.build,
    }
    fast = {"anil": "head.*", "imaml_head": "head.*"}
    plain = {name: Entry(build, paper[name], fast.get(name, "*")) for name, build in builds.items() if name in paper}
    if warp is None:
        return plain
    trained = {name: entry for name, entry in plain.items() if name != "scratch"}
    return plain | {name + WARPED: entry._replace(warp=warp) for name, entry in trained.items()}


def is_baseline(name: str) -> bool:
    return name.removesuffix(WARPED) in BASELINES
