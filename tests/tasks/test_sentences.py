"""Sentence embeddings: by a model of a few numbers that the test writes, where the extra is installed."""

import sys
from pathlib import Path

import pytest
import torch

from warmstart.core import InputError
from warmstart.tasks.labelled_texts import TextRows
from warmstart.tasks.sentences import embed, load

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "free", "money", "call", "me", "later"]
PART = TextRows(("free money", "call me later", "free"), ("a", "b", "a"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    pytest.importorskip("sentence_transformers", reason="extra text is not installed")
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    BertModel(BertConfig(vocab_size=len(WORDS), **sizes)).save_pretrained(folder)
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def test_every_part_has_unit_vectors_and_ones(model):
    first, second = embed([PART, PART._replace(texts=("free money",), labels=("a",))], model, batch=2)
    assert first.shape == (3, 9) and second.shape == (1, 9)
    torch.testing.assert_close(first[:, :-1].norm(dim=1), torch.ones(3))
    assert (first[:, -1] == 1).all() and (first[0] - first[1]).norm() > 1e-3
    torch.testing.assert_close(first[0], second[0], atol=1e-5, rtol=0)


def test_relations_are_texts_too(model):
    related = PART._replace(relations=("call", "call", "later"))
    x = embed([related], str(model))[0]
    assert x.shape == (3, 17) and torch.equal(x[0, 8:], x[1, 8:]) and not torch.equal(x[0, 8:], x[2, 8:])
    with pytest.raises(InputError, match="relations in all parts"):
        embed([related, PART], model)


def test_a_damaged_model_is_said(model, tmp_path):
    for file in model.iterdir():
        content = file.read_bytes()
        (tmp_path / file.name).write_bytes(content[:100] if file.suffix == ".safetensors" else content)
    with pytest.raises(InputError, match="a model of sentence-transformers in folder"):
        load(tmp_path)


def test_what_is_not_here_is_not_fetched():
    pytest.importorskip("sentence_transformers", reason="extra text is not installed")
    with pytest.raises(InputError, match=r"model 'nobody/nothing' downloaded before, got neither.*download=True"):
        load("nobody/nothing")
    for missing in (Path("nowhere"), ""):
        with pytest.raises(InputError, match="none there"):
            load(missing)


def test_without_the_extra_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(InputError, match=r"warmstart\[text\]"):
        embed([PART], "any")
