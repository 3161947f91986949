"""Learners of tasks on ratings: users are tasks, a rating is a row, and what is known of a user is the descriptor.

Vocabularies, means and the network are of training users alone; training stops by the error on validation users.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from warmstart.baselines import rating_als
from warmstart.baselines.click_means import fit_effects
from warmstart.baselines.rating_means import fit_bias
from warmstart.core import Columns, Learner, Likelihood, Model, Prediction, Task, functional, make_batch, make_task
from warmstart.core.trees import leaves, take, to_device
from warmstart.engine.loop import Report, silent
from warmstart.engine.meta import Feed, predict_stack
from warmstart.engine.stage import PLAIN, TRACED
from warmstart.metrics.errors import SMALLEST
from warmstart.models.likelihoods import squared, weighed_binary
from warmstart.models.mlp import seeded
from warmstart.models.preference import FAST, PreferenceNet
from warmstart.models.tabular import join
from warmstart.tasks.cold_start import Users, first
from warmstart.tasks.features import Features, Vocabulary
from warmstart.tasks.pool import make_pool
from warmstart.tasks.profiles import fit_table
from warmstart.tasks.ratings import Ratings, places
from warmstart.training.sources import from_users
from warmstart.training.train import Plan, train

CLICK = (0.1, 0.9)  # weights of no click and of a click in Yu et al. (2021)
SQUARE, ENTROPY = 2.0, 0.25  # how much losses bend; an entropy, where a click is as likely as none
INNER = ("inner_lr", "rate", "warm_rate")  # rates of inner steps, as configurations call them
ROWS = 200_000  # that are predicted at once
FEW = 1000  # users below which meta-batches have one shape: recording four takes longer than padding


@dataclass(frozen=True)
class Network:
    """The preference model and what it is told."""

    identity: bool = True  # items are known as such, and they and users have biases; else by their content alone
    hidden: tuple[int, ...] = (32,)
    embedding: int = 32
    factors: int = 16
    least: int = 2  # rows that must have a value for it to count; ratings that an item must have to be known
    weights: tuple[float, float] = (0.5, 0.5)  # of no click and of a click in the loss
    factorised: bool = False  # factors of items start at those of alternating least squares; of ratings alone


@dataclass(frozen=True)
class Schedule:
    epochs: int = 24
    users: int = 32  # in a meta-batch
    part: int = 5  # one in so many of a user's rows is judged
    fewer: float = 0.5  # share of users in training that show a random part of the others
    look: int = 2  # epochs between looks at validation users
    patience: int = 4  # looks without improvement
    sizes: tuple[int, ...] = (0, 5)  # shown ratings at which validation users are judged, besides all
    decay: bool = True  # the outer rate falls to zero over all epochs


class Tables(NamedTuple):
    """How ratings become tasks; fitted on training users."""

    item: Vocabulary
    items: Features
    users: Features
    identity: bool
    clicks: bool
    weights: tuple[float, float]
    centre: float
    scale: tuple[float, float]

    @property
    def columns(self) -> tuple[Columns, Columns]:
        return self.items.columns, self.users.columns

    @property
    def unit(self) -> float:
        """Of targets: a quarter of the scale, which is 1 for one to five stars."""
        return 1.0 if self.clicks else (self.scale[1] - self.scale[0]) / 4

    @property
    def weighed(self) -> float:
        """What the weights of clicks add to every logit."""
        return math.log(self.weights[1] / self.weights[0])

    @property
    def likelihood(self) -> Likelihood:
        return weighed_binary(*self.weights) if self.clicks else squared


class Catalogue(NamedTuple):
    """The rows of both side tables as tensors."""

    items: dict[str, Tensor]
    users: dict[str, Tensor]


class Fitted(NamedTuple):
    predict: Callable[[Users], Prediction]
    about: Callable[[Users], tuple[Tensor, Tensor]]  # each user's embedding and learning rate, where there are any
    learner: Learner
    state: Any


def fit_tables(ratings: Ratings, network: Network) -> Tables:
    clicks = ratings.kind == "binary"
    count = np.bincount(ratings.item, minlength=len(ratings.items))
    known = ratings.items.index[count >= network.least]
    things = _with_values(fit_table(ratings.items.iloc[np.flatnonzero(count)], "items", network.least))
    people = _with_values(fit_table(ratings.users, "users", network.least))
    centre = 0.0 if clicks else float(ratings.value.mean())
    item = Vocabulary("item", tuple(map(str, known)))
    return Tables(item, things, people, network.identity, clicks, network.weights, centre, ratings.scale)


def _with_values(features: Features) -> Features:
    """Without the columns no value of which counts."""
    categorical, bag = (tuple(part for part in parts if part.values) for parts in (features.categorical, features.bag))
    return replace(features, categorical=categorical, bag=bag)


def catalogue(tables: Tables, ratings: Ratings, device: torch.device | str = "cpu") -> Catalogue:
    items = tables.items.encode(ratings.items.reset_index(drop=True), "items")
    if tables.identity:
        own = torch.from_numpy(tables.item.lookup([str(name) for name in ratings.items.index]))
        items["categorical"] = torch.cat([own.unsqueeze(1), items["categorical"]], 1)
    users = tables.users.encode(ratings.users.reset_index(drop=True), "users")
    return Catalogue(*to_device((items, users), device))


def fill_in(tasks: Task, found: Catalogue) -> Task:
    """Rows and users, which were places in the catalogue, with all that it knows of them."""
    about = take(found.users, tasks.descriptor["user"])

    def rows(item: Tensor) -> dict[str, Tensor]:
        user = {name: leaf.unsqueeze(1).expand(-1, item.shape[1], *leaf.shape[1:]) for name, leaf in about.items()}
        return join(take(found.items, item), user)

    support, query = (part._replace(x=rows(part.x["item"])) for part in (tasks.support, tasks.query))
    return tasks._replace(support=support, query=query, descriptor=about)


def to_tasks(tables: Tables, users: Users) -> Task:
    """All users in one padded stack, rows and users as places in the catalogue."""
    count = len(users.shown.users)

    def rows(ratings: Ratings) -> Any:
        widest = int(np.bincount(ratings.user, minlength=count).max(initial=0))
        at = torch.from_numpy(ratings.user), torch.from_numpy(places(ratings))
        item, y, mask = torch.zeros(count, widest, dtype=torch.long), *torch.zeros(2, count, widest)
        item[at], y[at], mask[at] = torch.from_numpy(ratings.item), target(tables, ratings), torch.ones(())
        return make_batch({"item": item}, y, mask=mask)

    return make_task(rows(users.shown), rows(users.asked), {"user": torch.arange(count)}, torch.arange(count))


def target(tables: Tables, ratings: Ratings) -> Tensor:
    return torch.from_numpy((ratings.value - tables.centre) / tables.unit).float()


def paced(cfg: Any, tables: Tables) -> Any:
    """Inner rates, which are those of a squared loss, for the loss that there is: an entropy bends less."""
    if not tables.clicks:
        return cfg
    return replace(cfg, **{name: SQUARE / ENTROPY * getattr(cfg, name) for name in INNER if hasattr(cfg, name)})


def fit(
    build: Callable[..., Learner],
    ratings: Ratings,
    cfg: Any,
    seed: int,
    validation: Users,
    device: torch.device | str = "cpu",
    network: Network = Network(),
    schedule: Schedule = Schedule(),
    progress: Report = silent,
) -> Fitted:
    """Train on the users of `ratings`; on a CUDA device the update is captured in a graph."""
    where = torch.device(device)
    tables = fit_tables(ratings, network)
    cfg = paced(cfg, tables)
    with seeded(seed):
        net = preference_net(tables, network)
    if network.identity:
        _begin_with_effects(net, tables, ratings, cfg, network, seed)
    net = net.to(where)
    model = functional(net, FAST)
    stage = PLAIN if where.type == "cuda" else TRACED
    steps = -(-len(ratings.users) // schedule.users)
    if schedule.decay:
        cfg = replace(cfg, outer_decay=schedule.epochs * steps)
    if hasattr(cfg, "warm_up"):
        cfg = replace(cfg, warm_up=min(cfg.warm_up, steps))  # an epoch at most, so that it ends before the first look
    learner = build(model, tables.likelihood, cfg, stage)
    pool = make_pool(
        {"item": torch.from_numpy(ratings.item)},
        target(tables, ratings),
        torch.from_numpy(np.bincount(ratings.user, minlength=len(ratings.users))),
        {"user": torch.arange(len(ratings.users))},
    ).to(where)
    known = catalogue(tables, ratings, where)
    groups = 4 if len(ratings.users) >= FEW else 1
    drawn = from_users(pool, schedule.users, schedule.part, schedule.fewer, seed, learner.noise, groups=groups)

    def source(step: int) -> Feed:
        feed = drawn(step)
        return Feed(fill_in(feed.tasks, known), feed.noise)

    judged = [*(first(validation, size) for size in schedule.sizes), validation]
    stacks = [_sorted(tables, users, where) for users in judged]

    def validate(state: Any) -> float:
        errors = [_error(learner, state, tables, tasks, found) for tasks, found in stacks]
        return float(torch.stack(errors).mean())

    plan = Plan(schedule.epochs * steps, schedule.users, every=schedule.look * steps, patience=schedule.patience)
    state = train(learner, learner.init(model.params), source, plan, validate, stage=stage, progress=progress).state
    return opened(tables, model, learner, state)


def preference_net(tables: Tables, network: Network) -> PreferenceNet:
    columns, described = tables.columns
    items = tables.item.size if network.identity else 0
    return PreferenceNet(columns, described, network.hidden, 1, network.embedding, items, network.factors)


def opened(tables: Tables, model: Model, learner: Learner, state: Any) -> Fitted:
    """A trained learner as functions of users, wherever its state lies."""
    where = leaves(state)[0].device
    last: list[tuple[Any, Any, Catalogue]] = []  # side tables take longer to encode than most predictions

    def look_up(ratings: Ratings) -> Catalogue:
        if not last or last[0][0] is not ratings.items or last[0][1] is not ratings.users:
            last[:] = [(ratings.items, ratings.users, catalogue(tables, ratings, where))]
        return last[0][2]

    def predict(users: Users) -> Prediction:
        found = look_up(users.shown)
        tasks = to_tasks(tables, users)
        said = torch.zeros(tasks.query.y.shape)
        for ids, part in _chunks(tasks):
            mean = predict_stack(learner, state, fill_in(to_device(part, where), found)).mean.cpu()
            said[ids, : mean.shape[1]] = mean
        flat = said[torch.from_numpy(users.asked.user), torch.from_numpy(places(users.asked))].double()
        return Prediction((tables.unit * _unweighed(tables, flat) + tables.centre).clamp(*tables.scale))

    def about(users: Users) -> tuple[Tensor, Tensor]:
        descriptor = look_up(users.shown).users
        params = state.theta.get("params", state.theta)
        own = torch.func.vmap(lambda user: getattr(learner.start(state, user), "rate", torch.zeros(())))
        with torch.no_grad():
            rate = own(descriptor)
        return model.describe(params, descriptor).cpu(), rate.cpu() if float(rate.max()) > 0 else rate[:0].cpu()

    return Fitted(predict, about, learner, state)


def _begin_with_effects(
    net: PreferenceNet, tables: Tables, ratings: Ratings, cfg: Any, network: Network, seed: int
) -> None:
    """Items start at their shrunk effects and a step finds the user's, so that training starts at the bias row."""
    rate = cfg.rate / 2 if hasattr(cfg, "rate") else cfg.inner_lr
    known = (place := tables.item.lookup([str(name) for name in ratings.items.index])) > 1
    effects = np.zeros(tables.item.size)
    if tables.clicks:
        found = fit_effects(ratings)
        effects[place[known]] = found.item[known]
        net.begin(torch.from_numpy(effects).float(), rate, found.centre + tables.weighed, ENTROPY)
        return
    effects[place[known]] = fit_bias(ratings).item[known]
    factors = None
    if network.factorised:
        factors = torch.zeros(tables.item.size, network.factors)
        found = rating_als.factorise(ratings, rating_als.Config(factors=network.factors), seed).item / tables.unit**0.5
        factors[torch.from_numpy(place[known])] = torch.from_numpy(found[known]).float()
    net.begin(torch.from_numpy(effects / tables.unit).float(), rate, factors=factors)


