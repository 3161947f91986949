import re
import xml.etree.ElementTree as ElementTree

import matplotlib as mpl
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from warmstart.metrics.calibration import Reliability
from warmstart.report import Interval, make_row
from warmstart.report.chances import chances
from warmstart.report.figures import (
    Adaptation,
    Curve,
    adaptations,
    calibration,
    curves,
    error_curves,
    group_bars,
    learning_curve,
    ranking,
    reliability,
    scatters,
)
from warmstart.report.spreads import points, split_histograms, violins
from warmstart.report.svg import COLOURS, GREYS, MUTED, looks, spread

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = ['"><b>', "<script>1</script>", "$\\frac{x$", "_hidden", "数量", "a & \"b\" 'c'"]


def texts(svg):
    return ["".join(node.itertext()) for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def lines(svg, colour):
    """The points of every polyline that is stroked in this colour."""
    styled = [
        node.get("d")
        for node in ElementTree.fromstring(svg).iter(f"{SVG}path")
        if f"stroke: {colour}" in (node.get("style") or "") and "fill: none" in (node.get("style") or "")
    ]
    return [np.array(re.findall(r"[ML] (-?[\d.]+) (-?[\d.]+)", path), dtype=float) for path in styled]


def boxes(svg, colour):
    """The corners of every bar that is filled with this colour."""
    return [
        np.array(re.findall(r"[ML] (-?[\d.]+) (-?[\d.]+)", node.get("d")), dtype=float)
        for node in ElementTree.fromstring(svg).iter(f"{SVG}path")
        if f"fill: {colour}" in (node.get("style") or "") and node.get("clip-path")
    ]


def example_curves():
    rows = [make_row("maml", {"support": k}, "mse", {0: [e, e + 0.1]}) for k, e in ((5, 0.4), (0, 0.9), (20, 0.1))]
    rows += [make_row("mean", {"support": k}, "mse", {0: 1.0}) for k in (0, 5, 20)]
    return curves([*rows, make_row("maml", {"support": 0}, "nll", {0: 7.0})], "mse")


LINE = Curve([0, 1, 5], [3.0, 2.0, 1.0], [2.5, 1.5, 0.5], [3.5, 2.5, 1.5])
TASK = Adaptation("", [0, 1, 2], [1, 2, 1], [0.5], [1.5], Curve([0, 2], [0, 0]), Curve([0, 2], [1, 1], [0, 0], [2, 2]))
PAIR = ([0.0, 1.0], [0.5, 0.5])
BARS = [Interval(1, 0, 2), Interval(2, 1, 3)]
BINS = Reliability(*map(np.array, ([np.nan, 0.4, 0.6, 0.9], [np.nan, 0.3, 0.7, 0.8], [0.0, 10.0, 30.0, 60.0])))
FIGURES = {
    "error_curves": lambda a, b: error_curves({a: LINE, b: LINE}, optimum=LINE, floor=0.5, x_label=a, y_label=b),
    "group_bars": lambda a, b: group_bars([a, b], {a: BARS, b: BARS}, x_label=a, y_label=b),
    "adaptations": lambda a, b: adaptations([TASK._replace(title=name) for name in (a, b)], x_label=a, y_label=b),
    "scatters": lambda a, b: scatters({a: {b: PAIR, a: PAIR}, b: {a: PAIR}}, unit=a),
    "chances": lambda a, b: chances({a: {b: [[0.1, 0.9]], a: [[0.5, 0.5]]}, b: {a: [[0.2, 0.3]]}}, [0, 5]),
    "calibration": lambda a, b: calibration([0.5, 0.9], {a: [0.4, 0.8], b: [0.6, 0.95]}),
    "reliability": lambda a, b: reliability({a: BINS, b: BINS}),
    "learning_curve": lambda a, b: learning_curve({a: LINE, b: LINE}, chosen=1, x_label=a, y_label=b),
}


def test_curves_gather_one_metric_in_order():
    maml = example_curves()["maml"]
    assert list(maml.x) == [0, 5, 20] and maml.mean == pytest.approx((0.95, 0.45, 0.15))
    assert maml.high[0] - maml.mean[0] == pytest.approx(12.7062 * 0.05, rel=1e-4)  # t with one degree of freedom


def test_a_curve_is_drawn_where_its_numbers_are():
    drawn = error_curves(example_curves(), floor=0.05, y_label="mse")
    (maml,) = [path for path in lines(drawn, COLOURS[0]) if len(path) == 3]
    (mean,) = [path for path in lines(drawn, COLOURS[1]) if len(path) == 3]
    x, y = maml.T
    assert (x[1] - x[0]) / (x[2] - x[0]) == pytest.approx(np.log(6) / np.log(21), abs=2e-3)
    unit = (y[2] - mean[0, 1]) / (1.0 - 0.15)  # svg units for one unit of error, downwards
    assert (y - mean[:, 1]) / unit == pytest.approx([0.05, 0.55, 0.85], abs=2e-3)


def test_curves_name_what_they_show():
    drawn = texts(
        error_curves(example_curves(), optimum=Curve([0, 20], [0.3, 0.1]), floor=0.05, y_label="relative mse")
    )
    assert {"maml", "mean", "optimum", "noise floor", "relative mse", "support samples", "0", "5", "20"} <= set(drawn)


def test_a_method_far_off_does_not_flatten_the_others():
    near = {f"near {i}": Curve([0, 1], [1.0 + i, 0.5]) for i in range(3)}
    drawn = error_curves({**near, "far": Curve([0, 1], [900.0, 800.0])})
    assert "far ↑" in texts(drawn)
    (path,) = [path for path in lines(drawn, COLOURS[0]) if len(path) == 2 and path[0, 1] != path[1, 1]][:1]
    assert abs(path[0, 1] - path[1, 1]) > 15


def test_bars_are_as_tall_as_their_means():
    drawn = group_bars(["few", "many"], {"m": [Interval(1.0, 0.5, 1.5), Interval(3.0, 2.0, 4.0)]}, y_label="mse")
    heights = [np.ptp(box[:, 1]) for box in boxes(drawn, COLOURS[0])]
    assert len(heights) == 2 and heights[1] / heights[0] == pytest.approx(3.0, rel=1e-2)
    assert {"few", "many", "m", "mse"} <= set(texts(drawn))


def test_chances_join_each_row_before_and_after():
    rows = {"yes": [[0.2, 0.8], [0.4, 0.6]], "no": [[0.5, 0.1]]}
    drawn = chances({"user 7": rows, "user 8": {"no": [[0.3, 0.7]]}}, [0, 5])
    yes, no = ([path for path in lines(drawn, colour) if len(path) == 2] for colour in COLOURS[:2])
    moved = [path[0, 1] - path[1, 1] for path in (*yes[:2], *no[:2])]  # upwards, in svg units
    assert np.array(moved) / moved[0] == pytest.approx(np.array([0.6, 0.2, -0.4, 0.4]) / 0.6, abs=1e-2)
    told = texts(drawn)
    assert {"user 7", "user 8", "mean 0.37 → 0.50", "mean 0.30 → 0.70", "yes", "no", "0", "5"} <= set(told)


def test_chances_of_many_classes_share_what_colours_are_left():
    drawn = chances({"t": {f"class {i}": [[0.1, 0.2]] for i in range(9)}}, [0, 5])
    named = [text for text in texts(drawn) if "class" in text and "true" not in text]
    assert named == [*(f"class {i}" for i in range(5)), "other classes"]
    assert len([path for path in lines(drawn, MUTED) if len(path) == 2]) >= 4


def test_scatters_tell_the_error_of_each_panel():
    drawn = texts(scatters({"user 7": {"0 samples": ([0.0, 0.0], [3.0, 4.0]), "5 samples": ([1.0, 2.0], [1.0, 2.0])}}))
    assert {"0 samples", "5 samples", f"RMSE {np.sqrt(12.5):.3g}", "RMSE 0", "true"} <= set(drawn)
    assert "user 7" in " ".join(drawn)


def test_an_interval_is_promised_only_where_one_is_drawn():
    bare = TASK._replace(after=Curve([0, 2], [1, 1]))
    assert "after, 95 % interval" in texts(adaptations([TASK]))
    assert "after, 95 % interval" not in texts(adaptations([bare])) and "after the samples" in texts(
        adaptations([bare])
    )


def test_reliability_is_drawn_where_its_numbers_are():
    drawn = reliability({"m": BINS})
    (path,) = [path for path in lines(drawn, COLOURS[0]) if len(path) == 3 and np.ptp(path[:, 1])]
    (diagonal,) = [path for path in lines(drawn, MUTED) if len(path) == 2 and (path[0] != path[1]).all()]
    side = diagonal[1] - diagonal[0]  # svg units from 0 to 1; y runs downwards
    assert side[0] == pytest.approx(-side[1], rel=1e-3)
    assert (path - diagonal[0]) / side == pytest.approx(np.array([[0.4, 0.3], [0.6, 0.7], [0.9, 0.8]]), abs=2e-3)
    heights = [np.ptp(box[:, 1]) for box in boxes(drawn, COLOURS[0])]
    assert np.array(heights) / heights[-1] == pytest.approx([0, 1 / 6, 1 / 2, 1], abs=2e-2)
    assert {"accuracy", "confidence", "rows", "m", "100%"} <= set(texts(drawn))


def test_reliability_of_probabilities_that_are_torch_tensors_or_empty():
    found = Reliability(*map(torch.from_numpy, BINS))
    assert reliability({"m": found}) == reliability({"m": BINS})
    nothing = Reliability(np.full(4, np.nan), np.full(4, np.nan), np.zeros(4))
    assert "m" in texts(reliability({"m": nothing})) and "confidence" in texts(reliability({}))


def test_the_chosen_step_is_told():
    assert "kept: 300" in texts(learning_curve({"validation": Curve([0, 300, 600], [3.0, 1.0, 2.0])}, chosen=300))


@pytest.mark.parametrize("kind", FIGURES)
def test_any_name_is_shown_as_it_is(kind):
    for a, b in zip(HOSTILE[::2], HOSTILE[1::2], strict=True):
        drawn = FIGURES[kind](a, b)
        assert "<script" not in drawn
        shown = " ".join(texts(drawn))
        assert a in shown and b in shown


@pytest.mark.parametrize("kind", FIGURES)
def test_a_drawing_can_stand_on_a_page(kind):
    settings = dict(mpl.rcParams)
    drawn = FIGURES[kind]("a", "b")
    other = FIGURES[kind]("a", "c")
    assert dict(mpl.rcParams) == settings
    root = ElementTree.fromstring(drawn)
    assert root.tag == f"{SVG}svg" and root.get("role") == "img" and len(root.get("aria-label")) > 10
    assert root.find(f"{SVG}metadata") is None and "<style" not in drawn
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', drawn))
    named = re.findall(r' id="([^"]+)"', drawn)
    assert used == set(named) and len(named) == len(set(named))
    assert not set(named) & set(re.findall(r' id="([^"]+)"', other))
    assert drawn == FIGURES[kind]("a", "b")  # the same numbers give the same file


def test_baselines_are_grey_and_looks_differ():
    names = [f"m{i}" for i in range(12)] + ["b1", "b2"]
    chosen = looks(names, baselines=["b1", "b2"])
    assert {chosen["b1"].colour, chosen["b2"].colour} <= set(GREYS)
    assert all(chosen[name].colour in COLOURS for name in names[:12])
    assert len(set(map(str, chosen.values()))) == 14


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.01, 0.3))
def test_labels_move_apart_as_little_as_possible(heights, gap):
    heights = sorted(heights)
    offsets = gap * np.arange(len(heights))
    nearest = IsotonicRegression().fit_transform(offsets, np.array(heights) - offsets) + offsets
    assert spread(heights, gap) == pytest.approx(nearest, abs=1e-9)


