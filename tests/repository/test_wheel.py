"""The wheel, in an environment that holds nothing but what the command line needs to say what it does."""

import importlib.metadata
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command, env=None):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def required(*names):
    """These distributions and, in turn, all they require without extras."""
    found, todo = {}, list(names)
    while todo:
        name = todo.pop()
        if name in found:
            continue
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:  # required on other platforms only
            continue
        needs = (need for need in found[name].requires or [] if "extra ==" not in need)
        todo += [re.match(r"[\w.-]+", need)[0] for need in needs]
    return found.values()


def link(distribution, site):
    """The top-level packages and modules of a distribution, linked rather than installed: no network."""
    for top in {file.parts[0] for file in distribution.files if ".." not in file.parts}:
        target = site / top
        if top != "__pycache__" and not target.exists():
            target.symlink_to(distribution.locate_file(top))


@pytest.fixture(scope="module")
def empty_environment(tmp_path_factory):
    """An environment with the wheel and the packages behind typer and rich: no torch, no numpy."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "dist", ROOT)
    (wheel,) = (folder / "dist").glob("*.whl")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps"]
    run(*pip, wheel)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    for distribution in required("typer", "rich"):
        link(distribution, site)
    return folder / "env" / "bin"


def clean():
    """The environment variables, less what could lead Python to the source tree."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}


def test_help_works_from_the_wheel_without_torch(empty_environment):
    text = run(empty_environment / "warmstart", "--help", env=clean())
    for verb in ("demo", "fit", "adapt", "evaluate", "export", "study", "bench", "data"):
        assert re.search(rf"\b{verb}\b", text), f"--help does not list {verb}"
    missing = subprocess.run([empty_environment / "python", "-c", "import torch"], capture_output=True, env=clean())
    assert missing.returncode != 0, "torch is importable, so the help could have imported it unnoticed"


def test_wheel_holds_the_version_of_the_source(empty_environment):
    line = "import warmstart, importlib.metadata as m; print(warmstart.__version__, m.version('warmstart'))"
    imported, installed = run(empty_environment / "python", "-c", line, env=clean()).split()
    assert imported == installed
    assert f'__version__ = "{installed}"' in (ROOT / "src/warmstart/__init__.py").read_text()
