"""Methods by name: each learner with its default configuration, its search space and its network.

A method id is its module's name, or a named configuration in that module.
"""

from __future__ import annotations

import dataclasses
import difflib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

from warmstart.core import Columns, InputError, Learner, Likelihood, functional
from warmstart.engine.stage import Stage
from warmstart.learners import (
    abml,
    at_paml,
    bmaml,
    empirical_bayes,
    gem,
    gem_head,
    gem_mixture,
    imaml,
    kl_chaser,
    llama,
    maml,
    melu,
    meta_sgd,
    paml,
    pmaml,
    pretrain,
    reg_paml,
    reptile,
    scratch,
)
from warmstart.models.likelihoods import binary, multiclass, squared
from warmstart.models.mlp import seeded
from warmstart.models.tabular import TabularNet


class Method(NamedTuple):
    config: Any  # the default
    build: Callable[..., Learner]
    space: Mapping[str, Sequence[Any]]  # what a search may try
    fast: str | tuple[str, ...] = "*"  # names of the parameters that a task adapts
    kinds: tuple[str, ...] = ("squared", "binary", "multiclass")


# a Gaussian prior over a whole network starts narrow and pulls weakly, or its own draws drown what tasks say; one draw
# does, since a meta-update sums over many tasks
NARROW: dict[str, Any] = {"samples": 1, "sd": 0.03, "kl_weight": 0.1, "outer_lr": 3e-3}
DECISION = ("body.*", "head.*")  # what MeLU and its kin adapt: all but the embeddings
METHODS = {
    "scratch": Method(scratch.Config(), scratch.build, scratch.SPACE),
    "pretrain": Method(pretrain.Config(), pretrain.build, pretrain.SPACE),
    "maml": Method(maml.Config(), maml.build, maml.SPACE),
    "fomaml": Method(maml.FOMAML, maml.build, maml.SPACE),
    "anil": Method(maml.Config(inner_lr=0.1, inner_steps=5), maml.build, maml.SPACE, "head.*"),
    "reptile": Method(reptile.Config(), reptile.build, reptile.SPACE),
    "imaml": Method(imaml.Config(), imaml.build, imaml.SPACE),
    "meta_sgd": Method(meta_sgd.Config(), meta_sgd.build, meta_sgd.SPACE),
    "bmaml": Method(bmaml.Config(), bmaml.build, bmaml.SPACE),
    "empirical_bayes": Method(empirical_bayes.Config(), empirical_bayes.build, empirical_bayes.SPACE),
    "gem_bml": Method(dataclasses.replace(gem.GEM_BML, **NARROW), gem.build, gem.SPACE),
    "gem_bml_plus": Method(dataclasses.replace(gem.GEM_BML_PLUS, **NARROW), gem.build, gem.SPACE),
    "gem_head": Method(gem_head.Config(), gem_head.build, gem_head.SPACE, kinds=("squared", "binary")),
    "gem_mixture": Method(gem_mixture.Config(**NARROW), gem_mixture.build, gem_mixture.SPACE),
    "llama": Method(llama.Config(), llama.build, llama.SPACE),
    "abml": Method(abml.Config(**NARROW), abml.build, abml.SPACE),
    "pmaml": Method(pmaml.Config(**NARROW), pmaml.build, pmaml.SPACE),
    "platipus": Method(dataclasses.replace(pmaml.PLATIPUS, **NARROW), pmaml.build, pmaml.SPACE),
    "kl_chaser": Method(kl_chaser.Config(**NARROW), kl_chaser.build, kl_chaser.SPACE),
    "melu": Method(melu.Config(), melu.build, melu.SPACE, DECISION),
    "paml": Method(paml.Config(), paml.build, paml.SPACE, DECISION),
    "at_paml": Method(at_paml.Config(), at_paml.build, at_paml.SPACE, DECISION),
    "reg_paml": Method(reg_paml.Config(), reg_paml.build, reg_paml.SPACE, DECISION),
}
AUTO = ("empirical_bayes", "anil", "pretrain")  # what `auto` compares
LIKELIHOODS = {"squared": squared, "binary": binary, "multiclass": multiclass}


