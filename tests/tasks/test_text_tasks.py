"""Text tasks from folders and labelling functions, as a target with sources."""

import json
from functools import partial

import numpy as np
import pytest
import torch

from warmstart.core import InputError
from warmstart.tasks.labelled_texts import TextRows
from warmstart.tasks.text_tasks import (
    COLLECTION,
    TRUE,
    TextTask,
    make_text_transfer,
    numbers,
    read_collection,
    read_tasks,
    weak_tasks,
)
from warmstart.tasks.texts import embed
from warmstart.tasks.transfer import task_rows
from warmstart.tasks.words import learn, words
from warmstart.tasks.wrench import Votes, Wrench


def rows(*labels):
    return TextRows(tuple(f"some words {label} {i}" for i, label in enumerate(labels)), labels)


def write(folder, **parts):
    folder.mkdir(parents=True)
    for name, part in parts.items():
        lines = [json.dumps({"text": text, "label": label}) for text, label, *_ in zip(*part[:2], strict=True)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))


TASKS = {
    "rte": TextTask(rows("yes", "no", "no"), rows("no", "yes"), rows("yes")),
    "mood": TextTask(rows("glad", "sad", "angry", "sad")),
    "wnli": TextTask(rows("no", "yes")),
}


def test_a_folder_holds_what_was_written(tmp_path):
    write(tmp_path / "rte", train=TASKS["rte"].train, valid=TASKS["rte"].validation, test=TASKS["rte"].test)
    write(tmp_path / "mood", train=TASKS["mood"].train)
    write(tmp_path / "notes")
    assert read_tasks(tmp_path) == {"mood": TASKS["mood"], "rte": TASKS["rte"]}
    assert list(read_tasks(tmp_path, ["rte"])) == ["rte"]
    found = read_collection(tmp_path)
    assert list(found.tasks) == ["rte"] and len(found.absent) == 24 and "cola" in found.absent


def test_the_paper_has_twenty_five_tasks():
    assert len({name for names in COLLECTION.values() for name in names}) == 25


def test_what_is_absent_is_said(tmp_path):
    for read in (read_tasks, read_collection):
        with pytest.raises(InputError, match=r"folders .*, got none"):
            read(tmp_path)
    with pytest.raises(InputError, match="a folder"):
        read_tasks(tmp_path / "nowhere")
    write(tmp_path / "rte", train=TASKS["rte"].train)
    with pytest.raises(InputError, match=r"tasks in .* among rte, got cola"):
        read_tasks(tmp_path, ["cola"])
    with pytest.raises(InputError, match="a list of names of tasks, got 'rte'"):
        read_tasks(tmp_path, "rte")


def test_a_part_is_one_file(tmp_path):
    write(tmp_path / "rte", train=TASKS["rte"].train)
    (tmp_path / "rte" / "train.csv").write_text("text,label\na,b\n")
    with pytest.raises(InputError, match=r"one file for each part in .*rte, got train\.jsonl and train\.csv"):
        read_tasks(tmp_path)


def test_every_task_may_have_labels_of_its_own():
    transfer = make_text_transfer(TASKS, "rte", words)
    assert transfer.names == ("mood", "wnli", "rte") and transfer.apart and transfer.ordered
    assert transfer.kind == "multiclass" and transfer.outputs == 3
    assert [task_rows(transfer, task).y.tolist() for task in range(3)] == [[1, 2, 0, 2], [0, 1], [1, 0, 0]]
    assert transfer.validation.y.tolist() == [0, 1] and transfer.test.y.tolist() == [1]
    assert transfer.pool.x["bag"].shape == (9, 1, 4) and transfer.columns.bag == (2 + 8,)


def test_new_texts_are_encoded_as_those_of_the_transfer():
    transfer = make_text_transfer(TASKS, "rte", words)
    texts = [text for task in TASKS.values() for text in task.train.texts]
    again = learn(TextRows(tuple(texts), ())).encode(TASKS["rte"].test)
    assert torch.equal(again["bag"], transfer.test.x["bag"])