def test_violins_show_quartiles_and_leave_the_tail_out():
    svg = violins({"a": np.linspace(0, 1, 101), "b": [*np.full(30, 0.5), np.nan, 100.0], "alone": [1.0]}, y_label="MSE")
    assert "b" in texts(svg) and "alone" not in texts(svg)
    (quartiles,) = lines(svg, COLOURS[0])
    top, bottom = quartiles[:, 1].min(), quartiles[:, 1].max()
    numbers = [float(text) for text in texts(svg) if re.fullmatch(r"[\d.]+", text)]
    assert max(numbers) <= 1.0 and bottom - top > 20


def test_histograms_of_groups_share_their_bins_and_add_up():
    svg = split_histograms({"one": {"major": [0.1, 0.1, 0.3], "minor": [0.2]}, "flat": {"major": [0.5, 0.5]}}, "rate")
    assert {"one", "flat", "major", "minor", "rate"} <= set(texts(svg))
    assert svg.count("NaN") == 0 and f"fill: {COLOURS[1]}" in svg


@pytest.mark.parametrize("name", HOSTILE)
def test_points_of_groups_with_any_name(name):
    svg = points({name: np.zeros((3, 2)), "other": [[1.0, 2.0]]}, name)
    assert "other" in texts(svg)
    ElementTree.fromstring(svg)


def test_a_ranking_has_a_line_for_each_name_the_lowest_first():
    low, high = [0.1, -0.2, 0.2], [0.3, 0.0, 0.4]
    drawing = ranking(["bb", "aa", "cc"], [0.2, -0.1, 0.3], low, high, [False, True, False], "effect")
    assert "Ranked coefficients of 3 sources" in drawing
    places = [drawing.index(name) for name in ("aa<", "bb<", "cc<")]
    assert places == sorted(places)