def find(name: str) -> Method:
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, 1)
        raise InputError(
            f"a method among {', '.join(METHODS)}", repr(name), f"did you mean {near[0]}?" if near else "pick one"
        )
    return METHODS[name]


def configure(default: Any, settings: Mapping[str, Any]) -> Any:
    """The configuration with some values replaced, given as values or as text.

    >>> configure(maml.Config(), {"inner_lr": "0.1", "first_order": "true"}).inner_lr
    0.1
    >>> configure(paml.Config(), {"rate_hidden": "48,16"}).rate_hidden
    (48, 16)

    A setting that is a group of others is given by their names, as trees.leaves, or as all of them.
    """
    fields = {field.name: getattr(default, field.name) for field in dataclasses.fields(default)}
    changed: dict[str, Any] = {}
    for name, value in settings.items():
        own, dot, rest = name.partition(".")
        if own not in fields or (dot and not dataclasses.is_dataclass(fields[own])):
            near = difflib.get_close_matches(name, fields, 1)
            raise InputError(
                f"a setting among {', '.join(fields)}", repr(name), f"did you mean {near[0]}?" if near else "pick one"
            )
        now = changed.get(own, fields[own])
        changed[own] = configure(now, {rest: value}) if dot else _parse(own, value, now)
    return dataclasses.replace(default, **changed)


def _parse(name: str, value: Any, like: Any) -> Any:
    try:
        if isinstance(like, bool):
            parsed: Any = {"true": True, "false": False, "1": True, "0": False}[str(value).lower()]
        elif isinstance(like, (int, float)):
            parsed = type(like)(value)
        elif isinstance(like, tuple):
            parts = value.split(",") if isinstance(value, str) else value
            parsed = tuple(type(like[0])(part) for part in parts)
        elif dataclasses.is_dataclass(like) and not isinstance(value, type(like)):
            parsed = configure(like, dict(value))
        else:
            parsed = value
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{name} like {like!r}", repr(value), f"pass a {type(like).__name__}") from None
    if name.endswith("lr") and not 0 < parsed < float("inf"):
        raise InputError(f"a positive {name}", f"{parsed}", "pass a learning rate above 0")
    if isinstance(like, (int, float)) and not 0 <= parsed < float("inf"):
        raise InputError(f"a {name} of at least 0", f"{parsed}", "pass a number that is not negative")
    return parsed


class Network(NamedTuple):
    """What a network is made of, as it is written down with a model."""

    hidden: tuple[int, ...] = (128, 64)
    activation: str = "tanh"
    embedding: int = 32


def assemble(
    name: str,
    cfg: Any,
    columns: Columns,
    descriptor: Columns,
    likelihood: Likelihood,
    classes: int,
    stage: Stage,
    seed: int,
    network: Network = Network(),
    module: nn.Module | None = None,
) -> tuple[Learner, Any]:
    """A learner for a table and its state before training.

    Empirical Bayes takes the descriptor in its prior; the others see it as columns of every row.
    A user's own module sees the rows as they are.
    """
    method = find(name)
    if likelihood.name not in method.kinds:
        raise InputError(f"a {' or '.join(method.kinds)} target for {name}", likelihood.name, "choose another method")
    outputs = classes if likelihood.name == "multiclass" else 1
    with seeded(seed), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")  # a table without features
        own = columns if name == "empirical_bayes" else columns + descriptor
        known = Columns() if name == "empirical_bayes" else descriptor
        net = module or TabularNet(own, network.hidden, outputs, network.activation, network.embedding, known)
        prior = TabularNet(descriptor, (), 1, network.activation, network.embedding) if any(descriptor) else None
    model = functional(net, method.fast)
    if name == "empirical_bayes":
        learner = method.build(model, likelihood, cfg, functional(prior) if prior else None, stage)
    else:
        learner = method.build(model, likelihood, cfg, stage)
    return learner, learner.init(model.params)
