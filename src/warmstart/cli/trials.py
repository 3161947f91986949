"""What a search has tried, as a document and as a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warmstart.report import Table
    from warmstart.training.search import Trial


def trials_document(tried: Mapping[str, Sequence[Trial]]) -> dict[str, Any]:
    return {
        name: [{"settings": dataclasses.asdict(trial.config), "error": trial.value} for trial in trials]
        for name, trials in tried.items()
    }


def table_of_trials(
    tried: Mapping[str, Sequence[Trial]], spaces: Mapping[str, Mapping[str, Any]], error: str = "error"
) -> Table:
    """A method's best trial: what a search may change of it."""
    from warmstart.report import plain

    lines = []
    for name, trials in tried.items():
        settings = ", ".join(f"{key}={getattr(trials[0].config, key)}" for key in spaces[name])
        lines.append([name, str(len(trials)), f"{trials[0].value:.4g}", settings])
    return plain(["method", "trials", f"best {error}", "with"], lines)
