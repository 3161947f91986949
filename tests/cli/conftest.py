"""A small table, a model fitted on it by the command itself, and a way to run commands in this process."""

import contextlib
import io
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from warmstart.cli import run

FAST = ("--steps", "20", "--every", "10", "--tasks", "8", "--support", "4", "--query", "3", "--trials", "1")


def make_rows(tasks=30, rows=8, seed=0):
    """y = a_t x + b_t + (colour red); the task table holds b_t and a town."""
    draw = np.random.default_rng(seed)
    slope, offset = draw.normal(size=(2, tasks))
    names = np.repeat([f"u{i:02d}" for i in range(tasks)], rows)
    x = draw.normal(size=tasks * rows).round(4)
    colour = draw.choice(["red", "blue"], tasks * rows)
    y = np.repeat(slope, rows) * x + np.repeat(offset, rows) + (colour == "red")
    table = pd.DataFrame({"user": names, "x": x, "colour": colour, "y": y.round(4)})
    about = pd.DataFrame(
        {"user": table["user"].unique(), "hint": offset.round(3), "town": draw.choice(["oslo", "rome"], tasks)}
    )
    return table, about


def call(arguments):
    """Exit code, standard output and standard error of one command."""
    out, err, kept = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["warmstart", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run([str(argument) for argument in arguments])
    finally:
        sys.argv = kept
    return SimpleNamespace(code=code, out=out.getvalue(), err=err.getvalue())


@pytest.fixture(scope="session")
def cli():
    return lambda *arguments: call(arguments)


@pytest.fixture(scope="session")
def fast():
    """Options of a fit that ends in a second."""
    return FAST


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """rows.csv, tasks.csv, the rows of two tasks that no model has seen, and a model: not to be written to."""
    folder = tmp_path_factory.mktemp("home")
    table, about = make_rows()
    new = table["user"].isin(["u28", "u29"])
    table[~new].to_csv(folder / "rows.csv", index=False)
    about.to_csv(folder / "tasks.csv", index=False)
    support = table[new].groupby("user").head(5)
    support.to_csv(folder / "support.csv", index=False)
    table[new].drop(support.index).drop(columns="y").to_csv(folder / "query.csv", index=False)
    line = ["fit", folder / "rows.csv", "--task", "user", "--target", "y", "--task-table", folder / "tasks.csv"]
    done = call([*line, "--method", "maml", *FAST, "-o", folder / "model"])
    assert done.code == 0, done.err
    return folder


@pytest.fixture
def model(home, tmp_path):
    """A copy of the model that a test may spoil."""
    return shutil.copytree(home / "model", tmp_path / "model")
