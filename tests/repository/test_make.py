"""`make install`: once, and again only when what is to be installed has changed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Stands in for python3: makes an environment whose python only notes down how it was called.
PYTHON = """#!/bin/sh
mkdir -p .venv/bin
printf '#!/bin/sh\\necho "$@" >> calls\\n' > .venv/bin/python
cp .venv/bin/python .venv/bin/pip
cp .venv/bin/python .venv/bin/warmstart
chmod +x .venv/bin/*
echo "$@" >> calls
"""


@pytest.fixture
def checkout(tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
        os.utime(tmp_path / name, (1, 1))
    fake = tmp_path / "fake-python"
    fake.write_text(PYTHON)
    fake.chmod(0o755)
    return tmp_path


def make(checkout, target):
    """What the commands behind `make target` were called with."""
    (checkout / "calls").unlink(missing_ok=True)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    subprocess.run(
        ["make", target, "PYTHON=./fake-python"], cwd=checkout, check=True, capture_output=True, env=variables
    )
    calls = checkout / "calls"
    return calls.read_text().splitlines() if calls.exists() else []


def test_first_call_creates_and_installs_then_runs(checkout):
    first, second, third = make(checkout, "demo")
    assert first == "-m venv .venv"
    assert second == "-m pip install -c constraints.txt -e .[dev,onnx,tensorboard,bench,boost,faiss,fairness,weak,ray]"
    assert third == "demo -o out/demo"


def test_second_call_does_not_install(checkout):
    make(checkout, "install")
    assert make(checkout, "install") == []
    assert make(checkout, "demo") == ["demo -o out/demo"]


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_a_change_installs_into_the_same_environment(checkout, changed):
    make(checkout, "install")
    os.utime(checkout / ".venv" / ".installed", (2, 2))
    os.utime(checkout / changed, (3, 3))
    (call,) = make(checkout, "install")
    assert call.startswith("-m pip install")
