"""Evaluating a model of pictures on its unseen classes, beside what a user would pick instead: one page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from warmstart.engine.device import choose_device
from warmstart.engine.loop import Report
from warmstart.estimators.picture_comparison import ACCURACY, BASELINES, Found, judge, main_table, rows_of
from warmstart.estimators.picture_learner import PictureLearner
from warmstart.metrics.calibration import reliability
from warmstart.metrics.errors import accuracy
from warmstart.metrics.intervals import paired
from warmstart.report import Column, Results, called, make_results, table
from warmstart.report.contact_sheet import Thumbnail, contact_sheet
from warmstart.report.figures import curves, error_curves
from warmstart.report.figures import reliability as reliability_figure
from warmstart.report.page import Outcome, Section
from warmstart.report.svg import looks
from warmstart.tasks.images import Images


def evaluate(
    model: PictureLearner,
    pictures: Images | str | Path,
    *,
    trials: int = 1,
    tasks: int = 100,
    folder: Path | None = None,
    progress: Callable[[str], Report] | None = None,
) -> Outcome:
    """The pictures given to fit: the model on its unseen classes against baselines trained on its other classes."""
    found = judge(model, pictures, BASELINES, True, tasks=tasks, trials=trials, folder=folder, progress=progress)
    command, device = called(), str(choose_device(model.device))
    results = make_results("evaluate", "full", device, command, rows_of(found, model.seed))
    return Outcome(results, sections(found, results), verdict(found))


def verdict(found: Found) -> str:
    """How the model does beside the best baseline, in a sentence."""
    scores = {name: 100 * accuracy(found.chances[name, found.shot], found.query) for name in found.methods}
    ours, *theirs = found.methods
    best = max(theirs, key=lambda name: float(scores[name].mean()))
    gain = paired(scores[ours], scores[best])
    return (
        f"Shown {found.shot} of each of {found.way} unseen classes, {ours} is right on {scores[ours].mean():.1f} % of "
        f"further pictures; the best baseline, {best}, on {scores[best].mean():.1f} % (difference {gain.mean:+.1f} "
        f"points, 95 % interval {gain.low:+.1f} to {gain.high:+.1f})."
    )


def sections(found: Found, results: Results) -> list[Section]:
    """The comparison, accuracy against shots, the reliability of the probabilities, and a task to look at."""
    names = found.methods
    style = looks(names, names[1:])
    shots = sorted({shot for _, shot in found.chances})
    columns = [Column(f"{shot}", ACCURACY, {"way": found.way, "shot": shot}, 1, "higher") for shot in shots]
    by_shots = table(results, columns=columns, baselines=names[1:], caption="Accuracy (%) by pictures shown of a class")
    bins = {name: reliability(found.chances[name, found.shot], found.query, bins=10) for name in names}
    return [
        Section("Unseen classes, told apart from a few pictures", table=main_table(found, results)),
        Section(
            "More pictures of each class",
            f"All were trained for {found.shot} shown of a class.",
            by_shots,
            error_curves(
                curves(results.rows, ACCURACY, "shot"), style, x_label="shown of a class", y_label="accuracy (%)"
            )
            if len(shots) > 1
            else "",
            "Accuracy on unseen classes, with 95 % intervals over tasks." if len(shots) > 1 else "",
        ),
        Section(
            "How sure it is",
            svg=reliability_figure(bins, style),
            caption="How often the likeliest class was right, against the probability it was given: on the diagonal, "
            "probabilities mean what they say.",
        ),
        task_to_see(found),
    ]


def task_to_see(found: Found) -> Section:
    """The first task: what it showed, and what was said of the rest."""
    task, names, method = found.example, found.names, found.methods[0]
    shown = [
        Thumbnail(_pixels(x), names[int(y)]) for x, y in zip(task.support.x["pixels"], task.support.y, strict=True)
    ]
    judged = []
    asked = zip(task.query.x["pixels"], task.query.y.tolist(), found.chances[method, found.shot][0], strict=True)
    for x, y, chances in asked:
        guess = int(chances.argmax())
        words = f"{float(chances[guess]):.0%}" if guess == y else f"✗ is {names[int(y)]}"
        hint = ", ".join(f"{name} {chance:.1%}" for name, chance in zip(names, chances.tolist(), strict=True))
        judged.append(Thumbnail(_pixels(x), names[guess], words, f"{names[int(y)]}: {hint}", guess != y))
    return Section(
        "One task to look at",
        "Above, all that the model was shown of the classes; below, what it took further pictures for.",
        svg=contact_sheet(shown, "Support pictures")
        + contact_sheet(judged, "Query pictures with their likeliest class"),
        caption=f"{method} on the first task, with the probability of the likeliest class; a cross marks a mistake.",
    )


def _pixels(picture: Any) -> Any:
    return (255 * picture).round().byte().numpy()