def test_one_question_has_one_set_of_labels():
    same = {name: TASKS[name] for name in ("wnli", "rte")}
    transfer = make_text_transfer(same, "rte", partial(numbers, embed=partial(embed, dimensions=6)), apart=False)
    assert not transfer.apart and not transfer.ordered and transfer.kind == "binary" and transfer.outputs == 1
    assert (
        transfer.pool.y.tolist() == [0, 1, 1, 0, 0] and transfer.pool.x["numeric"].shape[1] == transfer.columns.numeric
    )
    with pytest.raises(InputError, match=r"labels of the target \(no, yes\) in mood, got 'glad'"):
        make_text_transfer(TASKS, "rte", words, apart=False)


@pytest.mark.parametrize(
    ("changed", "target", "said"),
    [
        ({}, "cola", "tasks among rte, mood, wnli"),
        ({}, "mood", "a part valid of the target mood"),
        ({"rte": TASKS["rte"]._replace(test=None)}, "rte", "a part test of"),
        (
            {"rte": TASKS["rte"]._replace(test=rows("-1"))},
            "rte",
            "the part test of rte, got '-1'; .* training or validation",
        ),
        ({"rte": TextTask(rows("no"), rows("no"), rows("no"))}, "rte", "two labels or more in rte, got 'no' alone"),
    ],
)
def test_what_cannot_be_a_target_is_said(changed, target, said):
    with pytest.raises(InputError, match=said):
        make_text_transfer(TASKS | changed, target, words)


LONG = TASKS["wnli"].train
PAIRS = TextRows(("one xxnext two", "two xxnext one"), ("no", "yes"))


@pytest.mark.parametrize(
    ("name", "part", "changed", "said"),
    [
        ("wnli", "train", LONG._replace(labels=("no",)), "2 labels in train of wnli, one for each text, got 1"),
        ("wnli", "train", LONG._replace(relations=("a",)), "2 relations in train of wnli"),
        ("wnli", "train", LONG._replace(relations=("a", "b")), "relations in all tasks and parts, got in some"),
        ("rte", "validation", rows("no", "yes")._replace(relations=("a", "b")), "relations in all tasks and parts"),
        ("rte", "validation", TextRows((), ()), "rows in valid of rte, got none"),
        ("rte", "train", LONG._replace(labels=("no", 1)), "labels in train of rte as strings, got 1"),
        ("wnli", "train", LONG._replace(texts=("a", 2.5)), "texts in train of wnli as strings, got 2.5"),
        ("rte", "validation", PAIRS, "pairs of texts in all parts of rte or in none, got single ones in train of rte"),
        ("wnli", "train", PAIRS._replace(texts=("one xxnext two", "b")), "in all rows of train of wnli .* got 1 of 2"),
    ],
)
@pytest.mark.parametrize("represent", [words, numbers])
def test_rows_that_do_not_fit_together_are_said(name, part, changed, said, represent):
    with pytest.raises(InputError, match=said):
        make_text_transfer(TASKS | {name: TASKS[name]._replace(**{part: changed})}, "rte", represent)


def test_pairs_may_stand_beside_single_texts_of_another_task():
    assert make_text_transfer(TASKS | {"wnli": TextTask(PAIRS)}, "rte", words).names == ("mood", "wnli", "rte")


def test_a_target_needs_sources():
    with pytest.raises(InputError, match="the target alone"):
        make_text_transfer({"rte": TASKS["rte"]}, "rte", words)


def test_labelling_functions_are_sources_of_what_they_vote_on():
    def votes(count, cast):
        label = np.arange(count) % 2
        between = tuple(f"between={i % 3}" for i in range(count))
        return Votes(tuple(f"text {i}" for i in range(count)), label, np.array(cast).reshape(count, -1), between)

    cast = [[1, -1, -1], [-1, -1, 0], [0, -1, -1]]
    wrench = Wrench(("ham", "spam"), votes(3, cast), votes(8, [[-1] * 3] * 8), votes(2, [[-1] * 3] * 2))
    tasks = weak_tasks(wrench, seed=3)
    assert list(tasks) == ["function 0", "function 2", TRUE]
    first = tasks["function 0"].train
    assert first == TextRows(("text 0", "text 2"), ("1", "0"), ("between=0", "between=2"))
    own = tasks[TRUE]
    assert sorted(own.train.texts + own.validation.texts) == [f"text {i}" for i in range(8)]
    assert len(own.train.texts) == 4 and own.test.labels == ("0", "1")
    transfer = make_text_transfer(tasks, TRUE, partial(words, least=1), apart=False)
    assert torch.equal(transfer.pool.lengths, torch.tensor([2, 1, 4])) and transfer.kind == "binary"
