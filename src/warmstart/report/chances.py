"""What a few tasks' samples did to the probability of the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter
from numpy.typing import ArrayLike

from warmstart.report.svg import COLOURS, INK, MUTED, canvas, legend, shorten, to_svg


def chances(panels: Mapping[str, Mapping[str, ArrayLike]], shown: Sequence[int]) -> str:
    """The probability given to the true class: a panel for each task, a line for each row of a class, [rows, shown]."""
    columns = min(max(len(panels), 1), 4)
    rows = -(-max(len(panels), 1) // columns)
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    kept = names if len(names) <= len(COLOURS) else names[: len(COLOURS) - 1]
    colours = {name: COLOURS[kept.index(name)] if name in kept else MUTED for name in names}
    with canvas(0.6 + 1.75 * columns, 0.6 + 2.1 * rows, rows, columns, sharex=True, sharey=True) as (figure, grid):
        for axes, (task, panel) in zip(grid.flat, panels.items(), strict=False):
            given = {name: np.asarray(values, dtype=float).reshape(-1, len(shown)) for name, values in panel.items()}
            for name, values in given.items():
                for line in values:
                    axes.plot(range(len(shown)), line, "o-", color=colours[name], lw=0.9, ms=3.2, mew=0, alpha=0.6)
            if given:
                mean = np.concatenate(list(given.values())).mean(0)
                axes.plot(range(len(shown)), mean, color=INK, lw=2.2)
                axes.set_title(f"{shorten(task, 20)}\nmean {' → '.join(f'{value:.2f}' for value in mean)}", loc="left")
            axes.set_xticks(range(len(shown)), [f"{size}" for size in shown])
            axes.set(ylim=(-0.03, 1.03))
            axes.margins(x=0.15)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        for axes in grid.flat[max(len(panels) - columns, 0) : len(panels)]:  # the lowest of each column
            axes.tick_params(labelbottom=True)
            axes.set_xlabel("samples")
        for axes in grid[:, 0]:
            axes.set_ylabel("probability of the true class")
            axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        told = {name: Line2D([], [], color=colours[name], marker="o", lw=0.9, ms=3.2) for name in kept}
        if len(kept) < len(names):
            told["other classes"] = Line2D([], [], color=MUTED, marker="o", lw=0.9, ms=3.2)
        legend(figure, told)
        samples = " and ".join(map(str, shown))
        return to_svg(figure, f"Probability of the true class in {', '.join(panels)} after {samples} samples")
