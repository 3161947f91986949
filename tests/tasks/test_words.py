"""Words as codes: learned from the first part, padded and cut."""

import pytest

from warmstart.core import Columns, InputError
from warmstart.tasks.labelled_texts import TextRows
from warmstart.tasks.words import cut, learn, words


def part(*texts, relations=()):
    return TextRows(texts, ("a",) * len(texts), relations)


TRAIN = part("The cat, the dog", "a dog!", "cat the mouse")


def test_frequent_words_come_first_then_the_alphabet():
    vocabulary = learn(TRAIN)
    assert vocabulary.codes == {"the": 2, "cat": 3, "dog": 4}
    assert vocabulary.length == 5 and vocabulary.columns == Columns(bag=(5,))


def test_other_parts_are_looked_up():
    (first, second), columns = words([TRAIN, part("the bird", "", "dog " * 9)], length=4)
    assert first["bag"][:, 0].tolist() == [[2, 3, 1, 2], [1, 4, 1, 0], [3, 2, 1, 0]]
    assert second["bag"][:, 0].tolist() == [[2, 1, 0, 0], [0, 0, 0, 0], [4, 4, 4, 4]]
    assert first["numeric"].shape == (3, 0) and first["categorical"].shape == (3, 0) and columns.bag == (5,)


def test_relations_come_before_what_may_be_cut():
    related = part("a cup of tea", "a mug of tea", relations=("between=of entity1=cup", "between=of entity1=mug"))
    found = learn(related, length=3, least=1)
    bag = found.encode(related)["bag"][:, 0]
    assert bag.shape == (2, 3) and bag[0, 0] == bag[1, 0] and bag[0, 1] != bag[1, 1] and bag[0, 2] == bag[1, 2]


@pytest.mark.parametrize(
    ("first", "second", "kept"), [(9, 2, (4, 2)), (2, 9, (2, 4)), (9, 9, (3, 3)), (3, 3, (3, 3)), (8, 0, (6, 0))]
)
def test_of_a_pair_the_longer_text_is_cut(first, second, kept):
    pair = [*(f"a{i}" for i in range(first)), "xxnext", *(f"b{i}" for i in range(second))]
    wanted = [*(f"a{i}" for i in range(kept[0])), "xxnext", *(f"b{i}" for i in range(kept[1]))]
    assert cut(pair, 7) == wanted and cut(pair, 8)[: kept[0]] == wanted[: kept[0]] and len(cut(pair, 8)) <= 8


def test_no_length_loses_the_second_text():
    premise = "word " * 90
    pairs = part(f"{premise} xxnext it rained", f"{premise} xxnext nobody came")
    (rows,), _ = words([pairs], least=1)
    first, second = rows["bag"][:, 0].tolist()
    assert len(first) == 64 and first[:-2] == second[:-2] and first[-2:] != second[-2:]


@pytest.mark.parametrize(("given", "options", "said"), [(part("a b"), {}, "come 2 times"), (TRAIN, {"length": 0}, "1")])
def test_what_cannot_be_learned_is_said(given, options, said):
    with pytest.raises(InputError, match=said):
        learn(given, **options)
