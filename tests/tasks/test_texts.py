"""Texts as numbers: learned from the first part alone, with relations where there are any."""

import numpy as np
import pytest
import torch

from warmstart.core import InputError
from warmstart.tasks.texts import embed
from warmstart.tasks.wrench import Votes, relation

WORDS = [
    "free money now",
    "call me later",
    "win a free prize now",
    "see you later",
    "free prize call now",
    "me and you",
]


def part(texts, relations=()):
    nothing = np.zeros(len(texts), dtype=np.int64)
    return Votes(tuple(texts), nothing, nothing[:, None], tuple(relations))


def test_other_parts_are_only_looked_up():
    train, first = part(WORDS), part(["free prize", "call you"])
    whole = embed([train, first, part(["something else entirely"])], 8)
    again = embed([train, first, part(["another text"] * 5)], 8)
    for one, other in zip(whole[:2], again[:2], strict=True):
        torch.testing.assert_close(one, other)
    assert [len(one) for one in whole] == [6, 2, 1]
    assert bool((whole[1][:, -1] == 1).all()) and whole[0].shape[1] == 9


def test_texts_of_the_same_words_are_near():
    x = embed([part(WORDS)], 10)[0][:, :-1]
    like = torch.nn.functional.cosine_similarity(x[:, None], x[None], dim=-1)
    assert like[2, 4] > like[2, 3] and like[1, 3] > like[1, 0]


def test_relations_tell_apart_what_texts_cannot():
    texts = ["the cup holds the tea"] * 6
    related = [
        relation(texts[0], *pair) for pair in [("cup", "tea", (4, 7), (18, 21)), ("tea", "cup", (18, 21), (4, 7))]
    ]
    assert related[0] == "first=1 between=holds between=the entity1=cup entity2=tea"
    x = embed([part([f"{text} {i % 2}" for i, text in enumerate(texts)], related * 3)], 9)[0]
    assert float((x[0] - x[1]).norm()) > 0.5 > float((x[0] - x[2]).norm())


@pytest.mark.parametrize(("texts", "size", "words"), [(WORDS, 2, "three dimensions"), (["a b"], 8, "come twice")])
def test_what_cannot_be_embedded_is_said(texts, size, words):
    with pytest.raises(InputError, match=words):
        embed([part(texts)], size)
