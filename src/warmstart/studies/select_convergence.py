"""How many subsets until a surrogate stops getting better, of which size, and can their training be spared?

Figures 3 to 5 of the paper on census states: error and rank correlation on held-out subsets by the number of subsets n,
beside the ceiling, what trainings of the same subsets from other initialisations say; the same for subsets of 2, 5, 10
and 20 sources at one budget, on the first state; how many of the ten best sources fewer subsets find too; and
surrogates of linearised estimates, judged by real trainings, with what they cost.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from warmstart.core import check_names
from warmstart.engine.device import choose_device
from warmstart.engine.files import read_json, write_json
from warmstart.engine.jobs import config_hash
from warmstart.engine.loop import Report, silent
from warmstart.metrics.ranking import spearman
from warmstart.report import Column, Results, Row, called, make_results, make_row, table
from warmstart.report.figures import curves, error_curves
from warmstart.report.page import Outcome, Section
from warmstart.report.rows import Scalar
from warmstart.selection import linearise, surrogate, task_model, training
from warmstart.selection.measures import cross_entropy
from warmstart.selection.training import shares
from warmstart.studies.select_rows import MEAN
from warmstart.tasks.acs_income import ROLES, STATE, read_acs_income
from warmstart.tasks.data_folder import given
from warmstart.tasks.transfer import Transfer, read_transfer

TARGETS, LEFT_OUT, TOP = ("HI", "KS", "LA", "NJ", "NV", "SC"), "CA", 10
OURS, LINEAR = "task_model", "task_model, linearised"  # surrogates of trainings and of estimates
ESTIMATE, CEILING = "linearised estimates", "trainings from other initialisations"  # no surrogates
METHODS = (OURS, LINEAR)
RANK, ERROR, OVERLAP = "Spearman", "error relative to the variance of f", "of the ten best found"
SHARE, COST, NEEDED = "Spearman relative to the ceiling", "cost relative to training", "subsets needed per source"
BASES, FRESH = 500, 900  # seeds of base models and of the trainings that judge, beside those of f
NEAR = 1.1  # times the error of all subsets, where more of them are no longer needed
PUBLISHED = {(OVERLAP, 100): "paper 7", (OVERLAP, 200): "paper 9"}
Found = dict[str, float]  # "method; metric; size; n" -> value


class Preset(NamedTuple):
    targets: tuple[str, ...]
    counts: tuple[int, ...]  # of subsets of `size` sources; the last is all
    size: int
    sizes: Mapping[int, int]  # other sizes -> their number of subsets, on the first target
    cfg: task_model.Config
    most: int | None = None  # rows of a source


SHORT = training.Config(hidden=(32,), steps=100, balance=0.0)
PRESETS = {
    "quick": Preset(
        ("HI",), (25, 50, 100), 5, {2: 100}, task_model.Config(starts=2, held_out=20, training=SHORT), 2000
    ),
    "full": Preset(TARGETS, (50, 100, 150, 200, 300, 400), 5, {2: 800, 10: 200, 20: 100}, task_model.Config()),
}


def run(
    preset: str = "quick",
    seeds: Sequence[int] = (0,),
    only: Sequence[str] = (),
    data: Path | None = None,
    device: str = "auto",
    progress: Callable[[str], Report] | None = None,
    folder: Path | None = None,
) -> Outcome:
    """With a folder, a run that was interrupted goes on where it stopped. `only` names methods and states."""
    chosen, place = PRESETS[preset], choose_device(device)
    check_names(only, (*METHODS, *chosen.targets), "methods or states")
    data = given(data, "ACSIncome")
    targets = [target for target in chosen.targets if target in only] or list(chosen.targets)
    names = [name for name in METHODS if name in only] or list(METHODS)
    people = read_acs_income(data)
    people = people[people[STATE] != LEFT_OUT].reset_index(drop=True)
    found: dict[str, dict[int, Found]] = {target: {} for target in targets}
    for seed in seeds:
        for target in targets:
            report = (progress or (lambda label: silent))(f"{target}, seed {seed}")
            transfer = read_transfer(people, ROLES, target, seed=seed, most=chosen.most).to(place)
            plans = {chosen.size: chosen.counts}
            if target == chosen.targets[0]:
                plans |= {size: (count,) for size, count in chosen.sizes.items()}
            parts: Found = {}
            for done, (size, counts) in enumerate(plans.items()):
                made = config_hash([asdict(chosen.cfg), list(counts), chosen.most])
                kept = None if folder is None else folder / f"{target}-{seed}-{size}-{made}.json"
                parts |= remembered(kept, transfer, chosen, size, counts, seed)
                report(done + 1, len(plans), f"subsets of {size}")
            found[target][seed] = parts
    rows = rows_of(found, names, chosen)
    results = make_results("select_convergence", preset, str(place), called(), rows)
    return Outcome(results, sections(results, chosen), verdict(rows, chosen.counts[-1]))


def remembered(
    kept: Path | None, transfer: Transfer, chosen: Preset, size: int, counts: Sequence[int], seed: int
) -> Found:
    if kept is not None and kept.exists():
        found: Found = read_json(kept)
        return found
    found = judge(transfer, chosen.cfg, size, counts, seed)
    if kept is not None:
        write_json(kept, found)
    return found


def judge(transfer: Transfer, cfg: task_model.Config, size: int, counts: Sequence[int], seed: int) -> Found:
    """Surrogates of the first so many subsets, by trainings and by linearised estimates, on held-out subsets.

    Ranks are judged by trainings from an initialisation that none of them has seen; what the trainings of the very
    same subsets from other ones say of these is the ceiling.
    """
    last, found, once = counts[-1], Found(), replace(cfg.surrogate, draws=2)
    own = replace(cfg, size=size, subsets=last, surrogate=once)
    began = time.perf_counter()
    known = task_model.estimate(transfer, own, cross_entropy, seed)
    trained = time.perf_counter() - began
    began = time.perf_counter()
    share = shares(transfer, known.indicators.to(transfer.pool.y.device), cfg.training.balance)
    each = linearise.estimates(transfer, share, cross_entropy, cfg.training, cfg.linearise, 1000 * seed + BASES)
    guessed = each.mean(0).cpu()
    found[f"{ESTIMATE}; {COST}; {size}; {last}"] = (time.perf_counter() - began) / trained
    members, f = known.indicators[last:], known.f[last:]
    fresh = task_model.evaluator(transfer, cross_entropy, own)(members, 1000 * seed + FRESH)
    ceiling = ranked(spearman(f, fresh))
    found[f"{CEILING}; {RANK}; {size}; {last}"] = ceiling
    found[f"{ESTIMATE}; {RANK}; {size}; {last}"] = ranked(spearman(guessed[last:], fresh))
    best = set(known.surrogate.theta.argsort()[:TOP].tolist())
    for name, values in ((OURS, known.f), (LINEAR, guessed)):
        error: dict[int, float] = {}
        for count in counts:
            model = surrogate.fit(known.indicators[:count], values[:count], once, seed)
            quality = surrogate.judge(model, members, f)
            error[count] = quality.error / max(quality.variance, 1e-12)
            place = f"{size}; {count}"
            found[f"{name}; {RANK}; {place}"] = ranked(spearman(model.predict(members.double()), fresh))
            found[f"{name}; {ERROR}; {place}"] = error[count]
            if name == LINEAR or count < last:  # all trainings find their own best
                ten = set(model.theta.argsort()[:TOP].tolist())
                found[f"{name}; {OVERLAP}; {place}"] = float(len(ten & best))
        if len(counts) > 1 and name == OURS:
            enough = min(count for count in counts if error[count] <= NEAR * error[last])
            found[f"{name}; {NEEDED}; {size}; {last}"] = enough / transfer.sources
    for name in (OURS, LINEAR, ESTIMATE):
        if ceiling > 0:
            found[f"{name}; {SHARE}; {size}; {last}"] = found[f"{name}; {RANK}; {size}; {last}"] / ceiling
    return found


def ranked(correlation: float) -> float:
    """What is the same everywhere ranks nothing."""
    return 0.0 if math.isnan(correlation) else correlation


def rows_of(found: Mapping[str, Mapping[int, Found]], names: Sequence[str], chosen: Preset) -> list[Row]:
    """Of every state, and of subsets of the usual size their mean."""
    rows = []
    for key in dict.fromkeys(key for by_seed in found.values() for part in by_seed.values() for key in part):
        method, metric, size, count = key.split("; ")
        if method not in (*names, ESTIMATE, CEILING):
            continue
        setting = {"size": int(size), "n": int(count)}
        peer = PUBLISHED.get((metric, int(count)), "") if method == OURS and int(size) == chosen.size else ""
        each = {t: {s: part[key] for s, part in by_seed.items() if key in part} for t, by_seed in found.items()}
        each = {target: values for target, values in each.items() if values}
        rows += [make_row(method, {"target": t, **setting}, metric, values, peer=peer) for t, values in each.items()]
        if int(size) == chosen.size:
            seeds = dict.fromkeys(seed for values in each.values() for seed in values)
            mean = {seed: [values[seed] for values in each.values() if seed in values] for seed in seeds}
            rows.append(make_row(method, {"target": MEAN, **setting}, metric, mean, peer=peer, fresh_tasks=True))
    return rows


def sections(results: Results, chosen: Preset) -> list[Section]:
    found, size, last = [], chosen.size, chosen.counts[-1]
    usual: dict[str, Scalar] = {"target": MEAN, "size": size}
    for metric, better in ((RANK, "higher"), (ERROR, "lower"), (OVERLAP, "")):
        rows = [row for row in results.rows if row.metric == metric and usual.items() <= row.setting.items()]
        names = [name for name in METHODS if any(row.method == name for row in rows)]
        columns = [Column(f"n = {count}", metric, {**usual, "n": count}, 2, better) for count in chosen.counts]
        picture = error_curves(
            curves([row for row in rows if row.method in names], metric, "n"), x_label="subsets", y_label=metric
        )
        caption = f"Subsets of {size} sources, mean of the states"
        found.append(Section(metric, table=table(results, names, columns, caption=caption), svg=picture))
    columns = [Column(m, m, {**usual, "n": last}, 2) for m in (RANK, SHARE, COST, NEEDED)]
    found.append(Section("With all subsets", table=table(results, [CEILING, OURS, LINEAR, ESTIMATE], columns)))
    columns = [Column(state, RANK, {"target": state, "size": size, "n": last}, 2) for state in chosen.targets]
    found.append(Section("By state", table=table(results, [CEILING, OURS, LINEAR, ESTIMATE], columns, caption=RANK)))
    others = {size: last, **chosen.sizes}
    first = chosen.targets[0]
    columns = [
        Column(f"|S| = {s}, n = {others[s]}", RANK, {"target": first, "size": s, "n": others[s]}, 2)
        for s in sorted(others)
    ]
    found.append(
        Section("By size of subsets", table=table(results, [CEILING, OURS, LINEAR, ESTIMATE], columns, caption=first))
    )
    return found


def verdict(rows: Sequence[Row], last: int) -> str:
    all_in = {"target": MEAN, "n": last}.items()
    at = {(row.method, row.metric): row.mean for row in rows if all_in <= row.setting.items()}
    said = [f"{name} {at[name, RANK]:.2f}" for name in (CEILING, OURS, LINEAR, ESTIMATE) if (name, RANK) in at]
    text = f"Spearman on held-out subsets, mean of the states: {', '.join(said)}"
    if (OURS, NEEDED) in at:
        text += f"; {at[OURS, NEEDED]:.1f} subsets per source are enough (paper 8)"
    if (ESTIMATE, COST) in at:
        text += f"; estimates cost {at[ESTIMATE, COST]:.3f} of training"
    return f"{text}."