def _unweighed(tables: Tables, said: Tensor) -> Tensor:
    """Chances as they would be had clicks weighed as much as the rest; ratings as they are."""
    return torch.sigmoid(torch.logit(said, eps=SMALLEST) - tables.weighed) if tables.clicks else said


def _chunks(tasks: Task) -> Sequence[tuple[Tensor, Task]]:
    """Users of similar length together, cut to what they have, so many that their rows are bounded."""
    shown, asked = (rows.mask.sum(1).long() for rows in (tasks.support, tasks.query))
    order = torch.argsort(shown + asked, stable=True)
    found, begin = [], 0
    while begin < len(order):
        widest = int((shown + asked)[order[begin:]][:256].max())
        ids = order[begin : begin + max(1, min(256, ROWS // max(widest, 1)))]
        part = take(tasks, ids)
        support, query = (
            take(rows, (slice(None), slice(max(int(length[ids].max()), 1))))
            for rows, length in ((part.support, shown), (part.query, asked))
        )
        found.append((ids, part._replace(support=support, query=query)))
        begin += len(ids)
    return found


def _sorted(tables: Tables, users: Users, device: torch.device) -> tuple[list[Task], Catalogue]:
    return [to_device(part, device) for _, part in _chunks(to_tasks(tables, users))], catalogue(
        tables, users.shown, device
    )


def _error(learner: Learner, state: Any, tables: Tables, tasks: Sequence[Task], found: Catalogue) -> Tensor:
    """The mean over users of their squared error, or log loss of clicks."""
    losses = []
    for part in tasks:
        full = fill_in(part, found)
        said = _unweighed(tables, predict_stack(learner, state, full).mean)
        query = full.query
        came = torch.where(query.y > 0.5, said, 1 - said)
        rows = -came.clamp(min=SMALLEST).log() if tables.clicks else (said - query.y) ** 2
        losses.append((rows * query.mask).sum(-1) / query.mask.sum(-1).clamp(min=1))
    return torch.cat(losses).mean()
