"""The documentation's figures are drawn from the result files."""

from pathlib import Path

import pytest

from warmstart.report import make_row

ROOT = Path(__file__).parents[2]


def test_every_figure_is_drawn_and_shown(figures, tmp_path):
    figures.write(ROOT / "results", tmp_path)
    page = (ROOT / "docs/figures.md").read_text(encoding="utf-8")
    for name, figure in figures.FIGURES.items():
        drawn = (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
        assert drawn.startswith("<svg") and all(method in drawn for method in figure.methods)
        assert f"(_generated/{name}.svg)" in page
    assert page.count("_generated/") == len(figures.FIGURES)


def test_a_figure_has_the_rows_of_its_setting_and_no_method_is_missing(figures):
    figure = figures.Figure("sine", "MSE", "steps", ("maml", "anil"), {"family": "default"})
    rows = [
        make_row(method, {"family": family, "steps": steps}, "MSE", {0: value})
        for method, family, steps, value in (
            *(("maml", "default", 1, 2.0), ("maml", "default", 5, 1.0), ("maml", "other", 99, 50.0)),
            *(("anil", "default", 1, 3.0), ("anil", "default", 5, 2.0), ("reptile", "default", 5, 2.0)),
        )
    ]
    drawn = figures.draw(figure, rows)
    assert "for maml, anil" in drawn and ">5<" in drawn
    assert ">99<" not in drawn and "reptile" not in drawn
    with pytest.raises(KeyError, match="anil"):
        figures.draw(figure, [row for row in rows if row.method != "anil"])
