"""What fusing costs: time by the number of models, to generate one, and of the paper's meta-model and its alignment.

Figure 5 of *Model fusion for personalized learning*: bound and time of its meta-model by epochs for 5, 10, 15 and 20
processes, with hidden units aligned and as they are, on networks trained on sines of five domains. Times are of the
processor, in one thread, so that a busy machine does not show. For the other rows the networks [1-100-1] are not
trained: cost does not depend on what they say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pandas as pd
import torch

from warmstart.core import check_names
from warmstart.core.trees import take
from warmstart.engine.loop import Report, silent
from warmstart.engine.noise import generator
from warmstart.estimators.model_fusion import POINTS, WAYS, ModelFusion
from warmstart.fusion import meta_model
from warmstart.fusion.network import chain, make_network, make_pool
from warmstart.fusion.zoo import Zoo, make_zoo
from warmstart.report import Column, Results, Row, called, make_results, make_row, table
from warmstart.report.figures import curves, learning_curve
from warmstart.report.page import Outcome, Section
from warmstart.studies.sine_zoo import SEEN, SPAN, STEPS, UNITS, as_zoo, train_pool
from warmstart.tasks import sine

FUSE, GENERATE, PER_MODEL = "time to fuse", "time to generate one", "time to fuse, per model"
BOUND, PASSED, RATIO = "bound per model", "time passed", "time with alignment, relative"
AUTO, META = "auto", "meta_model"


Key: TypeAlias = tuple[str, str, tuple[tuple[str, int | str], ...]]  # method, metric, setting
Found: TypeAlias = dict[Key, float]


class Preset(NamedTuple):
    models: tuple[int, ...]
    gps: tuple[int, ...]
    epochs: int
    samples: int
    tries: int  # of generating
    pool: int  # trained networks, for the meta-model
    steps: int  # of their training


PRESETS = {
    "quick": Preset((50, 100), (5, 10), 4, 4, 10, 40, 100),
    "full": Preset((200, 1000, 5000), (5, 10, 15, 20), 100, 100, 50, SEEN, STEPS),
}
MARKS = 4  # epochs that are told: the first and so many more
SPARING = (4, 60)  # samples and epochs of `fusion_sine`, next to the paper's 100 and 100


def run(
    preset: str = "quick",
    seeds: Sequence[int] = (0,),
    only: Sequence[str] = (),
    data: Path | None = None,
    device: str = "auto",
    progress: Callable[[str], Report] | None = None,
    folder: Path | None = None,
) -> Outcome:
    """On the CPU, in one thread."""
    check_names(only, [*WAYS, META])
    size, threads = PRESETS[preset], torch.get_num_threads()
    bar = progress or (lambda label: silent)
    torch.set_num_threads(1)
    try:
        found: dict[Key, dict[int, float]] = {}
        for seed in seeds:
            for (name, metric, setting), value in measure(size, seed, only, bar).items():
                found.setdefault((name, metric, setting), {})[seed] = value
    finally:
        torch.set_num_threads(threads)
    units = {FUSE: "s", GENERATE: "ms", PER_MODEL: "ms", PASSED: "s"}
    rows = [
        make_row(name, dict(setting), metric, values, unit=units.get(metric, ""))
        for (name, metric, setting), values in found.items()
    ]
    results = make_results("fusion_cost", preset, "cpu", called(), rows)
    return Outcome(results, sections(results), verdict(rows))


def random_zoo(count: int, seed: int) -> Zoo:
    """Networks with random weights, each task a point of a square."""
    draw = generator(seed, count)
    shapes = {"0.bias": (UNITS,), "0.weight": (UNITS, 1), "2.bias": (1,), "2.weight": (1, UNITS)}
    params = {name: torch.randn(count, *shape, generator=draw) for name, shape in shapes.items()}
    at = torch.rand(count, 2, generator=draw).numpy()
    names = tuple(f"m{i}" for i in range(count))
    return make_zoo(names, params, pd.DataFrame({"model": names, "a": at[:, 0], "b": at[:, 1]}))


def measure(size: Preset, seed: int, only: Sequence[str], bar: Callable[[str], Report]) -> Found:
    found: Found = {}
    ways = {name: way for name, way in WAYS.items() if not only or name in only}
    for count in size.models if ways else ():
        zoo, where = random_zoo(count, seed), (("models", count),)
        network = make_network(chain(take(zoo.params, 0)))
        pool = make_pool(network, zoo.params, zoo.descriptor, torch.linspace(*SPAN, POINTS)[:, None])
        report = bar(f"{count} models")
        for name, way in ways.items():
            report(0, 1, name)
            rival, began = way.build(network, way.config), time.process_time()
            rival.held_out(rival.fit(pool))
            found[name, FUSE, where] = time.process_time() - began
        if not only:
            found[AUTO, FUSE, where] = sum(found[name, FUSE, where] for name in ways)
            found[AUTO, PER_MODEL, where] = 1000 * found[AUTO, FUSE, where] / count
            found["function_gp", GENERATE, where] = generating(zoo, size.tries)
    if not only or META in only:
        found |= measure_meta_model(size, seed, bar(META))
    return found


def generating(zoo: Zoo, tries: int) -> float:
    """Milliseconds for one model with its interval, the first call left out."""
    model = ModelFusion("function_gp").fit(zoo, "relu", SPAN)
    model.generate({"a": 0.5, "b": 0.5})
    began = time.process_time()
    for i in range(tries):
        model.generate({"a": (i + 0.5) / tries, "b": 0.3})
    return 1000 * (time.process_time() - began) / tries


def measure_meta_model(size: Preset, seed: int, report: Report) -> Found:
    """Training with units aligned and as they are, from beginning to end."""
    zoo = as_zoo(train_pool(sine.POLARISED, seed, size.steps), size.pool)
    network = make_network(chain(take(zoo.params, 0)))
    pool = make_pool(network, zoo.params, zoo.descriptor, torch.linspace(*SPAN, POINTS)[:, None])
    found: Found = {}
    marks = sorted({max(1, round(k * size.epochs / MARKS)) for k in range(MARKS + 1)})
    plain = meta_model.Config(samples=size.samples, epochs=size.epochs, seed=seed)
    samples, epochs = SPARING if size.epochs > SPARING[1] else (plain.samples, plain.epochs)
    sparing = replace(plain, samples=samples, epochs=epochs, every=epochs)
    for cfg in (*(replace(plain, gps=gps) for gps in size.gps), sparing):
        where = {"gps": cfg.gps, "samples": cfg.samples, "epochs": cfg.epochs}
        took = {}
        for kind in ("units", "none"):
            report(0, 1, f"{cfg.gps} processes, {cfg.samples} samples, alignment {kind}")
            log: list[meta_model.Passed] = []
            meta_model.fit(network, replace(cfg, alignment=kind), pool, log)
            took[kind] = log[-1].seconds
            for mark in marks if cfg is not sparing else ():
                setting = tuple({"gps": cfg.gps, "alignment": kind, "epoch": mark}.items())
                found[META, BOUND, setting] = log[mark - 1].bound
                found[META, PASSED, setting] = log[mark - 1].seconds
        found[META, RATIO, tuple(where.items())] = took["units"] / took["none"]
    return found


def sections(results: Results) -> list[Section]:
    counts = sorted({int(row.setting["models"]) for row in results.rows if row.metric == FUSE})
    found = []
    if counts:
        names = list(dict.fromkeys(row.method for row in results.rows if row.metric == FUSE))
        columns = [Column(f"{n} models", FUSE, {"models": n}, 2) for n in counts]
        caption = "Seconds of the processor to fit and to predict every model from the others"
        found.append(Section("Fusing", table=table(results, names, columns, caption=caption)))
        if any(row.metric == GENERATE for row in results.rows):
            columns = [Column(f"{n} models", GENERATE, {"models": n}, 2) for n in counts]
            caption = "Milliseconds to generate a model, with its interval"
            found.append(Section("Generating", table=table(results, ["function_gp"], columns, caption=caption)))
    ratios = [row.setting for row in results.rows if row.metric == RATIO]
    if ratios:
        columns = [
            Column(f"{at['gps']} processes, {at['samples']} samples, {at['epochs']} epochs", RATIO, at, 2)
            for at in ratios
        ]
        caption = "Time of training with hidden units aligned, relative to that without"
        found.append(Section("The paper's meta-model", table=table(results, [META], columns, caption=caption)))
        for metric, label in ((BOUND, BOUND), (PASSED, "seconds of the processor")):
            some = [row for row in results.rows if row.metric == metric]
            runs = dict.fromkeys((row.setting["gps"], row.setting["alignment"]) for row in some)
            lines = {
                f"{run[0]} processes, {run[1]}": curves(
                    [row for row in some if (row.setting["gps"], row.setting["alignment"]) == run], metric, "epoch"
                )[META]
                for run in runs
            }
            found.append(Section(svg=learning_curve(lines, x_label="epochs", y_label=label)))
    return found


def verdict(rows: Sequence[Row]) -> str:
    fuse = {int(row.setting["models"]): row.mean for row in rows if (row.method, row.metric) == (AUTO, FUSE)}
    made = [row.mean for row in rows if row.metric == GENERATE]
    if not fuse:
        return "The whole choice was not timed."
    few, many = min(fuse), max(fuse)
    told = f"All ways together take {fuse[few]:.0f} s for {few} models and {fuse[many]:.0f} s for {many}"
    return f"{told}; a model is generated in {max(made):.1f} ms at most."
