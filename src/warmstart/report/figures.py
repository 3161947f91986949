"""Figures: each function draws one kind of picture and returns it as an `<svg>` element.

A page whose figures share methods makes `style = looks(methods, baselines)` once, so that each keeps its colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter
from numpy.typing import ArrayLike

from warmstart.metrics.calibration import Reliability
from warmstart.report.rows import Interval, Row
from warmstart.report.svg import COLOURS, INK, MUTED, Look, canvas, label_ends, legend, shorten, styled, to_svg


class Curve(NamedTuple):
    """A line with its band; nan in low and high where no interval is known."""

    x: ArrayLike
    mean: ArrayLike
    low: ArrayLike = ()
    high: ArrayLike = ()


class Adaptation(NamedTuple):
    """One task with one input: the truth, what was shown, and the belief before and after."""

    title: str
    x: ArrayLike
    truth: ArrayLike
    support_x: ArrayLike
    support_y: ArrayLike
    before: Curve
    after: Curve


def curves(rows: Iterable[Row], metric: str, over: str = "support") -> dict[str, Curve]:
    """A curve for each method: its rows of this metric, along the setting `over`."""
    found: dict[str, dict[float, Interval]] = {}
    for row in rows:
        if row.metric == metric and over in row.setting:
            found.setdefault(row.method, {})[float(row.setting[over])] = row.interval
    return {
        method: Curve(sorted(points), *zip(*(points[x] for x in sorted(points)), strict=True))
        for method, points in found.items()
    }


def error_curves(
    lines: Mapping[str, Curve],
    style: Mapping[str, Look] | None = None,
    optimum: Curve | None = None,
    floor: float | None = None,
    x_label: str = "support samples",
    y_label: str = "error",
) -> str:
    """Error against the number of support samples, with 95 % bands, the optimum and the noise floor."""
    with canvas(7.2, 3.9) as (figure, grid):
        axes = grid[0, 0]
        ticks = sorted({float(x) for line in lines.values() for x in np.ravel(line.x)})
        # 0 has a place and small counts have room; ticks that are tried to the left of it are not drawn
        axes.set_xscale("function", functions=(lambda x: np.log1p(np.maximum(x, -0.99)), np.expm1))
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        ends: dict[str, tuple[float, str]] = {}
        for name, look in styled(lines, style).items():
            _draw(axes, lines[name], look)
            ends[name] = (_end(lines[name]), look.colour)
        if optimum is not None:
            axes.plot(optimum.x, optimum.mean, color=INK, linestyle=(0, (4, 2)), lw=1.3)
            ends["optimum"] = (_end(optimum), INK)
        if floor is not None:
            axes.axhline(floor, color=MUTED, linestyle=(0, (1, 1.5)), lw=1.1)
            ends["noise floor"] = (floor, MUTED)
        _frame_errors(axes, lines.values())
        low, high = np.log1p(ticks[0]), np.log1p(ticks[-1])
        room = 0.015 * (high - low)
        axes.set_xlim(np.expm1(low - room), np.expm1(high + room))
        axes.set(xlabel=x_label, ylabel=y_label)
        label_ends(figure, ends, axes)
        return to_svg(figure, f"Line chart of {y_label} against {x_label} for {', '.join(ends)}")


def group_bars(
    groups: Sequence[str],
    series: Mapping[str, Sequence[Interval]],
    style: Mapping[str, Look] | None = None,
    x_label: str = "",
    y_label: str = "error",
) -> str:
    """One cluster of bars for each group, one bar for each method, with intervals."""
    with canvas(7.2, 3.4) as (figure, grid):
        axes = grid[0, 0]
        chosen = styled(series, style)
        width = 0.8 / max(len(series), 1)
        for i, (name, look) in enumerate(chosen.items()):
            bars = np.array([tuple(interval) for interval in series[name]], dtype=float).reshape(-1, 3)
            place = np.arange(len(bars)) - 0.4 + width * (i + 0.5)
            axes.bar(place, bars[:, 0], width * 0.88, color=look.colour)
            axes.vlines(place, bars[:, 1], bars[:, 2], color=INK, lw=0.9)
        room = max(16, 96 // max(len(groups), 1))
        axes.set_xticks(range(len(groups)), [shorten(group, room) for group in groups])
        axes.tick_params(axis="x", length=0)
        axes.set(xlabel=x_label, ylabel=y_label)
        legend(figure, {name: Patch(color=look.colour) for name, look in chosen.items()})
        return to_svg(figure, f"Bar chart of {y_label} for {', '.join(series)} in {', '.join(groups)}")


def ranking(
    names: Sequence[str], means: ArrayLike, low: ArrayLike, high: ArrayLike, chosen: Sequence[bool], x_label: str
) -> str:
    """One line for each name, the lowest mean first, with its interval; filled where it was chosen."""
    mean, ends = np.asarray(means, dtype=float), np.stack([np.asarray(low), np.asarray(high)]).astype(float)
    order = np.argsort(mean, kind="stable")
    with canvas(7.2, 0.9 + 0.17 * len(order)) as (figure, grid):
        axes = grid[0, 0]
        axes.axvline(0.0, color=MUTED, lw=0.9, linestyle=(0, (1, 1.5)))
        for place, index in enumerate(order):
            colour = COLOURS[0] if chosen[index] else MUTED
            axes.plot(ends[:, index], [place, place], color=colour, lw=1.2)
            axes.plot(mean[index], place, "o", color=colour, ms=4, mfc=colour if chosen[index] else "white")
        axes.set_yticks(range(len(order)), [shorten(names[index]) for index in order], fontsize=7)
        axes.invert_yaxis()
        axes.set(xlabel=x_label)
        return to_svg(figure, f"Ranked coefficients of {len(order)} sources with intervals")


def adaptations(tasks: Sequence[Adaptation], x_label: str = "x", y_label: str = "y") -> str:
    """Small multiples of tasks with one input: truth, samples, and the prediction before and after them."""
    count = max(len(tasks), 1)
    columns = 2 if count in (2, 4) else min(count, 3)
    rows = -(-count // columns)
    with canvas(7.6, 0.5 + 2.1 * rows, rows, columns, sharex=True, sharey=True) as (figure, grid):
        before, after = Look(MUTED, "", (0, (4, 1.5))), Look(COLOURS[0], "")
        for axes, task in zip(grid.flat, tasks, strict=False):
            _draw(axes, task.before, before)
            _draw(axes, task.after, after)
            axes.plot(task.x, task.truth, color=INK, lw=1.0)
            axes.plot(task.support_x, task.support_y, "o", color=COLOURS[1], mec="white", mew=0.6, ms=5, zorder=5)
            axes.set_title(shorten(task.title, 34), loc="left")
        for axes in grid.flat[len(tasks) :]:
            axes.set_visible(False)
        for axes in grid.flat[max(len(tasks) - columns, 0) : len(tasks)]:  # the lowest of each column
            axes.tick_params(labelbottom=True)
            axes.set_xlabel(x_label)
        for axes in grid[:, 0]:
            axes.set_ylabel(y_label)
        banded = any(np.size(task.after.low) for task in tasks)
        legend(
            figure,
            {
                "truth": Line2D([], [], color=INK, lw=1.0),
                "samples": Line2D([], [], color=COLOURS[1], marker="o", linestyle="", ms=5),
                "before the samples": before,
                "after, 95 % interval" if banded else "after the samples": after,
            },
        )
        return to_svg(figure, f"Predictions before and after adaptation for {', '.join(t.title for t in tasks)}")


def scatters(panels: Mapping[str, Mapping[str, tuple[ArrayLike, ArrayLike]]], unit: str = "") -> str:
    """Predicted against true: a row for each task, a column for each number of samples it has shown."""
    columns = list(dict.fromkeys(column for panel in panels.values() for column in panel))
    size = (0.5 + 1.75 * max(len(columns), 1), 0.5 + 1.75 * max(len(panels), 1))
    with canvas(*size, max(len(panels), 1), max(len(columns), 1)) as (figure, grid):
        for line, (task, panel) in zip(grid, panels.items(), strict=False):
            pairs = {name: (np.ravel(np.asarray(t)), np.ravel(np.asarray(p))) for name, (t, p) in panel.items()}
            ends = np.concatenate([values for pair in pairs.values() for values in pair])
            ends = ends[np.isfinite(ends)] if np.isfinite(ends).any() else np.zeros(1)
            low, high = float(ends.min()), float(ends.max())
            pad = 0.06 * (high - low or 1.0)
            for axes, column in zip(line, columns, strict=True):
                if column in pairs:
                    _scatter(axes, *pairs[column], (low - pad, high + pad))
                else:
                    axes.set_visible(False)
            line[0].set_ylabel(f"{shorten(task, 20)}\npredicted")
        for axes, column in zip(grid[0], columns, strict=False):
            axes.set_title(shorten(column, 24), loc="left")
        for axes in grid[-1]:
            axes.set_xlabel(f"true {unit}".rstrip())
        return to_svg(figure, f"Predicted against true values of {', '.join(panels)} after {', '.join(columns)}")


def calibration(levels: ArrayLike, coverage: Mapping[str, ArrayLike], style: Mapping[str, Look] | None = None) -> str:
    """The share of targets inside an interval against the share it promises."""
    with canvas(4.2, 4.3) as (figure, grid):
        axes = grid[0, 0]
        axes.plot([0, 1], [0, 1], color=MUTED, lw=1.0, linestyle=(0, (1, 1.5)))
        chosen = styled(coverage, style)
        for name, look in chosen.items():
            axes.plot(levels, coverage[name], color=look.colour, ls=look.dash, marker=look.marker, mec="white", mew=0.5)
        ticks = (0, 0.25, 0.5, 0.75, 1)
        shares = [f"{tick:.0%}" for tick in ticks]
        axes.set_xticks(ticks, shares)
        axes.set_yticks(ticks, shares)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="promised by the interval", ylabel="found inside it", box_aspect=1)
        axes.text(0.03, 0.95, "too wide", color=MUTED, fontsize=8, va="top")
        axes.text(0.97, 0.05, "too narrow", color=MUTED, fontsize=8, ha="right")
        legend(figure, chosen, columns=2)
        return to_svg(figure, f"Calibration of the intervals of {', '.join(coverage)}")


def reliability(found: Mapping[str, Reliability], style: Mapping[str, Look] | None = None) -> str:
    """Accuracy against confidence, on the diagonal when probabilities mean what they say; below, where the rows lie."""
    with canvas(4.2, 5.55, 2, 1, sharex=True, height_ratios=(4, 1)) as (figure, grid):
        axes, below = grid[:, 0]
        axes.plot([0, 1], [0, 1], color=MUTED, lw=1.0, linestyle=(0, (1, 1.5)))
        chosen = styled(found, style)
        for i, (name, look) in enumerate(chosen.items()):
            confidence, accuracy, count = (np.asarray(part, dtype=float) for part in found[name])
            used = count > 0
            axes.plot(
                confidence[used],
                accuracy[used],
                color=look.colour,
                ls=look.dash,
                marker=look.marker,
                mec="white",
                mew=0.5,
            )
            bin_width = 1 / max(len(count), 1)
            width = 0.8 * bin_width / len(chosen)
            place = bin_width * (np.arange(len(count)) + 0.1) + width * (i + 0.5)
            below.bar(place, count / (count.sum() or 1.0), width, color=look.colour)
        ticks = (0, 0.25, 0.5, 0.75, 1)
        shares = [f"{tick:.0%}" for tick in ticks]
        axes.set_xticks(ticks, shares)
        axes.set_yticks(ticks, shares)
        below.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        below.locator_params(axis="y", nbins=3)
        axes.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy", box_aspect=1)
        below.set(xlabel="confidence", ylabel="rows")
        axes.text(0.03, 0.95, "too modest", color=MUTED, fontsize=8, va="top")
        axes.text(0.97, 0.05, "too sure", color=MUTED, fontsize=8, ha="right")
        legend(figure, chosen, columns=2)
        return to_svg(figure, f"Reliability diagram of the class probabilities of {', '.join(found)}")


def learning_curve(
    lines: Mapping[str, Curve],
    chosen: float | None = None,
    style: Mapping[str, Look] | None = None,
    x_label: str = "meta-updates",
    y_label: str = "loss",
) -> str:
    """Loss during training; `chosen` marks the step that validation tasks picked."""
    with canvas(7.2, 3.0) as (figure, grid):
        axes = grid[0, 0]
        ends = {}
        for name, look in styled(lines, style).items():
            _draw(axes, lines[name], look._replace(marker=""))
            ends[name] = (_end(lines[name]), look.colour)
        if chosen is not None:
            axes.axvline(chosen, color=INK, lw=0.9, linestyle=(0, (4, 2)))
            axes.annotate(
                f"kept: {chosen:g}",
                (chosen, 1),
                (5, 0),
                ("data", "axes fraction"),
                "offset points",
                va="top",
                fontsize=8,
            )
        _frame_errors(axes, lines.values())
        axes.margins(x=0)
        axes.set(xlabel=x_label, ylabel=y_label)
        label_ends(figure, ends, axes)
        return to_svg(figure, f"Learning curve: {y_label} against {x_label} for {', '.join(lines)}")


def _draw(axes: Axes, line: Curve, look: Look) -> None:
    axes.plot(line.x, line.mean, color=look.colour, linestyle=look.dash, marker=look.marker, mec="white", mew=0.5)
    if np.size(line.low):
        axes.fill_between(line.x, line.low, line.high, color=look.colour, alpha=0.13, lw=0)


def _end(line: Curve) -> float:
    """Where its name goes: the last value that is finite."""
    means = np.ravel(np.asarray(line.mean, dtype=float))
    finite = means[np.isfinite(means)]
    return float(finite[-1]) if finite.size else 0.0


def _frame_errors(axes: Axes, lines: Iterable[Curve]) -> None:
    """Errors start at zero when that wastes little, and a method that is far off does not flatten the others."""
    means = np.concatenate([np.zeros(0), *(np.ravel(np.asarray(line.mean, dtype=float)) for line in lines)])
    means = means[np.isfinite(means)]
    if means.size and means.min() >= 0:
        bottom, top = axes.get_ylim()
        axes.set_ylim(bottom=0 if means.min() < 0.6 * means.max() else max(bottom, 0))
        axes.set_ylim(top=min(top, 4 * float(np.median(means)) or top))


def _scatter(axes: Axes, truth: Any, predicted: Any, limits: tuple[float, float]) -> None:
    axes.plot(limits, limits, color=MUTED, lw=0.9, linestyle=(0, (1, 1.5)))
    axes.plot(truth, predicted, "o", color=COLOURS[0], ms=3.2, alpha=0.75, mew=0)
    error = float(np.sqrt(np.mean((truth - predicted) ** 2)))
    axes.text(0.04, 0.96, f"RMSE {error:.3g}", transform=axes.transAxes, va="top", fontsize=8, color=INK)
    axes.set(xlim=limits, ylim=limits, box_aspect=1)
    axes.locator_params(nbins=4)
