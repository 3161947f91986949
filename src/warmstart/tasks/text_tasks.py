"""Many text classification tasks as one target and its sources.

    <folder>/<task>/{train,valid,test}.jsonl     {"text": "...", "label": "..."} a line, "text2" for pairs of texts
    <folder>/<task>/{train,valid,test}.csv       or with these columns

A source needs its training part, a target all three. Labels are names of classes, and tasks may have different ones:
each then has a head of its own, all as wide as the task with most classes asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from warmstart.core import Columns, InputError, Tree, check_names
from warmstart.core.trees import take
from warmstart.tasks.labelled_texts import ALIKE, SUFFIXES, TextRows, check_rows, read_rows
from warmstart.tasks.texts import Written, embed
from warmstart.tasks.transfer import Rows, Transfer, as_numbers, make_transfer
from warmstart.tasks.wrench import Votes, Wrench

STANCES = ("stance_abortion", "stance_atheism", "stance_climate", "stance_feminist", "stance_hillary")
# of the paper's Table 5, as folders are called; none of these tasks is at hand, so nothing was run on them
COLLECTION = {
    "GLUE": ("cola", "mrpc", "rte", "sst2", "stsb", "wnli"),
    "SuperGLUE": ("boolq", "cb", "copa", "multirc", "wic", "wsc"),
    "TweetEval": ("emoji", "emotion", "hate", "irony", "offensive", "sentiment", *STANCES),
    "ANLI": ("anli_a1", "anli_a2"),
}
PARTS = ("train", "valid", "test")
TRUE = "true labels"  # the target among labelling functions

Represent: TypeAlias = Callable[[Sequence[Written]], tuple[list[Tree], Columns]]  # learned from the first part


class TextTask(NamedTuple):
    train: TextRows
    validation: TextRows | None = None
    test: TextRows | None = None


class Collection(NamedTuple):
    tasks: dict[str, TextTask]
    absent: tuple[str, ...]  # of the paper's tasks


def read_tasks(path: str | Path, names: Sequence[str] = ()) -> dict[str, TextTask]:
    """The tasks of these names in a folder; without names, every folder in it with a training part."""
    root = Path(path)
    if isinstance(names, str):
        raise InputError("a list of names of tasks", f"'{names}'", "put it in a list")
    if not root.is_dir():
        raise InputError(f"a folder {root} of tasks", "none there", "check the path")
    found = sorted(place.name for place in root.iterdir() if _files(place, "train"))
    if not found:
        raise InputError(f"folders with train.jsonl or train.csv in {root}", "none", "see docs/methods/task_model.md")
    check_names(names, found, f"tasks in {root}")
    return {name: _read(root / name) for name in (names or found)}


def read_collection(path: str | Path) -> Collection:
    """Those of the paper's tasks that a folder holds, and the names of the others."""
    root, every = Path(path), [name for names in COLLECTION.values() for name in names]
    here = [name for name in every if _files(root / name, "train")]
    if not here:
        wanted = f"folders of tasks such as {', '.join(every[:3])} in {root}"
        raise InputError(wanted, "none", "download them from their publishers, in the layout of `read_tasks`")
    return Collection(read_tasks(root, here), tuple(name for name in every if name not in here))


def _files(folder: Path, part: str) -> list[Path]:
    return [place for suffix in SUFFIXES if (place := folder / f"{part}{suffix}").is_file()]


def _read(folder: Path) -> TextTask:
    files = [_files(folder, part) for part in PARTS]
    both = next((found for found in files if len(found) > 1), None)
    if both is not None:
        raise InputError(f"one file for each part in {folder}", " and ".join(p.name for p in both), "remove one")
    train, validation, test = (read_rows(found[0]) if found else None for found in files)
    if train is None:
        raise InputError(f"train.jsonl or train.csv in {folder}", "neither", "add it")
    return TextTask(train, validation, test)


def weak_tasks(wrench: Wrench, seed: int = 0) -> dict[str, TextTask]:
    """Labelling functions as sources of the texts that they vote on, without those that never do; the target `TRUE`
    has half of the labelled validation rows to train on, the other half to choose by."""
    order = np.random.default_rng(seed).permutation(len(wrench.validation.texts))
    half = len(order) // 2

    def chosen(votes: Votes, rows: np.ndarray, label: np.ndarray) -> TextRows:
        related = tuple(votes.relations[row] for row in rows) if votes.relations else ()
        return TextRows(tuple(votes.texts[row] for row in rows), tuple(str(label[row]) for row in rows), related)

    found = {}
    for place, column in enumerate(wrench.train.votes.T):
        if (column >= 0).any():
            found[f"function {place}"] = TextTask(chosen(wrench.train, np.flatnonzero(column >= 0), column))
    own = wrench.validation
    first, second = (chosen(own, rows, own.label) for rows in (order[:half], order[half:]))
    asked = chosen(wrench.test, np.arange(len(wrench.test.texts)), wrench.test.label)
    return found | {TRUE: TextTask(first, second, asked)}


