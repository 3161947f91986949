"""Texts as words in their order, for a network that reads them: codes of a vocabulary learned from training texts.

    0 pads, 1 is a word that is not in the vocabulary, then words from the most to the least frequent

Words are lower-case runs of letters and digits, and single marks. Where entities are related, what is between them
comes first, so that no cut loses it; of a pair of texts the longer one is cut, until both fit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.core import Columns, InputError, Tree
from warmstart.tasks.labelled_texts import BETWEEN
from warmstart.tasks.texts import Written
from warmstart.tasks.transfer import as_numbers

UNKNOWN, FIRST = 1, 2


class Vocabulary(NamedTuple):
    codes: dict[str, int]
    length: int  # words of a text, or of a pair with the marker between, at most; the rest is cut

    @property
    def columns(self) -> Columns:
        """Of rows that hold one text."""
        return Columns(bag=(FIRST + len(self.codes),))

    def encode(self, part: Written) -> Tree:
        """Rows with the text as a bag [n, 1, length]."""
        codes = torch.zeros(len(part.texts), self.length, dtype=torch.long)
        for row, words in enumerate(_words(part)):
            known = [self.codes.get(word, UNKNOWN) for word in cut(words, self.length)]
            codes[row, : len(known)] = torch.tensor(known, dtype=torch.long)
        nothing: Tensor = torch.zeros(len(codes), 0)
        return {**as_numbers(nothing), "bag": codes.unsqueeze(1)}


def learn(part: Written, length: int = 64, most: int = 20_000, least: int = 2) -> Vocabulary:
    """The `most` frequent words among those that come `least` times; no longer than the longest text."""
    if min(length, most, least) < 1:
        raise InputError("a length and counts of at least 1", f"{length}, {most}, {least}", "raise them")
    texts = _words(part)
    counts = Counter(word for text in texts for word in text)
    ranked = sorted((word for word in counts if counts[word] >= least), key=lambda word: (-counts[word], word))
    if not ranked:
        raise InputError(f"words that come {least} times", "none in the training texts", "pass more texts")
    codes = {word: FIRST + place for place, word in enumerate(ranked[:most])}
    return Vocabulary(codes, min(length, max(map(len, texts))))


def words(parts: Sequence[Written], length: int = 64, most: int = 20_000, least: int = 2) -> tuple[list[Tree], Columns]:
    """Rows of each part; the vocabulary is learned from the first."""
    vocabulary = learn(parts[0], length, most, least)
    return [vocabulary.encode(part) for part in parts], vocabulary.columns


def split(text: str) -> list[str]:
    """
    >>> split("Don't stop!")
    ['don', "'", 't', 'stop', '!']
    """
    return re.findall(r"\w+|[^\w\s]", text.lower())


def cut(words: list[str], length: int) -> list[str]:
    """At most `length` words: the first ones, or of a pair the first ones of both texts, the longer one cut.

    >>> cut(["a", "b", "c", "d", "xxnext", "e"], 4)
    ['a', 'b', 'xxnext', 'e']
    """
    if len(words) <= length or BETWEEN not in words:
        return words[:length]
    place = words.index(BETWEEN)
    room, second = length - 1, len(words) - place - 1
    kept = min(second, max(room - place, room // 2))
    return [*words[: room - kept], BETWEEN, *words[place + 1 : place + 1 + kept]]


def _words(part: Written) -> list[list[str]]:
    related = part.relations or ("",) * len(part.texts)
    return [[*between.split(), *split(text)] for between, text in zip(related, part.texts, strict=True)]
