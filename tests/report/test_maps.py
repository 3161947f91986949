"""Figures of a pool: every task and every function is there, and hostile names are only names."""

import xml.etree.ElementTree as ElementTree

import numpy as np

from warmstart.report.figures import Curve
from warmstart.report.maps import Banded, bands, task_map

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg):
    return ["".join(node.itertext()) for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_the_map_has_a_mark_for_every_task_and_a_star_for_a_new_one():
    places, values = np.random.default_rng(0).normal(size=(7, 2)), np.arange(7.0)
    plain = task_map(places, values, ("<b>a</b>", "b & c"), "error")
    starred = task_map(places, values, ("a", "b"), "error", [[0.0, 1.0]])
    assert "<b>a</b>" in texts(plain) and "b & c" in texts(plain) and "error" in texts(plain)
    assert "the new task" in texts(starred) and "the new task" not in texts(plain)
    assert plain.count("<use") >= 7 or plain.count("<path") >= 7


def test_bands_name_what_they_show():
    x = np.linspace(0, 1, 5)
    line = Curve(x, x, x - 1, x + 1)
    both = bands([Banded("one", line, x**2, [0.5], [0.5]), Banded("$two$", line)], "the model itself")
    assert {"one", "$two$", "predicted", "the model itself", "samples"} <= set(texts(both))
    alone = texts(bands([Banded("one", line)], "the model itself"))
    assert "the model itself" not in alone and "samples" not in alone
