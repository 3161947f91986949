"""Studies and benchmarks: the modules of a package that can be run."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from types import ModuleType

from warmstart.cli.output import Voice


def runnable(package: ModuleType) -> dict[str, ModuleType]:
    """Name -> module, for those with a function `run`."""
    names = [part.name for part in pkgutil.iter_modules(package.__path__)]
    found = {name: importlib.import_module(f"{package.__name__}.{name}") for name in names}
    return {name: module for name, module in found.items() if callable(getattr(module, "run", None))}


def pick(found: dict[str, ModuleType], name: str | None, kind: str) -> ModuleType:
    from warmstart.core import InputError

    if name not in found:
        near = difflib.get_close_matches(name or "", found, 1)
        remedy = f"did you mean {near[0]}?" if near else f"see warmstart {kind} --list"
        raise InputError(f"a {kind} among {', '.join(found) or 'none'}", "no name" if name is None else name, remedy)
    return found[name]


def summaries(voice: Voice, found: dict[str, ModuleType], kind: str) -> None:
    """Print what there is."""
    from warmstart.report import plain

    about = {name: (inspect.getdoc(module) or "").partition("\n")[0] for name, module in found.items()}
    voice.document([{"name": name, "about": words} for name, words in about.items()])
    voice.show(plain([kind, "about"], [[name, words] for name, words in about.items()]))