def numbers(
    parts: Sequence[Written], embed: Callable[[Sequence[Written]], list[Tensor]] = embed
) -> tuple[list[Tree], Columns]:
    """Rows of each part as numbers: TF-IDF, or what another `embed` makes of texts."""
    found = embed(parts)
    return [as_numbers(each) for each in found], Columns(found[0].shape[-1])


def make_text_transfer(
    tasks: Mapping[str, TextTask], target: str, represent: Represent = numbers, apart: bool = True
) -> Transfer:
    """A target and all other tasks as sources; vocabularies are learned from all training texts.

    With `apart` labels mean something else in every task, even where their names are the same, and training needs
    `own_heads`; without, all tasks ask the target's question and may hold no other labels than it does.
    """
    check_names([target], tasks, "tasks")
    names = [*(name for name in tasks if name != target), target]
    if len(names) == 1:
        raise InputError("sources", "the target alone", "pass other tasks too")
    own = tasks[target]
    if own.validation is None or own.test is None:
        lacks = "valid" if own.validation is None else "test"
        raise InputError(f"a part {lacks} of the target {target}", "none", "put some rows of another part there")
    _check(tasks, target)
    known = sorted({*own.train.labels, *own.validation.labels})
    if len(known) < 2:
        raise InputError(f"two labels or more in {target}", f"'{known[0]}' alone", "name another target")
    trained = [tasks[name].train for name in names]
    classes = [sorted(set(part.labels)) if apart else known for part in trained[:-1]]
    coded = [_codes(part, of, name) for part, of, name in zip(trained, [*classes, known], names, strict=True)]
    seen_before = "put some rows with this label among its training or validation rows"
    asked = [_codes(part, known, f"the part test of {target}", seen_before) for part in (own.validation, own.test)]
    (seen, *held), columns = represent([_joined(trained), own.validation, own.test])
    wide = max(len(known), *map(len, classes))
    kind = "multiclass" if wide > 2 else "binary"

    def rows(x: Tree, y: Tensor) -> Rows:
        return Rows(x, y if kind == "multiclass" else y.float(), torch.zeros_like(y))

    ends = np.cumsum([0, *(len(part.texts) for part in trained)])
    every = [rows(take(seen, slice(a, b)), y) for a, b, y in zip(ends[:-1], ends[1:], coded, strict=True)]
    validation, test = (rows(x, y) for x, y in zip(held, asked, strict=True))
    whole = make_transfer(
        every[:-1], every[-1], validation, test, kind, wide, columns=columns, names=names, apart=apart
    )
    return whole._replace(ordered=bool(columns.bag))


def _check(tasks: Mapping[str, TextTask], target: str) -> None:
    """Refuse rows that cannot be read, or that differ in what a row holds."""
    parts = {f"train of {name}": task.train for name, task in tasks.items()}
    named = zip(PARTS, tasks[target], strict=True)
    own = {f"{part} of {target}": rows for part, rows in named if rows is not None}
    for where, part in (parts | own).items():
        check_rows(part, where)
    if len({bool(part.relations) for part in (parts | own).values()}) > 1:
        raise InputError("relations in all tasks and parts", "in some", "leave them out, or add them")
    if len({part.pairs[0] for part in own.values()}) > 1:
        single = next(where for where, part in own.items() if not part.pairs[0])
        raise InputError(f"pairs of texts in all parts of {target} or in none", f"single ones in {single}", ALIKE)


def _codes(
    part: TextRows, known: Sequence[str], where: str, remedy: str = "correct them, or say that tasks are apart"
) -> Tensor:
    place = {label: code for code, label in enumerate(known)}
    other = next((label for label in part.labels if label not in place), None)
    if other is not None:
        raise InputError(f"labels of the target ({', '.join(known[:10])}) in {where}", f"'{other}'", remedy)
    return torch.tensor([place[label] for label in part.labels])


def _joined(parts: Sequence[TextRows]) -> TextRows:
    columns = zip(*parts, strict=True)
    texts, labels, relations = (tuple(value for part in column for value in part) for column in columns)
    return TextRows(texts, labels, relations)
