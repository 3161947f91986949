"""Fusion of sine networks: a network for an unseen sine from 200 (or 40) others, before and after 10 to 40 rows of it.

Tables 1, 3 and 4 and Figures 2 and 3 of *Model fusion for personalized learning*: five domains far from each other, and
each of them; beside it a hard family, where amplitude and phase are drawn freely and the nearest network is no answer.
All choices are made on seen tasks, with rows that the pool's own networks say; unseen sines are only judged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.core import Params, check_names
from warmstart.core.trees import take
from warmstart.engine.loop import Report, silent
from warmstart.engine.noise import generator
from warmstart.estimators.model_fusion import WAYS, ModelFusion, Way, relative_error
from warmstart.fusion import bound, few_shot, hypernetwork, meta_model, weight_gp
from warmstart.fusion.network import run_models
from warmstart.fusion.zoo import encode_descriptor
from warmstart.report import Column, Results, Row, called, differences, make_results, make_row, table
from warmstart.report.figures import Adaptation, Curve, adaptations, curves, error_curves
from warmstart.report.maps import Banded, bands
from warmstart.report.page import Outcome, Section
from warmstart.report.svg import looks
from warmstart.studies import sine_learners as learners
from warmstart.studies.sine_zoo import (
    SPAN,
    STEPS,
    SinePool,
    as_zoo,
    describe,
    draw_tasks,
    fit_networks,
    starts,
    train_pool,
)
from warmstart.tasks import sine

SHOTS = (0, 10, 20, 30, 40)
ERROR, COVERED, NETS, HARMED = "nRMSE", "coverage", "coverage, unseen networks", "share worse by 5 %"
PAIRED = "nRMSE minus that of plain fine-tuning"
AUTO, FLOOR, ZERO, COLD, PLAIN = "auto", "the networks themselves", "predict 0", "cold start", "auto, plain fine-tuning"
UNALIGNED = "weight_gp, unaligned"
FIVE, HARD, FEW = "five domains", "hard, 200 networks", "hard, 40 networks"
ROWS: dict[str, Way] = {**WAYS, UNALIGNED: WAYS["weight_gp"]._replace(config=weight_gp.UNALIGNED)}
META, META_REFIT, META_LOOSE = "meta_model", "meta_model, refit", "meta_model, unaligned"
TUNED, META_H = ", plain fine-tuning", "meta_model, fine-tuning by H"
META_SHOTS, META_TESTS, TUNING = (10, 40), 20, 20  # rows and tasks of fine-tuning by H, which is dear; steps
LESS = "nRMSE, by H minus plain"
TRIALS = tuple((lr, steps) for lr in (1e-3, 3e-3, 1e-2) for steps in (5, 20, 100))  # of plain fine-tuning
PUBLISHED = {
    (AUTO, 0): "paper 0.135",
    (AUTO, 10): "paper 0.114",
    (AUTO, 20): "paper 0.029",
    (AUTO, 30): "paper 0.021",
    (AUTO, 40): "paper 0.017",
    (COLD, 0): "paper 0.445",
    (COLD, 10): "paper 0.149",
    (COLD, 20): "paper 0.085",
    (COLD, 30): "paper 0.076",
    (COLD, 40): "paper 0.052",
    (META, 0): "paper 0.135",
    (META_LOOSE, 0): "paper 0.357",
    **{(f"{META}{TUNED}", 10 * k): f"paper {x}" for k, x in enumerate((0.114, 0.029, 0.021, 0.017), 1)},
    **{(f"{META_LOOSE}{TUNED}", 10 * k): f"paper {x}" for k, x in enumerate((0.125, 0.043, 0.036, 0.028), 1)},
    **learners.PUBLISHED,
}
Scores = dict[tuple[str, int, str], Tensor]  # method, shots, metric -> one number per unseen task


class Preset(NamedTuple):
    steps: int  # of the networks' training
    hyper: int  # of the hypernetwork's
    epochs: int  # of the meta-model
    refit: int
    settings: tuple[str, ...]
    tests: int
    meta: int  # updates of the learners that see data


PRESETS = {
    "quick": Preset(300, 60, 5, 50, (FIVE, FEW), 20, 200),
    "full": Preset(STEPS, 1500, 60, 2000, (FIVE, HARD, FEW), 100, 5000),
}
SETTINGS = {FIVE: (sine.POLARISED, 200), HARD: (sine.HARD, 200), FEW: (sine.HARD, 40)}


def run(
    preset: str = "quick",
    seeds: Sequence[int] = (0,),
    only: Sequence[str] = (),
    data: Path | None = None,
    device: str = "auto",
    progress: Callable[[str], Report] | None = None,
    folder: Path | None = None,
) -> Outcome:
    """On the CPU. With a folder, trained pools are kept in it."""
    check_names(only, [*ROWS, META, *learners.HIDDEN])
    began, size = time.perf_counter(), PRESETS[preset]
    ways = {name: way for name, way in ROWS.items() if not only or name in only}
    if "hypernetwork" in ways:
        ways["hypernetwork"] = ROWS["hypernetwork"]._replace(config=hypernetwork.Config(steps=size.hyper))
    found: dict[str, dict[int, Scores]] = {}
    excerpts: list[Adaptation] = []
    beside: list[Banded] = []
    chosen = [name for name in learners.HIDDEN if not only or name in only]
    for setting in [FIVE] if only and not ways else size.settings:
        for seed in seeds:
            report = (progress or (lambda label: silent))(f"{setting}, seed {seed}")
            family, count = SETTINGS[setting]
            if setting == FIVE:
                found.setdefault(setting, {})[seed] = judge_learners(chosen, seed, size, partial(report, 0, 1))
            if only and not ways and META not in only:
                continue
            name = f"{size.steps}-{'five' if family is sine.POLARISED else 'hard'}-{seed}.safetensors"
            pool = train_pool(family, seed, size.steps, None if folder is None else folder / name)
            pool = pool._replace(unseen=pool.unseen[: size.tests], floor=take(pool.floor, slice(size.tests)))
            scores, model = judge(pool, count, seed, ways, only, partial(report, 0, 1))
            if setting == FIVE and (not only or META in only):
                more, panels = judge_meta_model(pool, model, seed, size, partial(report, 0, 1))
                scores, beside = scores | more, beside or panels
            found.setdefault(setting, {}).setdefault(seed, {}).update(scores)
            excerpts += excerpt(model, pool, setting) if seed == seeds[0] else []
    rows = rows_of(found)
    results = make_results("fusion_sine", preset, "cpu", called(), rows)
    return Outcome(results, sections(results, excerpts, beside), verdict(rows, time.perf_counter() - began))


def judge(
    pool: SinePool, count: int, seed: int, ways: Mapping[str, Way], only: Sequence[str], say: Callable[[str], None]
) -> tuple[Scores, ModelFusion]:
    """Every way on the unseen tasks at no rows, the choice among them also at 10 to 40."""
    zoo = as_zoo(pool, count)
    choice = {name: way for name, way in ways.items() if name in WAYS}
    model = ModelFusion(ways={**choice, "function_gp": WAYS["function_gp"]}).fit(zoo, "relu", SPAN, say)
    x = torch.linspace(*SPAN, 200)[:, None]
    truth = sine.curve(pool.unseen, x[:, 0].expand(len(pool.unseen), -1)).double()[..., None]
    at = encode_descriptor(zoo.columns, describe(pool.unseen))
    scores: Scores = {
        (FLOOR, 0, ERROR): relative_error(run_models(model.network_, pool.floor, x), truth),
        (ZERO, 0, ERROR): relative_error(torch.zeros_like(truth), truth),
    }
    for name, way in ways.items():
        rival = way.build(model.network_, way.config)
        state = model.states_[name] if name in model.states_ else rival.fit(model.pool_)
        scores[name, 0, ERROR] = relative_error(run_models(model.network_, rival.zero_shot(state, at), x), truth)
    if only:
        return scores, model
    begin = starts(len(pool.unseen), seed + 50)
    scores[COLD, 0, ERROR] = relative_error(run_models(model.network_, begin, x), truth)
    zero: Params = ways[model.chosen_].build(model.network_, ways[model.chosen_].config).zero_shot(model.state_, at)
    for shots in SHOTS:
        say(f"{shots} rows")
        asked, told = rows_of_tasks(pool.unseen, shots, seed)
        made = [model.generate(at[i], (asked[i], told[i]) if shots else None) for i in range(len(at))]
        said, low, high = (torch.stack(part) for part in zip(*(one.predict(x) for one in made), strict=True))
        scores[AUTO, shots, ERROR] = relative_error(said, truth)
        scores[AUTO, shots, COVERED] = ((low <= truth) & (truth <= high)).double().mean((1, 2))
        nets = run_models(model.network_, pool.floor, x)
        scores[AUTO, shots, NETS] = ((low <= nets) & (nets <= high)).double().mean((1, 2))
        if shots:
            scores[COLD, shots, ERROR] = relative_error(
                run_models(model.network_, fit_networks(begin, asked, told, 500), x), truth
            )
            lr, steps = tune_plain(model, shots, seed)
            tuned = few_shot.fine_tune(model.network_, zero, asked, told[..., None], steps, lr)
            scores[PLAIN, shots, ERROR] = relative_error(run_models(model.network_, tuned, x), truth)
            for name in (AUTO, PLAIN):
                worse = scores[name, shots, ERROR] > 1.05 * scores[AUTO, 0, ERROR]
                scores[name, shots, HARMED] = worse.double()
    return scores, model


def judge_meta_model(
    pool: SinePool, model: ModelFusion, seed: int, size: Preset, say: Callable[[str], None]
) -> tuple[Scores, list[Banded]]:
    """The paper's meta-model with units in one order, as they are, and refitted; both ways to tune it on rows.

    With some of its functions before any row.
    """
    x = torch.linspace(*SPAN, 200)[:, None]
    truth = sine.curve(pool.unseen, x[:, 0].expand(len(pool.unseen), -1)).double()[..., None]
    at, network = encode_descriptor(model.zoo_.columns, describe(pool.unseen)), model.network_
    cfg = meta_model.Config(samples=4, epochs=size.epochs, every=size.epochs, seed=seed)
    say(META)
    plain = meta_model.fit(network, cfg, model.pool_)
    states = {
        META: plain,
        META_LOOSE: meta_model.fit(network, replace(cfg, alignment="none"), model.pool_),
        META_REFIT: meta_model.refit(network, replace(cfg, refit=size.refit), model.pool_, plain),
    }
    begun = {name: meta_model.zero_shot(state, at)[0] for name, state in states.items()}
    scores: Scores = {
        (name, 0, ERROR): relative_error(run_models(network, made, x), truth) for name, made in begun.items()
    }
    few = slice(META_TESTS)
    for shots in SHOTS[1:]:
        say(f"{META}, {shots} rows")
        asked, told = rows_of_tasks(pool.unseen, shots, seed)
        for name, made in begun.items():
            tuned = few_shot.fine_tune(network, made, asked, told[..., None], TUNING)
            scores[f"{name}{TUNED}", shots, ERROR] = relative_error(run_models(network, tuned, x), truth)
        if shots not in META_SHOTS:
            continue
        by_h = [  # of the bound that the refit gives up
            meta_model.zero_shot(
                bound.fine_tune(network, cfg, model.pool_, plain, at[i], asked[i], told[i][:, None], TUNING),
                at[i : i + 1],
            )[0]
            for i in range(len(truth[few]))
        ]
        made = {name: torch.cat([one[name] for one in by_h]) for name in begun[META]}
        scores[META_H, shots, ERROR] = relative_error(run_models(network, made, x), truth[few])
        scores[META_H, shots, LESS] = scores[META_H, shots, ERROR] - scores[f"{META}{TUNED}", shots, ERROR][few]
    panels = [
        Banded(
            f"{name}: a = {float(pool.unseen[i, 0]):.2f}",
            Curve(x[:, 0].numpy(), run_models(network, take(begun[name], slice(i, i + 1)), x)[0, :, 0].numpy()),
            truth[i, :, 0].numpy(),
        )
        for i in range(2)
        for name in begun
    ]
    return scores, panels


def judge_learners(names: Sequence[str], seed: int, size: Preset, say: Callable[[str], None]) -> Scores:
    """MAML and Per-FedAvg on the unseen tasks of the five domains, with the rows that fusion is given."""
    seen, unseen = draw_tasks(sine.POLARISED, generator(seed, 1))
    unseen = unseen[: size.tests]
    asked = {shots: rows_of_tasks(unseen, shots, seed) for shots in SHOTS}
    scores = learners.judge_learners(names, sine.POLARISED, seen, unseen, asked, seed, size.meta, say)
    return {(name, shots, ERROR): error for (name, shots), error in scores.items()}


def rows_of_tasks(unseen: Tensor, shots: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs [tasks, shots, 1] and outputs of the unseen tasks; the first rows of a task are the same at all counts."""
    drawn = torch.rand(len(unseen), max(SHOTS), generator=generator(seed, 7))[:, :shots, None]
    asked = SPAN[0] + (SPAN[1] - SPAN[0]) * drawn
    return asked, sine.curve(unseen, asked[..., 0])


