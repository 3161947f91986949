"""Texts as numbers, without a language model: TF-IDF of words and characters, in the directions that vary most.

    block     log(1 + count) idf of n-grams, rows of length 1;   its leading right singular vectors V;   x = block V
    blocks    one to three words in a row (with marks where a text starts and ends), two to five characters, relations

Vocabularies, idf and V are learned from texts alone, those of the training part; no label is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor

from warmstart.core import InputError

DIMENSIONS = 600  # of all blocks together


class Written(Protocol):
    """A part of a set of texts; where the question is how two entities are related, with what is between them."""

    @property
    def texts(self) -> tuple[str, ...]: ...
    @property
    def relations(self) -> tuple[str, ...]: ...


def embed(parts: Sequence[Written], dimensions: int = DIMENSIONS, seed: int = 0) -> list[Tensor]:
    """[n, d] for each part; what is learned is learned from the first. The last column is 1."""
    if dimensions < 3:
        raise InputError("at least three dimensions", f"{dimensions}", "raise them")
    blocks = [
        ([[f"xxstart {text} xxend" for text in part.texts] for part in parts], _words(r"\w+|[^\w\s]")),
        ([list(part.texts) for part in parts], _characters()),
    ]
    if parts[0].relations:
        blocks.append(([list(part.relations) for part in parts], _words(r"\S+")))
    found = []
    for texts, vectoriser in blocks:
        try:
            first = vectoriser.fit_transform(texts[0])
        except ValueError:
            raise InputError("n-grams that come twice", "none in the training texts", "pass more texts") from None
        size = min(dimensions // len(blocks), min(first.shape) - 1)
        if size < 1:
            raise InputError("several training texts", f"{len(texts[0])}", "pass more texts")
        directions = TruncatedSVD(size, random_state=seed).fit(first)
        found.append([directions.transform(vectoriser.transform(each)) for each in texts])
    whole = [np.concatenate([*each, np.ones((len(each[0]), 1))], 1) for each in zip(*found, strict=True)]
    return [torch.from_numpy(each).float() for each in whole]


def _words(pattern: str) -> TfidfVectorizer:
    return TfidfVectorizer(ngram_range=(1, 3), sublinear_tf=True, token_pattern=pattern, min_df=2)


def _characters() -> TfidfVectorizer:
    return TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True, min_df=3)
