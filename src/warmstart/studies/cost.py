"""Cost: time and peak memory of a meta-step against the number of inner steps, on colour pictures.

Figure 2(b) of Zou and Lu (2020): the four-block network with 32 filters, 5-way 1-shot. Methods that
backpropagate through the inner loop pay for every step of it; the others do not. The variational methods take
one draw a step; its noise is drawn before the meta-step and not counted. BMAML has two particles, LLAMA takes
the curvature layer by layer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from warmstart.core import Learner, Task, check_names, functional
from warmstart.engine.device import choose_device
from warmstart.engine.loop import Report, silent
from warmstart.engine.memory import peak_bytes
from warmstart.engine.meta import Feed, meta_update
from warmstart.engine.noise import generator, train_noise
from warmstart.learners import abml, bmaml, gem, imaml, kl_chaser, llama, maml, meta_sgd, pmaml, reptile
from warmstart.models.conv4 import Conv4, fastest_stage
from warmstart.models.likelihoods import multiclass
from warmstart.models.mlp import seeded
from warmstart.report import Column, Results, Row, called, make_results, make_row, table
from warmstart.report.figures import curves, error_curves
from warmstart.report.page import Outcome, Section
from warmstart.tasks.images import draw_episodes, make_images

WAY, SHOT = 5, 1
TIME, PEAK, GROWTH = "time", "peak", "growth"


class Entry(NamedTuple):
    build: Callable[..., Learner]
    config: Callable[[int], Any]  # of the number of inner steps


ENTRIES = {
    "maml": Entry(maml.build, lambda steps: maml.Config(inner_steps=steps)),
    "maml, recomputed": Entry(maml.build, lambda steps: maml.Config(inner_steps=steps, recompute=True)),
    "fomaml": Entry(maml.build, lambda steps: maml.Config(inner_steps=steps, first_order=True)),
    "reptile": Entry(reptile.build, lambda steps: reptile.Config(inner_steps=steps)),
    "imaml": Entry(imaml.build, lambda steps: imaml.Config(inner_steps=steps, inner="newton", inner_lr=1.0)),
    "imaml, plain gradient": Entry(imaml.build, lambda steps: imaml.Config(inner_steps=steps)),
    "meta_sgd": Entry(meta_sgd.build, lambda steps: meta_sgd.Config(inner_steps=steps)),
    "abml": Entry(abml.build, lambda steps: abml.Config(inner_steps=steps, samples=1)),
    "pmaml": Entry(pmaml.build, lambda steps: pmaml.Config(inner_steps=steps, samples=1)),
    "kl_chaser": Entry(kl_chaser.build, lambda steps: kl_chaser.Config(inner_steps=steps, samples=1)),
    "bmaml": Entry(bmaml.build, lambda steps: bmaml.Config(inner_steps=steps, particles=2)),
    "llama": Entry(llama.build, lambda steps: llama.Config(inner_steps=steps, curvature="kronecker")),
    "gem_bml": Entry(gem.build, lambda steps: gem.Config(inner_steps=steps, samples=1, plus=False)),
    "gem_bml_plus": Entry(gem.build, lambda steps: gem.Config(inner_steps=steps, samples=1)),
}


class Preset(NamedTuple):
    steps: tuple[int, ...]
    side: int  # of the pictures
    filters: int
    tasks: int
    query: int
    repeats: int


PRESETS = {"quick": Preset((1, 5), 32, 8, 2, 3, 2), "full": Preset((1, 5, 10, 20), 84, 32, 4, 15, 5)}


def run(
    preset: str = "quick",
    seeds: Sequence[int] = (0,),
    only: Sequence[str] = (),
    data: Path | None = None,
    device: str = "auto",
    progress: Callable[[str], Report] | None = None,
    folder: Path | None = None,
) -> Outcome:
    """Pictures of noise: what they show does not change what they cost. A seed is another repetition."""
    chosen, where = PRESETS[preset], choose_device(device)
    check_names(only, ENTRIES)
    bar = progress or (lambda label: silent)
    rows: list[Row] = []
    for name in list(only) or list(ENTRIES):
        report = bar(name)
        peaks: dict[int, float] = {}
        for i, steps in enumerate(chosen.steps):
            setting = {"inner_steps": steps}
            found = [measure(name, steps, chosen, where, seed) for seed in seeds]
            times, most = (dict(zip(seeds, part, strict=True)) for part in zip(*found, strict=True))
            rows.append(make_row(name, setting, TIME, times, "ms"))
            rows.append(make_row(name, setting, PEAK, most, "MiB"))
            peaks[steps] = max(most.values())
            report(i + 1, len(chosen.steps), f"{steps} inner steps")
        rows.append(make_row(name, {}, GROWTH, {0: peaks[chosen.steps[-1]] / peaks[chosen.steps[0]]}, "x"))
    results = make_results("cost", preset, str(where), called(), rows)
    return Outcome(results, sections(results, chosen.steps), verdict(rows, chosen.steps))


def measure(name: str, steps: int, preset: Preset, device: torch.device, seed: int) -> tuple[float, float]:
    """Milliseconds of a meta-step, the least of some, and MiB that it holds at most."""
    with seeded(seed):
        module = Conv4((3, preset.side, preset.side), WAY, preset.filters, strided=False).to(device)
    model = functional(module)
    stage = fastest_stage(
        device, strided=False, updates=preset.repeats, pictures=preset.tasks * WAY * (SHOT + preset.query)
    )
    learner = ENTRIES[name].build(model, multiclass, ENTRIES[name].config(steps), stage)
    state, update = learner.init(model.params), meta_update(learner, stage=stage)
    tasks = draw(preset, device, seed)
    feed = Feed(tasks, train_noise(learner.noise, preset.tasks, generator(seed, 2, device=device)))
    update(state, feed)  # records its programs
    took = [_seconds(lambda: update(state, feed), device) for _ in range(preset.repeats)]
    return 1e3 * min(took), peak_bytes(lambda: update(state, feed), device) / 2**20


def draw(preset: Preset, device: torch.device, seed: int) -> Task:
    each = SHOT + preset.query
    shape = (WAY * each, 3, preset.side, preset.side)
    pixels = torch.randint(256, shape, generator=generator(seed), dtype=torch.uint8)
    images = make_images(pixels, torch.full((WAY,), each), tuple(map(str, range(WAY)))).to(device)
    return draw_episodes(images, preset.tasks, WAY, SHOT, preset.query, generator(seed, 1))


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    wait()
    began = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - began


def sections(results: Results, steps: Sequence[int]) -> list[Section]:
    times = [Column(f"{k} steps (ms)", TIME, {"inner_steps": k}, 0, "lower") for k in steps]
    most = [Column(f"{k} steps (MiB)", PEAK, {"inner_steps": k}, 1, "lower") for k in steps]
    most.append(Column(f"{steps[-1]} against {steps[0]}", GROWTH, {}, 2, "lower"))
    found = []
    for heading, metric, columns in (("Peak memory", PEAK, most), ("Time", TIME, times)):
        lines = curves(results.rows, metric, "inner_steps")
        unit = "MiB" if metric == PEAK else "milliseconds"
        picture = error_curves(lines, x_label="inner steps", y_label=f"{unit} of a meta-step")
        found.append(Section(heading, table=table(results, columns=columns), svg=picture))
    return found


def verdict(rows: Sequence[Row], steps: Sequence[int]) -> str:
    growth = {row.method: row.mean for row in rows if row.metric == GROWTH}
    least, most = min(growth, key=lambda name: growth[name]), max(growth, key=lambda name: growth[name])
    return (
        f"From {steps[0]} to {steps[-1]} inner steps the peak memory of {most} grows {growth[most]:.1f} times, "
        f"that of {least} {growth[least]:.1f} times."
    )
