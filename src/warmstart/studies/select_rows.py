"""What the studies of selection share: methods judged alike on test rows of the target, and their rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from warmstart.engine.files import read_json, write_json
from warmstart.estimators.source_methods import ALL, RANDOM, RANKED, TREES, TUNED, Session, fit_method
from warmstart.metrics.groups import worst_group
from warmstart.report import Row, differences, make_row
from warmstart.selection.final import Fitted
from warmstart.selection.measures import guess
from warmstart.tasks.transfer import Transfer

ACCURACY, WORST, VALIDATION = "accuracy", "worst group", "validation"
EXCLUDED, KEPT = "corrupted sources excluded", "clean sources kept"
MEAN = "mean"
BEST = "chosen by validation"
Score = dict[str, float]


def run_method(name: str, session: Session, corrupted: Tensor | None, kept: Path | None) -> Score:
    """Chosen on validation rows, judged on test rows; read back from `kept` where it was run before."""
    if kept is not None and kept.exists():
        score: Score = read_json(kept)
        return score
    fitted, told = fit_method(session, name)
    score = {VALIDATION: fitted.value} | judge(session.transfer, fitted) | told
    if corrupted is not None and name in RANKED:
        score |= recovered(fitted, corrupted)
    if kept is not None:
        write_json(kept, score)
    return score


def judge(transfer: Transfer, fitted: Fitted) -> Score:
    """Percent of test rows right, in all and in the worst group with enough rows."""
    test = transfer.test
    said = guess(fitted.outputs(test.x))
    right = float((said == test.y).double().mean())
    return {ACCURACY: 100 * right, WORST: 100 * float(worst_group(said, test.y, test.group))}


def recovered(fitted: Fitted, corrupted: Tensor) -> Score:
    members = fitted.members.bool()
    return {
        EXCLUDED: 100 * float((~members)[corrupted].double().mean()),
        KEPT: 100 * float(members[~corrupted].double().mean()),
    }


def rows_of(
    judged: Mapping[str, Mapping[tuple[int, str], Score]], peers: Mapping[tuple[str, str], str] = {}
) -> list[Row]:
    """Rows for each target and their mean; differences are paired by seed and target. Keys: seed, target.

    A method that ran on some targets only has no mean: it would not be that of the others.
    """
    rows: list[Row] = []
    targets = dict.fromkeys(target for scores in judged.values() for _, target in scores)
    for name, scores in judged.items():
        own_targets = dict.fromkeys(target for _, target in scores)
        for metric in dict.fromkeys(metric for score in scores.values() for metric in score if metric != VALIDATION):
            unit = "" if "Spearman" in metric else "%"
            peer = peers.get((name, metric), "")
            for target in own_targets:
                each = {seed: score[metric] for (seed, of), score in scores.items() if of == target}
                rows.append(make_row(name, {"target": target}, metric, each, unit))
            if len(own_targets) < len(targets):
                continue
            own = by_seed(scores, metric)
            rows.append(make_row(name, {"target": MEAN}, metric, own, unit, peer, fresh_tasks=True))
            for other in (ALL, TUNED, RANDOM, TREES):
                if metric in (ACCURACY, WORST) and other in judged and other != name:
                    apart = differences(own, by_seed(judged[other], metric))
                    words = f"{metric} minus {other}"
                    rows.append(make_row(name, {"target": MEAN}, words, apart, unit, fresh_tasks=True))
    return rows


def by_seed(scores: Mapping[tuple[int, str], Score], metric: str) -> dict[int, list[float]]:
    """Seed -> the values of its targets, in order."""
    found: dict[int, list[float]] = {}
    for (seed, _), score in scores.items():
        found.setdefault(seed, []).append(score[metric])
    return found


def preferred(judged: Mapping[str, Mapping[tuple[int, str], Score]]) -> dict[tuple[int, str], Score]:
    """For every seed and target the scores of the method that its validation rows prefer among all that ran."""
    keys = dict.fromkeys(key for scores in judged.values() for key in scores)
    best = {key: min((scores[key] for scores in judged.values() if key in scores), key=_value) for key in keys}
    return {key: {metric: score[metric] for metric in (VALIDATION, ACCURACY, WORST)} for key, score in best.items()}


def _value(score: Score) -> float:
    return score[VALIDATION]
