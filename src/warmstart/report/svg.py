"""The look of all figures, and matplotlib's drawing as a piece of a page."""

from __future__ import annotations

import hashlib
import html
import io
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

INK, MUTED, FAINT = "#1f2933", "#5f6b7a", "#e4e7eb"
# Okabe and Ito's colours, told apart by colour-blind readers; their yellow is too pale for lines on white
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
GREYS = ("#6b7280", "#8b95a3", "#3f4a59")
DASHES = ("-", (0, (5, 1.5)), (0, (2, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

STYLE: dict[Any, Any] = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,  # a column may be named "$x$"
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.6,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "axes.formatter.use_mathtext": False,
    "axes.formatter.useoffset": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "xtick.major.width": 0.6,
    "lines.linewidth": 1.7,
    "lines.markersize": 5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.fonttype": "none",  # text stays text: small, searchable, in the page's own font
    "svg.hashsalt": "warmstart",
}


class Look(NamedTuple):
    """How one series is drawn everywhere in a figure."""

    colour: str
    marker: str
    dash: Any = "-"


def looks(names: Sequence[str], baselines: Collection[str] = ()) -> dict[str, Look]:
    """Colours for methods, greys for baselines, so that the eye finds what is claimed."""
    ours = [name for name in names if name not in baselines]
    theirs = [name for name in names if name in baselines]
    chosen = {}
    for i, name in enumerate(ours):
        chosen[name] = Look(COLOURS[i % 6], MARKERS[i % 7], DASHES[i // 6 % 3])
    for i, name in enumerate(theirs):
        chosen[name] = Look(GREYS[i % 3], MARKERS[-1 - i % 7], DASHES[i // 3 % 3])
    return chosen


@contextmanager
def canvas(width: float, height: float, rows: int = 1, columns: int = 1, **grid: Any) -> Iterator[tuple[Figure, Any]]:
    """A figure and its array of axes under the house style, leaving matplotlib's own settings as they were."""
    with rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the reader's font may well have it
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False, **grid)


def to_svg(figure: Figure, alt: str) -> str:
    """The drawing as an `<svg>` element that can stand beside others on one page. Call it inside `canvas`."""
    stream = io.StringIO()
    nothing: dict[str, Any] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(stream, format="svg", bbox_inches="tight", pad_inches=0.08, metadata=nothing)
    drawing = stream.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", drawing, count=1, flags=re.DOTALL)
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r"<[^>]+>", lambda tag: re.sub(r"\d+\.\d{3,}", lambda n: f"{float(n[0]):.2f}", tag[0]), drawing)
    return _own_ids(_root(re.sub(r"\n\s*", "\n", drawing), alt))


def shorten(label: str, length: int = 28) -> str:
    """A label that leaves room for the picture."""
    label = " ".join(label.split())
    return label if len(label) <= length else label[: length - 1].rstrip() + "…"


def legend(figure: Figure, entries: Mapping[str, Look | Line2D | Any], columns: int = 4) -> None:
    """One row of names above the axes."""
    handles = [_handle(entry) for entry in entries.values()]
    box = figure.legend(handles, ["."] * len(handles), loc="outside upper left", ncols=columns, handlelength=1.6)
    for text, name in zip(box.get_texts(), entries, strict=True):
        text.set_text(shorten(name))  # set afterwards: legends drop a label that begins with "_"


def label_ends(figure: Figure, ends: Mapping[str, tuple[float, str]], axes: Axes) -> None:
    """Name each curve at its right end, moved apart where names would overlap."""
    if not ends:
        return
    figure.draw_without_rendering()
    bottom, top = axes.get_ylim()
    gap = 11.5 / (axes.get_window_extent().height * 72 / figure.dpi)
    names = sorted(ends, key=lambda name: ends[name][0])
    heights = [min(max((ends[name][0] - bottom) / (top - bottom), 0.0), 1.0) for name in names]
    for name, height, place in zip(names, heights, spread(heights, gap), strict=True):
        value, colour = ends[name]
        arrow = " ↑" if value > top else ""
        axes.plot([1.005, 1.03], [height, place], color=colour, lw=0.7, transform=axes.transAxes, clip_on=False)
        axes.annotate(
            shorten(name) + arrow, (1.035, place), xycoords="axes fraction", va="center", color=colour, fontsize=8.5
        )


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """The places nearest to sorted `heights` that are at least `gap` apart.

    >>> [round(place, 2) for place in spread([0.1, 0.1, 0.9], 0.2)]
    [0.0, 0.2, 0.9]
    """
    clusters: list[tuple[float, int]] = []  # (mean of height - own offset, size): isotonic regression
    for i, height in enumerate(heights):
        centre, size = height - i * gap, 1
        while clusters and clusters[-1][0] >= centre:
            other, count = clusters.pop()
            centre = (centre * size + other * count) / (size + count)
            size += count
        clusters.append((centre, size))
    shifts = [centre for centre, size in clusters for _ in range(size)]
    return [shift + i * gap for i, shift in enumerate(shifts)]


def _handle(entry: Any) -> Any:
    if isinstance(entry, Look):
        return Line2D([], [], color=entry.colour, marker=entry.marker, linestyle=entry.dash)
    return entry


def _root(drawing: str, alt: str) -> str:
    """Scalable, named for screen readers, and with the line joins that matplotlib's removed style sheet asked for."""
    tag = drawing[: drawing.index(">") + 1]
    box = re.search(r'viewBox="([^"]+)"', tag)
    width = re.search(r'width="([\d.]+)pt"', tag)
    assert box and width, "matplotlib no longer writes viewBox and width"
    root = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{box[1]}"'
        f' width="{float(width[1]) * 4 / 3:.0f}" role="img" aria-label="{html.escape(alt)}"'
        ' style="stroke-linejoin:round;stroke-linecap:butt">'
    )
    return root + drawing[len(tag) :]


def _own_ids(drawing: str) -> str:
    """Drop the ids that nothing points to and make the others unlike those of any other drawing."""
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', drawing))
    prefix = "w" + hashlib.sha256(drawing.encode()).hexdigest()[:8]
    drawing = re.sub(r' id="([^"]+)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in used else "", drawing)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", drawing)


def styled(names: Iterable[str], style: Mapping[str, Look] | None) -> dict[str, Look]:
    """The caller's looks, and the house's for the names it left out."""
    wanted = list(names)
    return {**looks(wanted), **{name: look for name, look in (style or {}).items() if name in wanted}}
