"""Pools of models: what is read, and what is refused with its reason."""

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

from warmstart.core import InputError
from warmstart.fusion.zoo import encode_descriptor, make_zoo, outside, read_zoo


def weights(seed):
    draw = torch.Generator().manual_seed(seed)
    return {"head.weight": torch.randn(1, 3, generator=draw), "head.bias": torch.randn(1, generator=draw)}


@pytest.fixture
def folder(tmp_path):
    """Two models as safetensors, two as npz, and their table, in another order than the files."""
    for i, name in enumerate("abcd"):
        if i % 2:
            np.savez(tmp_path / f"{name}.npz", **{key: value.numpy() for key, value in weights(i).items()})
        else:
            save_file(weights(i), tmp_path / f"{name}.safetensors")
    (tmp_path / "notes.txt").write_text("not a model")
    table = pd.DataFrame({"who": list("dcba"), "a": [4.0, 3, 2, 1], "kind": ["x", "y", "x", "y"], "same": 7})
    table.to_csv(tmp_path / "tasks.csv", index=False)
    return tmp_path


def test_models_and_descriptors_meet_by_name(folder):
    zoo = read_zoo(folder, folder / "tasks.csv")
    assert zoo.names == ("a", "b", "c", "d")
    for i in range(4):
        assert_close(zoo.params["head.weight"][i], weights(i)["head.weight"])
    a = (torch.arange(1.0, 5) - 2.5) / np.std([1, 2, 3, 4])
    kind = torch.tensor([[0, 0, 1], [0, 1, 0], [0, 0, 1], [0, 1, 0]])  # unseen, x, y; the constant column is gone
    assert_close(zoo.descriptor, torch.cat([a[:, None], kind.float()], 1))


def test_a_new_descriptor_is_read_like_the_table(folder):
    zoo = read_zoo(folder, folder / "tasks.csv")
    assert_close(encode_descriptor(zoo.columns, {"a": "2", "kind": "y"})[0, 0], zoo.descriptor[1, 0])
    assert encode_descriptor(zoo.columns, {"a": 2.0, "kind": "new"})[0, 1:].tolist() == [1, 0, 0]
    with pytest.raises(InputError, match="column 'kind' in the descriptor"):
        encode_descriptor(zoo.columns, {"a": 2.0})
    with pytest.raises(InputError, match="a number for 'a', got 'big'"):
        encode_descriptor(zoo.columns, {"a": "big", "kind": "x"})


def spoil_shape(folder):
    save_file({**weights(0), "head.weight": torch.zeros(1, 4)}, folder / "c.safetensors")


def spoil_name(folder):
    save_file({"other": torch.zeros(1)}, folder / "c.safetensors")


def spoil_nan(folder):
    save_file({**weights(0), "head.bias": torch.tensor([float("nan")])}, folder / "c.safetensors")


def spoil_kind(folder):
    save_file({"count": torch.tensor(3)}, folder / "c.safetensors")


def spoil_pickle(folder):
    (folder / "c.pt").write_bytes(b"\x80\x04.")


def spoil_objects(folder):
    np.savez(folder / "b.npz", head=np.array([{"a": 1}], dtype=object))


def spoil_archive(folder):
    (folder / "b.npz").write_bytes(b"PK\x03\x04hello")


def spoil_gap(folder):
    rewrite(folder, a=[4.0, float("nan"), 2, 1])


def spoil_words(folder):
    pd.read_csv(folder / "tasks.csv")[["who"]].to_csv(folder / "tasks.csv", index=False)


def spoil_cut(folder):
    path = folder / "a.safetensors"
    path.write_bytes(path.read_bytes()[:20])


def spoil_twice(folder):
    save_file(weights(0), folder / "b.safetensors")


def spoil_few(folder):
    (folder / "a.safetensors").unlink()
    (folder / "b.npz").unlink()


def rewrite(folder, **columns):
    table = pd.read_csv(folder / "tasks.csv").assign(**columns)
    table.to_csv(folder / "tasks.csv", index=False)


def spoil_constant(folder):
    rewrite(folder, a=1.0, kind="x")


def spoil_duplicate(folder):
    rewrite(folder, a=[4.0, 3, 4, 1])


def spoil_missing(folder):
    rewrite(folder, who=list("dcbz"))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_shape, ["head.weight of shape [1, 3]", "c, as in a", "[1, 4]"]),
        (spoil_name, ["c, as in a", "'head.bias'"]),
        (spoil_nan, ["finite weights in c.safetensors", "'head.bias'"]),
        (spoil_kind, ["torch.int64 in 'count'"]),
        (spoil_pickle, ["c.pt, a pickle, which may run any code", "save_file"]),
        (spoil_objects, ["b.npz", "unpickled"]),
        (spoil_archive, ["b.npz", "BadZipFile"]),
        (spoil_gap, ["a value of 'a' for every task", "none for"]),
        (spoil_words, ["only the names of the models, in 'who'"]),
        (spoil_cut, ["a.safetensors"]),
        (spoil_twice, ["two called 'b'"]),
        (spoil_few, ["at least 3 models", "got 2"]),
        (spoil_constant, ["constant columns only"]),
        (spoil_duplicate, ["the same for 'b' and 'd'"]),
        (spoil_missing, ["for every model, named in 'who'", "none for 'a'"]),
    ],
)
def test_bad_pools_are_refused_with_the_reason(folder, spoil, words):
    spoil(folder)
    if spoil is spoil_pickle:
        (folder / "c.safetensors").unlink()
    with pytest.raises(InputError) as error:
        read_zoo(folder, folder / "tasks.csv")
    for word in words:
        assert word in str(error.value)


def test_the_column_of_names_can_be_told(folder):
    rewrite(folder, other=list("abcd"))
    assert read_zoo(folder, folder / "tasks.csv", "other").descriptor[0, 0] > 0
    with pytest.raises(InputError, match="task 'a' in column 'a'"):
        read_zoo(folder, folder / "tasks.csv", "a")


def test_codes_may_be_names_and_what_no_model_has_is_said():
    names, params = tuple("abcd"), {"w": torch.zeros(4, 1)}
    table = pd.DataFrame({"who": names, "x": [1.0, 2.0, 3.0, 4.0], "place": [7, 8, 7, 9]})
    zoo = make_zoo(names, params, table, categorical=["place"])
    assert zoo.descriptor.shape == (4, 5)  # x; places not seen, 7, 8, 9
    for known, words in (
        ({"x": 6.9, "place": 7}, ""),
        ({"x": 7.1, "place": 7}, "'x' is beyond"),
        ({"x": -2.1, "place": 7}, "'x' is beyond"),
        ({"x": 2.0, "place": 5}, "'place' has a value that no model"),
    ):
        said = outside(zoo, encode_descriptor(zoo.columns, known)[0])
        assert said.startswith(words) and bool(said) == bool(words)
    with pytest.raises(InputError, match="a value of 'x' for every task"):
        encode_descriptor(zoo.columns, {"x": float("nan"), "place": 7})