def tune_plain(model: ModelFusion, shots: int, seed: int) -> tuple[float, int]:
    """Rate and steps that would have served the pool's tasks best, each started without its own network."""
    inputs, n = model.pool_.inputs, len(model.zoo_)
    asked = SPAN[0] + (SPAN[1] - SPAN[0]) * torch.rand(n, shots, 1, generator=generator(seed, 8, shots))
    told = torch.func.vmap(model.network_.apply)(model.pool_.params, asked)

    def error(lr: float, steps: int) -> float:
        tuned = few_shot.fine_tune(model.network_, model.held_out_, asked, told, steps, lr)
        found = float(relative_error(run_models(model.network_, tuned, inputs), model.pool_.outputs).mean())
        return found if found == found else float("inf")

    return min(TRIALS, key=lambda trial: error(*trial))


def rows_of(found: Mapping[str, Mapping[int, Scores]]) -> list[Row]:
    rows: list[Row] = []
    for setting, by_seed in found.items():
        for name, shots, metric in next(iter(by_seed.values())):
            values = {seed: scores[name, shots, metric] for seed, scores in by_seed.items()}
            peer = PUBLISHED.get((name, shots), "") if (setting, metric) == (FIVE, ERROR) else ""
            where = {"family": setting, "shots": shots}
            rows.append(make_row(name, where, metric, values, peer=peer, fresh_tasks=True))
            if setting == FIVE and metric == ERROR and name != META_H:  # domains take turns
                for domain in range(5):
                    some = {seed: each[domain::5] for seed, each in values.items()}
                    rows.append(
                        make_row(name, {**where, "family": f"domain {domain + 1}"}, metric, some, fresh_tasks=True)
                    )
            if name == AUTO and metric == ERROR and shots:
                plain = {seed: scores[PLAIN, shots, ERROR] for seed, scores in by_seed.items()}
                rows.append(make_row(AUTO, where, PAIRED, differences(values, plain), fresh_tasks=True))
    return rows


