import errno
import os
import re
from functools import cache
from html.parser import HTMLParser

import pytest

from warmstart.core import InputError
from warmstart.report import Column, make_results, make_row, plain, table
from warmstart.report.figures import Curve, error_curves, learning_curve
from warmstart.report.page import Section, how_it_was_run, write_page

HOSTILE = '<script>alert("x")</script>'
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Reader(HTMLParser):
    """Checks that tags close in order, and keeps what was seen."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words, self.ids = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.ids += [value for key, value in attributes if key == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(" ".join(data.split()))

    def count(self, tag):
        return sum(name == tag for name, _ in self.tags)


@cache
def example(name="maml"):
    results = make_results(
        "sine",
        "quick",
        "cpu",
        f"warmstart study sine --only {name}",
        [
            make_row(name, {"shot": 1}, "mse", {3: [0.2, 0.4], 4: [0.3, 0.5]}),
            make_row("mean", {"shot": 1}, "mse", {3: [1.0, 2.0]}),
        ],
    )
    columns = [Column(f"{k} shot", "mse", {"shot": k}, better="lower") for k in (1, 5)]
    content = table(results, columns=columns, baselines=["mean"], caption=f"Errors of {name}")
    line = Curve([0, 1, 5], [3.0, 2.0, 1.0], [2.5, 1.5, 0.5], [3.5, 2.5, 1.5])
    sections = [
        Section(f"Table of {name}", f"First {name}.\n\nSecond.", content),
        Section(f"Figure of {name}", "", None, error_curves({name: line}), f"Caption of {name}"),
        Section("", "More.", plain(["source", "helps"], [[name, "yes"]]), learning_curve({name: line})),
    ]
    return results, sections


def write(tmp_path, name="maml", **changes):
    results, sections = example(name)
    given = {"title": f"Title {name}", "verdict": f"{name} wins.", **changes}
    write_page(tmp_path / "page.html", sections, how_it_was_run=how_it_was_run(results, {"fit": 75.2}), **given)
    return (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_page_is_whole_and_balanced(tmp_path):
    text = write(tmp_path)
    page = Reader(text)
    assert text.startswith("<!DOCTYPE html>") and page.open == []
    assert page.count("h1") == 1 and page.count("svg") == 2 and page.count("table") == 2
    assert ("html", {"lang": "en"}) in page.tags
    for words in ("Title maml", "maml wins.", "First maml.", "Second.", "Caption of maml", "not run", "baseline"):
        assert words in page.words
    assert len(page.ids) == len(set(page.ids))


def test_the_page_fetches_nothing(tmp_path):
    text = write(tmp_path)
    assert not re.search(r"https?://|//[a-z]", re.sub(r'xmlns(:\w+)?="[^"]*"', "", text))
    page = Reader(text)
    assert page.count("script") == 0 and "@import" not in text
    links = [value for _, attributes in page.tags for key, value in attributes.items() if key in ("src", "href")]
    assert all(link == "data:," or link.startswith("#") for link in links)


def test_every_text_is_escaped(tmp_path):
    page = Reader(write(tmp_path, HOSTILE))
    assert page.count("script") == 0 and page.open == []
    assert "".join(page.words).count(HOSTILE) >= 9


def test_best_and_baseline_rows_are_marked(tmp_path):
    page = Reader(write(tmp_path))
    rows = [attributes["class"] for tag, attributes in page.tags if tag == "tr" and "class" in attributes]
    assert rows == ["method best", "baseline", "method"]
    assert page.count("strong") == 1 and "± is half the width of a 95 % interval." in " ".join(page.words)


def test_readers_without_eyes_get_names(tmp_path):
    page = Reader(write(tmp_path))
    drawings = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert all(attributes["role"] == "img" and "maml" in attributes["aria-label"] for attributes in drawings)
    heads = [attributes for tag, attributes in page.tags if tag == "th"]
    assert all(attributes["scope"] in ("row", "col") for attributes in heads)
    regions = [attributes["aria-label"] for _, attributes in page.tags if attributes.get("role") == "region"]
    assert regions == ["Errors of maml", "Table"]


def test_how_it_was_run_tells_everything(tmp_path):
    results, _ = example()
    told = how_it_was_run(results, {"fit": 75.2, "tune": 610.0, "predict": 0.0421, "study": 9000.0})
    assert told["Seeds"] == "3, 4" and told["Device"] == "cpu" and told["Date"] == results.date
    assert told["Durations"] == "fit 75 s, tune 10 min, predict 0.042 s, study 2.5 h"
    assert all(f"{name} {version}" in told["Versions"] for name, version in results.versions.items())
    words = Reader(write(tmp_path)).words
    assert "warmstart study sine --only maml" in words and "How it was run" in words


def test_a_command_with_a_file_name_that_is_not_text(tmp_path):
    write_page(tmp_path / "p.html", [], "Odd", {"Command": "warmstart fit caf\udce9.csv"})
    assert r"warmstart fit caf\udce9.csv" in (tmp_path / "p.html").read_text(encoding="utf-8")


def test_an_empty_page_is_still_a_page(tmp_path):
    write_page(tmp_path / "p.html", [], "Nothing", {})
    page = Reader((tmp_path / "p.html").read_text())
    assert page.open == [] and page.count("section") == 0 and page.count("dl") == 0


def test_a_full_disk_keeps_the_old_page(tmp_path, monkeypatch):
    before = write(tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="No space left"):
        write(tmp_path, "anil")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == before
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
