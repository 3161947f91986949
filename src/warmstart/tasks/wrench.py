"""WRENCH: texts with the votes of labelling functions, in the benchmark's own layout.

`datasets/<name>/{train,valid,test,label}.json`, in a zip or a folder: every entry has its true label, one weak label
for each labelling function (-1 abstains) and the text; where the question is how two entities are related, also where
they are. Zhang et al., 2021.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from warmstart.core import InputError

ARCHIVE = "wrench_datasets.zip"
PARTS = ("label", "train", "valid", "test")
MAY_LACK = ("cdr", "chemprot")  # of the paper's sets: archives may be without one, or without its training part


class Votes(NamedTuple):
    """One part of a set."""

    texts: tuple[str, ...]
    label: NDArray[np.int64]  # [n]
    votes: NDArray[np.int64]  # [n, functions], -1 abstains
    relations: tuple[str, ...] = ()  # the words between two entities and these, marked; none in other sets


class Wrench(NamedTuple):
    classes: tuple[str, ...]
    train: Votes
    validation: Votes
    test: Votes


def read_wrench(path: str | Path, name: str) -> Wrench:
    """One set from a folder that holds the archive, or `datasets/<name>`, or `<name>`."""
    parts = {part: _content(Path(path), name, f"{part}.json") for part in PARTS}
    classes = tuple(str(parts["label"][key]) for key in sorted(parts["label"], key=int))
    read = [_votes(parts[part], f"{part}.json of {name}", len(classes)) for part in ("train", "valid", "test")]
    if len({part.votes.shape[1] for part in read}) > 1:
        raise InputError(
            f"as many labelling functions in all parts of {name}", "different numbers", "download it again"
        )
    return Wrench(classes, *read)


def at_hand(path: str | Path, name: str) -> bool:
    """Whether all files of a set are there."""
    root, archived = Path(path), set[str]()
    if (root / ARCHIVE).is_file():
        with suppress(BadZipFile), ZipFile(root / ARCHIVE) as archive:
            archived = set(archive.namelist())
    files = [f"{part}.json" for part in PARTS]
    return all(f"datasets/{name}/{file}" in archived or _folder_file(root, name, file) for file in files)


def _folder_file(root: Path, name: str, file: str) -> Path | None:
    places = [root / "datasets" / name / file, root / name / file]
    return next((place for place in places if place.is_file()), None)


def _content(root: Path, name: str, file: str) -> dict[str, object]:
    found = _folder_file(root, name, file)
    try:
        if found is not None:
            text = found.read_text("utf-8")
        else:
            with ZipFile(root / ARCHIVE) as archive:
                text = archive.read(f"datasets/{name}/{file}").decode("utf-8")
    except (OSError, BadZipFile) as error:
        remedy = "pass the folder of the benchmark with --data or WARMSTART_DATA"
        raise InputError(f"{ARCHIVE} or datasets/{name} in {root}", type(error).__name__, remedy) from None
    except KeyError:
        remedy = f"use another set; {' and '.join(MAY_LACK)} may be incomplete"
        raise InputError(f"{file} of {name} in {root / ARCHIVE}", "none", remedy) from None
    try:
        content = json.loads(text)
    except ValueError as error:
        raise InputError(f"JSON in {file} of {name}", str(error)[:100], "download it again") from None
    if not isinstance(content, dict) or not content:
        raise InputError(f"entries in {file} of {name}", "none", "download it again")
    return content


def _votes(content: dict[str, object], where: str, classes: int) -> Votes:
    texts, labels, votes, relations = [], [], [], []
    for key, entry in content.items():
        try:
            texts.append(str(entry["data"]["text"]))  # type: ignore[index]
            labels.append(int(entry["label"]))  # type: ignore[index]
            votes.append([int(vote) for vote in entry["weak_labels"]])  # type: ignore[index]
            if "span1" in entry["data"]:  # type: ignore[index]
                relations.append(relation(**entry["data"]))  # type: ignore[index]
        except (KeyError, TypeError, ValueError):
            raise InputError(f"a text, label and weak_labels in entry {key} of {where}", "none", "correct it") from None
        if not (all(-1 <= vote < classes for vote in votes[-1]) and 0 <= labels[-1] < classes):
            raise InputError(f"labels from 0 to {classes - 1} in entry {key} of {where}", "another", "correct it")
        if len(votes[-1]) != len(votes[0]):
            expected = f"{len(votes[0])} weak labels in entry {key} of {where}"
            raise InputError(expected, f"{len(votes[-1])}", "correct it")
    if relations and len(relations) < len(texts):
        raise InputError(f"the entities of every entry of {where}", f"{len(relations)} of {len(texts)}", "correct it")
    return Votes(tuple(texts), np.array(labels), np.array(votes).reshape(len(votes), -1), tuple(relations))


def relation(text: str, entity1: str, entity2: str, span1: Sequence[int], span2: Sequence[int], **_: object) -> str:
    """Which entity comes first, the words between them, and the entities: as words that no text holds.

    >>> relation("the cup holds tea", "tea", "cup", (14, 17), (4, 7))
    'first=2 between=holds entity1=tea entity2=cup'
    """
    between = text[min(span1[1], span2[1]) : max(span1[0], span2[0])].split()
    words = [f"first={1 if span1[0] < span2[0] else 2}", *(f"between={word}" for word in between)]
    return " ".join([*words, f"entity1={'_'.join(entity1.split())}", f"entity2={'_'.join(entity2.split())}"]).lower()
