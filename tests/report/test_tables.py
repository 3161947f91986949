import io

import pytest
from rich.console import Console

from warmstart.core import InputError
from warmstart.report import Column, make_results, make_row, markdown, plain, table
from warmstart.report.console import print_table, progress


def results(*rows):
    return make_results("sine", "quick", "cpu", "warmstart study sine", rows)


def example():
    return results(
        make_row("maml", {"shot": 1}, "mse", {0: 0.5, 1: 0.75}),
        make_row("maml", {"shot": 5}, "mse", {0: 0.25}),
        make_row("mean", {"shot": 1}, "mse", {0: 1.0, 1: 2.0}),
        make_row("bayes", {"shot": 1}, "mse", {0: 0.1}),
        make_row("bayes", {"shot": 5}, "mse", {0: 0.05}),
        make_row("mean", {"shot": 5}, "mse", {0: float("nan")}),
    )


def texts(content):
    return {line.label: [cell.text for cell in line.cells] for line in content.lines}


def test_cells_without_results_say_so():
    content = table(example(), rows={"maml": "MAML", "anil": "ANIL", "mean": "Mean"})
    assert content.head == ("method", "shot 1", "shot 5")
    assert texts(content) == {
        "MAML": ["0.62", "0.25"],
        "ANIL": ["not run", "not run"],
        "Mean": ["1.50", "not finite"],
    }


def test_the_margin_is_half_the_interval():
    row = make_row("m", {}, "mse", {0: [1.0, 2.0, 6.0]})
    content = table(results(row), columns=[Column("error", "mse", digits=4)])
    assert content.lines[0].cells[0].margin == f"{(row.high - row.low) / 2:.4f}" == "6.5724"


def test_what_is_small_keeps_two_digits():
    small = make_row("m", {}, "mse", {0: [0.00061, 0.00063], 1: [0.00065, 0.00067]})
    cell = table(results(small, make_row("n", {}, "mse", {0: 4.25}))).lines[0].cells[0]
    assert cell.text == "0.00064" and float(cell.margin) == pytest.approx((small.high - small.low) / 2, abs=5e-6)
    vague = make_row("m", {}, "mse", {0: [-0.5, 0.0, 0.5004]})
    assert table(results(vague), columns=[Column("error", "mse", digits=1)]).lines[0].cells[0] == ("0.0", "1.2", False)


def test_a_reference_cannot_win_but_a_baseline_can():
    shots = [Column("1", "mse", {"shot": 1}, better="lower"), Column("5", "mse", {"shot": 5}, better="lower")]
    content = table(example(), columns=shots, references=["bayes"], baselines=["mean"])
    assert [(line.label, line.kind, line.best, line.cells[0].best) for line in content.lines] == [
        ("maml", "method", True, True),
        ("mean", "baseline", False, False),
        ("bayes", "reference", False, False),
    ]
    assert not any(line.cells[1].best for line in content.lines)  # its only rival diverged
    upside_down = table(example(), columns=[shots[0]._replace(better="higher")], baselines=["mean"])
    assert [line.label for line in upside_down.lines if line.best] == ["mean"]


def test_nothing_is_best_when_no_direction_is_given():
    assert not any(cell.best for line in table(example()).lines for cell in line.cells)
    assert [cell.best for cell in table(example(), better={"mse": "lower"}).lines[1].cells] == [False, False]


def test_an_ambiguous_column_is_refused():
    with pytest.raises(InputError, match=r"one result of maml for column 'error'.*'shot': 1.* and .*'shot': 5"):
        table(example(), columns=[Column("error", "mse")])


def test_a_row_of_just_the_setting_comes_before_one_of_more():
    content = results(
        make_row("m", {"set": "a"}, "mse", {0: 1.0}), make_row("m", {"set": "a", "texts": "b"}, "mse", {0: 2.0})
    )
    assert texts(table(content)) == {"m": ["1.00", "2.00"]}
    assert texts(table(content, columns=[Column("b", "mse", {"texts": "b"}, 2)])) == {"m": ["2.00"]}


def test_columns_made_alone_tell_apart_what_differs():
    content = results(
        make_row("m", {"way": 5, "shot": 1}, "accuracy", {0: 97.125}, unit="%"),
        make_row("m", {"way": 5, "shot": 1}, "seconds", {0: 0.001234}, unit="s"),
        make_row("m", {"way": 5, "shot": 5}, "accuracy", {0: 99.0}, unit="%"),
    )
    made = table(content)
    assert made.head[1:] == ("accuracy (%), shot 1", "seconds (s), shot 1", "accuracy (%), shot 5")
    assert texts(made) == {"m": ["97.1", "0.00123", "99.0"]}


def test_markdown_shows_every_character():
    content = table(results(make_row("a|b*c_", {}, "mse", {0: 1.0}), make_row("z", {}, "mse", {0: 2.0, 1: 2.0})))
    assert markdown(content).splitlines() == [
        "| method | mse |",
        "| --- | ---: |",
        r"| a\|b\*c\_ | 1.00 |",
        "| z | 2.00 ± 0.00 |",
    ]
    winners = table(example(), rows=["maml", "mean"], columns=[Column("e", "mse", {"shot": 1}, 1, "lower")])
    assert "| maml | **0.6 ± 1.6** |" in markdown(winners)


def printed(content):
    console = Console(width=100, file=io.StringIO())
    print_table(content, console)
    return console.file.getvalue()


def test_the_terminal_shows_names_that_look_like_markup():
    shown = printed(plain(["[bold]source", "helps"], [["[red]x[/red]", "yes"], ["y", "[/]"]], caption="[link]"))
    assert all(text in shown for text in ("[bold]source", "[red]x[/red]", "[/]", "[link]"))


def test_the_terminal_shows_the_same_cells():
    shown = printed(table(example(), baselines=["mean"]))
    assert "mean (baseline)" in shown and "not finite" in shown and "0.62 ±1.59" in shown


def test_progress_speaks_on_its_console_only(capsys):
    console = Console(width=100, force_terminal=True, record=True, stderr=True)
    with progress("fit [x]", console) as report:
        report(3, 8, "loss 0.5")
        report(8, 8, "loss [0.25]")
    drawn = console.export_text()
    assert "fit [x]" in drawn and "8/8" in drawn and "loss [0.25]" in drawn
    assert capsys.readouterr().out == ""


def test_quiet_progress_is_silent(capsys):
    with progress("fit", quiet=True) as report:
        report(1, 2, "loss 0.5")
    assert capsys.readouterr() == ("", "")
