"""Figures of how numbers are spread: over series, over groups, in a plane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter
from numpy.typing import ArrayLike

from warmstart.report.svg import Look, canvas, legend, looks, shorten, styled, to_svg


def violins(series: Mapping[str, ArrayLike], style: Mapping[str, Look] | None = None, y_label: str = "error") -> str:
    """How the numbers of each series are spread, with their quartiles; the largest twentieth is cut off, as the tail
    of one series would flatten the others."""
    with canvas(max(7.2, 0.5 * len(series)), 3.8) as (figure, grid):
        axes = grid[0, 0]
        values = {name: _finite(numbers) for name, numbers in series.items()}
        values = {name: numbers for name, numbers in values.items() if numbers.size > 1}
        top = max((float(np.quantile(numbers, 0.95)) for numbers in values.values()), default=1.0)
        for place, (name, numbers) in enumerate(values.items()):
            kept = numbers[numbers <= top]
            colour = styled(values, style)[name].colour
            if np.ptp(kept) > 0:
                drawn = axes.violinplot([kept], [place], widths=0.8, showextrema=False)
                for body in drawn["bodies"]:
                    body.set(facecolor=colour, alpha=0.25)
            low, middle, high = np.quantile(numbers, (0.25, 0.5, 0.75))
            axes.vlines(place, low, high, color=colour, lw=3)
            axes.plot([place], [middle], "o", color="white", mec=colour, ms=5)
        axes.set_xticks(range(len(values)), [shorten(name) for name in values], rotation=30, ha="right")
        axes.set(ylabel=y_label, ylim=(None, top))
        return to_svg(figure, f"Violins of {y_label} of {', '.join(values)}")


def split_histograms(panels: Mapping[str, Mapping[str, ArrayLike]], x_label: str) -> str:
    """A panel for each entry, in which groups share the bins and each adds up to one."""
    count = max(len(panels), 1)
    columns = min(count, 3)
    rows = -(-count // columns)
    with canvas(7.6, 0.6 + 2.0 * rows, rows, columns) as (figure, grid):
        names = list(dict.fromkeys(name for panel in panels.values() for name in panel))
        chosen = looks(names)
        for axes, (title, panel) in zip(grid.flat, panels.items(), strict=False):
            groups = {name: _finite(numbers) for name, numbers in panel.items()}
            every = np.concatenate([np.zeros(0), *groups.values()])
            low, high = (float(every.min()), float(every.max())) if every.size else (0.0, 1.0)
            edges = np.linspace(low, high if high > low else low + (abs(low) or 1.0) * 1e-3, 31)
            for name, numbers in groups.items():
                share = np.histogram(numbers, edges)[0] / max(numbers.size, 1)
                axes.stairs(share, edges, color=chosen[name].colour, fill=True, alpha=0.35)
            axes.set_title(shorten(title, 30), loc="left")
            axes.set_xlabel(x_label)
            axes.locator_params(axis="x", nbins=4)
            axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        legend(figure, {name: Patch(color=look.colour, alpha=0.5) for name, look in chosen.items()})
        return to_svg(figure, f"Histograms of {x_label} for {', '.join(names)} by {', '.join(panels)}")


def points(groups: Mapping[str, ArrayLike], title: str = "") -> str:
    """Places in a plane without units, [n, 2] for each group."""
    with canvas(4.6, 4.6) as (figure, grid):
        axes, chosen = grid[0, 0], looks(list(groups))
        for name, look in chosen.items():
            places = np.asarray(groups[name], dtype=float).reshape(-1, 2)
            axes.plot(places[:, 0], places[:, 1], "o", color=look.colour, ms=2.6, alpha=0.6, mew=0)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_title(shorten(title, 40), loc="left")
        legend(figure, {name: Patch(color=look.colour) for name, look in chosen.items()})
        return to_svg(figure, f"Points of {', '.join(groups)} in a plane. {title}")


def _finite(numbers: ArrayLike) -> Any:
    values = np.ravel(np.asarray(numbers, dtype=float))
    return values[np.isfinite(values)]
