"""WRENCH sets from a folder and from the archive, and what is wrong with them."""

import json
from zipfile import ZipFile

import pytest

from warmstart.core import InputError
from warmstart.tasks.wrench import at_hand, read_wrench


def entry(label, votes, text="buy now"):
    return {"label": label, "weak_labels": votes, "data": {"text": text}}


def write(folder, **changed):
    parts = {
        "label": {"0": "ham", "1": "spam"},
        "train": {"0": entry(1, [1, -1]), "1": entry(0, [-1, 0], "hello")},
        "valid": {"0": entry(0, [0, 0])},
        "test": {"0": entry(1, [-1, -1])},
    } | changed
    folder.mkdir(parents=True)
    for name, content in parts.items():
        (folder / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))


def test_a_folder_and_the_archive_hold_the_same(tmp_path):
    write(tmp_path / "a" / "datasets" / "sms")
    with ZipFile(tmp_path / "wrench_datasets.zip", "w") as archive:
        for file in (tmp_path / "a" / "datasets" / "sms").iterdir():
            archive.write(file, f"datasets/sms/{file.name}")
    folder, zipped = read_wrench(tmp_path / "a", "sms"), read_wrench(tmp_path, "sms")
    assert at_hand(tmp_path / "a", "sms") and at_hand(tmp_path, "sms") and not at_hand(tmp_path, "cdr")
    assert folder.classes == zipped.classes == ("ham", "spam")
    assert folder.train.texts == ("buy now", "hello") and folder.train.label.tolist() == [1, 0]
    assert folder.train.votes.tolist() == zipped.train.votes.tolist() == [[1, -1], [-1, 0]]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"train": "{"}, "JSON in train.json"),
        ({"train": {}}, "entries in train.json"),
        ({"train": {"0": {"label": 1}}}, "entry 0 of train.json"),
        ({"train": {"0": entry(2, [0, 0])}}, "labels from 0 to 1"),
        ({"train": {"0": entry(1, [0, -2])}}, "labels from 0 to 1"),
        ({"train": {"0": entry(1, [0, 1]), "1": entry(1, [0])}}, "2 weak labels in entry 1"),
        ({"test": {"0": entry(1, [0, 1, 1])}}, "as many labelling functions"),
    ],
)
def test_what_is_damaged_is_said(tmp_path, changed, words):
    write(tmp_path / "sms", **changed)
    with pytest.raises(InputError, match=words):
        read_wrench(tmp_path, "sms")


def test_what_is_not_there_is_said(tmp_path):
    assert not at_hand(tmp_path, "sms")
    with pytest.raises(InputError, match=r"wrench_datasets.zip or datasets/sms"):
        read_wrench(tmp_path, "sms")


def test_the_real_sets(shared_data):
    if not (shared_data / "wrench_datasets.zip").exists():
        pytest.skip("no wrench_datasets.zip there")
    found = read_wrench(shared_data, "youtube")
    assert [len(part.texts) for part in found[1:]] == [1586, 120, 250] and found.train.votes.shape[1] == 10
    assert (found.train.votes >= 0).mean() == pytest.approx(0.1634, abs=1e-3)
    assert at_hand(shared_data, "youtube") and not at_hand(shared_data, "chemprot")
    with pytest.raises(InputError, match=r"train.json of chemprot"):
        read_wrench(shared_data, "chemprot")


def test_sets_of_related_entities_have_the_words_between(tmp_path):
    """As cdr and chemprot come, which are not at hand here."""
    related = entry(1, [1, -1], "aspirin may cause asthma")
    related["data"] |= {"entity1": "aspirin", "entity2": "asthma", "span1": [0, 7], "span2": [18, 24]}
    parts = {part: {"0": related} for part in ("train", "valid", "test")}
    write(tmp_path / "cdr", **parts)
    found = read_wrench(tmp_path, "cdr")
    assert found.test.relations == ("first=1 between=may between=cause entity1=aspirin entity2=asthma",)
