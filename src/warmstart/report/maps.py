"""Figures of a pool of models: where its tasks lie, and functions with their bands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from warmstart.report.figures import Curve
from warmstart.report.svg import COLOURS, INK, MUTED, canvas, legend, shorten, to_svg


class Banded(NamedTuple):
    """One function: what was predicted, with its band, and beside it what there is to compare."""

    title: str
    predicted: Curve
    actual: ArrayLike = ()  # at the same x
    support_x: ArrayLike = ()
    support_y: ArrayLike = ()


def task_map(
    places: ArrayLike, values: ArrayLike, labels: tuple[str, str], value_label: str, new: ArrayLike = ()
) -> str:
    """Tasks at places [n, 2], coloured by a value; a new task is a star."""
    at, coloured = np.asarray(places, dtype=float).reshape(-1, 2), np.asarray(values, dtype=float)
    with canvas(6.2, 4.2) as (figure, grid):
        axes = grid[0, 0]
        drawn = axes.scatter(at[:, 0], at[:, 1], c=coloured, cmap="viridis", s=22, edgecolors="white", linewidths=0.4)
        figure.colorbar(drawn, ax=axes, label=value_label)
        if np.size(new):
            star = np.asarray(new, dtype=float).reshape(-1, 2)
            axes.plot(star[:, 0], star[:, 1], "*", color=COLOURS[1], ms=15, mec="white", mew=0.8)
            legend(figure, {"the new task": Line2D([], [], color=COLOURS[1], marker="*", linestyle="", ms=11)})
        axes.set(xlabel=shorten(labels[0], 40), ylabel=shorten(labels[1], 40))
        return to_svg(figure, f"Map of {len(at)} tasks by {labels[0]} and {labels[1]}, coloured by {value_label}")


def bands(panels: Sequence[Banded], actual_label: str, x_label: str = "x", y_label: str = "y") -> str:
    """Small multiples of functions with one input and their intervals."""
    count = max(len(panels), 1)
    columns = min(count, 3)
    rows = -(-count // columns)
    with canvas(7.6 if count > 1 else 5.0, 0.6 + 2.2 * rows, rows, columns, sharex=True) as (figure, grid):
        for axes, panel in zip(grid.flat, panels, strict=False):
            line = panel.predicted
            axes.plot(line.x, line.mean, color=COLOURS[0])
            if np.size(line.low):
                axes.fill_between(line.x, line.low, line.high, color=COLOURS[0], alpha=0.18, lw=0)
            if np.size(panel.actual):
                axes.plot(line.x, panel.actual, color=INK, lw=1.0)
            if np.size(panel.support_x):
                axes.plot(panel.support_x, panel.support_y, "o", color=COLOURS[1], mec="white", mew=0.6, ms=5)
            axes.set_title(shorten(panel.title, 34), loc="left")
            axes.set(xlabel=x_label, ylabel=y_label)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        shown: dict[str, Line2D] = {"predicted": Line2D([], [], color=COLOURS[0])}
        if any(np.size(panel.actual) for panel in panels):
            shown[actual_label] = Line2D([], [], color=INK, lw=1.0)
        if any(np.size(panel.support_x) for panel in panels):
            shown["samples"] = Line2D([], [], color=COLOURS[1], marker="o", linestyle="", mec=MUTED, ms=5)
        legend(figure, shown)
        return to_svg(figure, f"Predicted functions with bands: {', '.join(panel.title for panel in panels)}")
