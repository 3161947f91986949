"""The rows of the few-shot picture studies: learners as they are run there, by way and shot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from warmstart.baselines import protonet
from warmstart.core import Learner
from warmstart.learners import abml, gem, gem_head, imaml, maml, meta_sgd, reptile, scratch
from warmstart.tasks.warps import Warp

BASELINES = ("nearest_centroid", "linear_head", "protonet")
WARPED, MIRRORED = ", warped", ", mirrored"  # behind the name of a learner that is trained on such pictures
# the whole network by Newton's method, its head blank and free, the rest held near where all tasks start
HESSIAN_FREE = replace(imaml.HEAD, prox=10.0, blank_prox=imaml.HEAD.prox, inner_solve=4, outer_lr=3e-4)

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
    """A learner as it is run here, its settings by way and shot."""

    build: Callable[..., Learner]
    config: Callable[[Setting], Any]
    fast: str = "*"  # parameters that a task adapts
    warp: Warp | None = None  # of the pictures that it is trained on
    after: str = ""  # the row whose trained network it starts from
    share: float = 1.0  # of the study's updates


def entries(paper: Mapping[str, Callable[[Setting], Any]], warps: Mapping[str, Warp] | None = None) -> dict[str, Entry]:
    """The learners, with settings that a study gives by way and shot; for each of the `warps` once more, on pictures
    that are warped so, under a name with that ending."""
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
    # a problem over a whole network is dear to solve: most of the way is gone with a cheaper one of its kind
    after = {"imaml": ("imaml_head", 1 / 20), "imaml, plain gradient": ("fomaml", 1 / 6)}
    plain = {
        name: Entry(build, paper[name], fast.get(name, "*"), None, *after.get(name, ()))
        for name, build in builds.items()
        if name in paper
    }
    again = {
        name + ending: entry._replace(warp=warp, after=entry.after and entry.after + ending)
        for ending, warp in (warps or {}).items()
        for name, entry in plain.items()
        if name != "scratch"  # which trains on nothing
    }
    return plain | again


def plain_name(name: str) -> str:
    """Without what says how training pictures are warped."""
    return name.removesuffix(WARPED).removesuffix(MIRRORED)


def is_baseline(name: str) -> bool:
    return plain_name(name) in BASELINES