def excerpt(model: ModelFusion, pool: SinePool, setting: str) -> list[Adaptation]:
    """Two unseen sines before and after ten rows."""
    x = torch.linspace(*SPAN, 200)[:, None]
    found = []
    for i in range(2):
        asked = SPAN[0] + (SPAN[1] - SPAN[0]) * torch.rand(10, 1, generator=generator(i, 9))
        told = sine.curve(pool.unseen[i], asked[:, 0])
        known = encode_descriptor(model.zoo_.columns, describe(pool.unseen[i : i + 1]))
        drawn = []
        for support in (None, (asked, told)):
            mean, low, high = (part[:, 0].numpy() for part in model.generate(known, support, 0.95).predict(x))
            drawn.append(Curve(x[:, 0].numpy(), mean, low, high))
        title = f"{setting}: a = {float(pool.unseen[i, 0]):.2f}"
        truth = sine.curve(pool.unseen[i], x[:, 0]).numpy()
        found.append(Adaptation(title, x[:, 0].numpy(), truth, asked[:, 0].numpy(), told.numpy(), *drawn))
    return found


def sections(results: Results, excerpts: Sequence[Adaptation], beside: Sequence[Banded]) -> list[Section]:
    families = list(dict.fromkeys(str(row.setting["family"]) for row in results.rows))
    methods = list(dict.fromkeys(row.method for row in results.rows))
    baselines = [name for name in methods if name in (ZERO, COLD, PLAIN, "nearest", "average", UNALIGNED)]
    columns = [Column(family, ERROR, {"family": family, "shots": 0}, 4, "lower") for family in families]
    caption = "RMSE over the range of the sine, no rows of the task"
    found = [Section("Before any row", table=table(results, methods, columns, baselines, [FLOOR], caption=caption))]
    if excerpts:
        words = "Two unseen sines of each family, before and after ten rows; the band is the 95 % interval."
        found.append(Section("What it looks like", svg=adaptations(excerpts), caption=words))
    if beside:
        words = "Two unseen sines by the paper's meta-model, before any row: units aligned, as they are, and refitted."
        found.append(Section(svg=bands(beside, "the sine"), caption=words))
    for family in (family for family in families if family in SETTINGS):
        shown = [row for row in results.rows if row.setting["family"] == family and row.method in (AUTO, PLAIN, COLD)]
        if not any(row.method == AUTO for row in shown):
            continue
        for metric, better in ((ERROR, "lower"), (HARMED, "lower"), (COVERED, ""), (NETS, "")):
            columns = [Column(f"{k} rows", metric, {"family": family, "shots": k}, 4, better) for k in SHOTS]
            names = [name for name in (AUTO, PLAIN, COLD) if any((r.method, r.metric) == (name, metric) for r in shown)]
            found.append(Section(f"{family}: {metric}", table=table(results, names, columns, [PLAIN, COLD])))
        lines = curves([row for row in shown if row.metric == ERROR], ERROR, "shots")
        picture = error_curves(lines, looks(list(lines), [PLAIN, COLD]), x_label="rows of the task", y_label=ERROR)
        found.append(Section(svg=picture))
    return found


def verdict(rows: Sequence[Row], seconds: float) -> str:
    at = {
        (row.method, row.setting["family"]): row.mean
        for row in rows
        if row.metric == ERROR and row.setting["shots"] == 0
    }
    told = [
        f"{at[AUTO, family]:.4f} on {family} (nearest {at['nearest', family]:.4f})"
        for family in SETTINGS
        if (AUTO, family) in at and ("nearest", family) in at
    ]
    if not told:
        return "The automatic choice was not run."
    return f"Before any row the automatic choice errs by {', '.join(told)} of a sine's range ({seconds:.0f} s)."
