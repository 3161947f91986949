"""Sphinx configuration. Nothing here needs a network."""

from __future__ import annotations

import re
import sys
from itertools import groupby
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent / "src")]

import figures  # noqa: E402
import tables  # noqa: E402

import warmstart  # noqa: E402

tables.write(DOCS.parent / "results", DOCS / "_generated")
figures.write(DOCS.parent / "results", DOCS / "_generated")

project = "warmstart"
author = "The warmstart authors"
copyright = f"2026, {author}"
version = release = warmstart.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "_generated"]
html_theme = "furo"
html_title = f"warmstart {release}"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"


def plain(app, what, name, obj, options, lines):
    """Docstrings are plain text with `code`, indented equations and doctests: have Sphinx read them so."""
    out = []
    for block in re.split(r"\n(?=\n)", "\n".join(lines)):
        out += ["", *paragraph(block.strip("\n").splitlines())]
    lines[:] = out


def paragraph(block):
    """Runs of indented lines become literal blocks; elsewhere only `code` means anything."""
    if block and block[0].startswith(">>>"):
        return block
    out = []
    for indented, lines in groupby(block, key=lambda line: line.startswith(" ")):
        run = list(lines)
        out += ["", "::", "", *run, ""] if indented else [code(line) for line in run]
    return out


def code(line):
    """`x` becomes ``x``; all else stands for itself."""
    parts = re.split(r"(`+[^`]+`+)", line)
    return "".join(f"``{p.strip('`')}``" if p.startswith("`") else re.sub(r"([*|_\\`])", r"\\\1", p) for p in parts)


def skip(app, what, name, obj, skip, options):
    """Fields of named tuples carry no docstring of their own."""
    return True if (getattr(obj, "__doc__", None) or "").startswith("Alias for field number") else None


def setup(app):
    app.connect("autodoc-process-docstring", plain)
    app.connect("autodoc-skip-member", skip)
