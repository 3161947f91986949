"""Rules that no linter knows: sizes, refused words, and that every method has its page."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
CODE = sorted(path for folder in ("src", "tests", "docs") for path in (ROOT / folder).rglob("*.py"))
METHODS = sorted(path.stem for path in (ROOT / "src/warmstart/learners").glob("*.py") if path.stem != "__init__")
LONGEST = 400


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def test_no_file_is_too_long_to_read_at_a_sitting():
    long = {str(path.relative_to(ROOT)): n for path in CODE if (n := len(read(path).splitlines())) > LONGEST}
    assert long == {}


def test_no_module_is_called_utils():
    refused = {"utils", "util", "helpers", "misc", "common"}
    assert [str(path.relative_to(ROOT)) for path in CODE if refused & {path.stem, path.parent.name}] == []


def unsafe(tree):
    """Imports of pickling modules and calls of torch.load or allow_pickle=True: they run code from files."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        if {name.split(".")[0] for name in names} & {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}:
            yield node.lineno
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "torch.save"):
            yield node.lineno
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) == "True":
            yield node.value.lineno


@pytest.mark.parametrize(
    "line",
    ["import pickle", "from joblib import load", "torch.load(path)", "np.load(path, allow_pickle=True)"],
)
def test_unsafe_finds_what_runs_code_from_files(line):
    assert list(unsafe(ast.parse(line))) == [1]


def test_no_source_reads_or_writes_pickles():
    found = [f"{path.relative_to(ROOT)}:{line}" for path in SOURCES for line in unsafe(ast.parse(read(path)))]
    assert found == []


def test_no_module_loads_all_of_scipy_stats():
    """Which takes a second or two; scipy.special has the quantiles."""
    assert [
        str(path.relative_to(ROOT)) for path in SOURCES if re.search(r"^(from|import) scipy.stats", read(path), re.M)
    ] == []


def test_readme_names_the_two_commands():
    assert re.search(r"^make demo\b", read("README.md"), re.MULTILINE)
    assert re.search(r"^make test\b", read("README.md"), re.MULTILINE)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_to_files_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", read(page))
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_readme_links_every_method():
    assert [method for method in METHODS if f"docs/methods/{method}.md" not in read("README.md")] == []


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_page_with_its_deviations(method):
    page = read(f"docs/methods/{method}.md")
    assert re.search(r"^## Differs from the paper\n(?:.+\n|\n)*?1\. \S", page, re.MULTILINE)
    assert f"_generated/{method}.md" in page
    assert f"--method {method}" in page
    assert f"({method}.md)" in read("docs/methods/index.md")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_in_the_changelog(method):
    assert f"`{method}`" in read("CHANGELOG.md")


def test_constraints_pin_versions_and_name_no_place():
    lines = [line for line in read("constraints.txt").splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*", line)] == []
    assert "torch==2.13.0" in lines
