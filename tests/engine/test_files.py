import errno
import json
import os
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from warmstart.core import InputError
from warmstart.engine.files import (
    finite,
    read_json,
    read_tensors,
    same_tensors,
    write_bytes,
    write_json,
    write_tensors,
    write_text,
)

TENSORS = {"a/0": torch.arange(6.0).reshape(2, 3), "count": torch.tensor(7), "empty": torch.zeros(0, 3)}


def full_disk(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_right(*args, **kwargs):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


class HalfWritten:
    """A file on a disk that fills up after a few bytes."""

    def __init__(self, handle, mode):
        self.file = open(handle, mode)  # noqa: SIM115, PTH123

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def write(self, content):
        self.file.write(content[: len(content) // 2])
        full_disk()


FAILURES = {
    "the disk fills up": ("fdopen", HalfWritten, "No space left"),
    "the disk is full at the flush": ("fsync", full_disk, "No space left"),
    "the file may not be renamed": ("replace", no_right, "Permission denied"),
}


@pytest.mark.parametrize(("where", "failure", "reason"), FAILURES.values(), ids=FAILURES)
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, where, failure, reason):
    path = tmp_path / "weights.safetensors"
    write_tensors(path, TENSORS)
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, where, failure)
        with pytest.raises(InputError, match=reason) as caught:
            write_tensors(path, {"a": torch.zeros(1000)})
    assert str(path) in str(caught.value) and "nothing was changed" in str(caught.value)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    write_text(tmp_path / "a.txt", "old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write_text(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="choose another folder"):
        write_text(tmp_path / "file" / "inside.txt", "x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="directory"):
        write_text(tmp_path / "folder", "x")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", no_right)
        with pytest.raises(InputError, match="Permission denied"):
            write_text(tmp_path / "new" / "inside.txt", "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_write_makes_its_folders_and_follows_a_link(tmp_path):
    write_bytes(tmp_path / "a" / "b" / "c.bin", b"\x00\xff")
    assert (tmp_path / "a" / "b" / "c.bin").read_bytes() == b"\x00\xff"
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b" / "c.bin")
    write_bytes(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "a" / "b" / "c.bin").read_bytes() == b"new"


def test_tensors_come_back_bit_for_bit_with_their_metadata(tmp_path):
    path = tmp_path / "x.safetensors"
    odd = {**TENSORS, "turned": torch.randn(3, 4).T, "wide": torch.randn(2).double().expand(5, 2)}
    odd["nan"] = torch.tensor([float("nan"), -0.0, 1e-45])
    odd["shared"] = odd["turned"]
    write_tensors(path, odd, {"done": "12", "text": "käse"})
    found, metadata = read_tensors(path)
    assert metadata == {"done": "12", "text": "käse"}
    assert set(found) == set(odd)
    for name, value in odd.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape
        assert found[name].numpy().tobytes() == value.contiguous().numpy().tobytes()


def test_json_comes_back_and_holds_no_nan(tmp_path):
    content = {"a": [1, 2.5, None], "ü": {"b": True}}
    write_json(tmp_path / "x.json", content)
    assert read_json(tmp_path / "x.json") == content
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "x.json", float("nan"))
    assert read_json(tmp_path / "x.json") == content


@pytest.mark.parametrize("read", [read_json, read_tensors])
def test_a_missing_file_is_named_with_its_folder(tmp_path, read):
    with pytest.raises(InputError, match=r"a file gone\.x in .*got none"):
        read(tmp_path / "gone.x")
    with pytest.raises(InputError):
        read(tmp_path)


BROKEN_JSON = {
    "empty": b"",
    "truncated": b'{"a": [1, 2',
    "two": b"{} {}",
    "other encoding": '{"a": "käse"}'.encode("utf-16"),
    "too deep": b"[" * 100_000,
    "binary": bytes(range(256)),
}


@pytest.mark.parametrize("content", BROKEN_JSON.values(), ids=BROKEN_JSON)
def test_damaged_json(tmp_path, content):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(InputError, match=r"readable JSON in .*x\.json.*save again"):
        read_json(tmp_path / "x.json")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "whole.safetensors"
    write_tensors(path, TENSORS, {"done": "3"})
    return path.read_bytes()


@given(data=st.data())
def test_truncated_tensors(whole, tmp_path_factory, data):
    path = tmp_path_factory.mktemp("files") / "x.safetensors"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(InputError, match="readable tensors"):
        read_tensors(path)


@given(data=st.data())
def test_tensors_with_a_damaged_header(whole, tmp_path_factory, data):
    """A changed byte may go unnoticed in a value; in the header it is an error or another table, never a crash."""
    path = tmp_path_factory.mktemp("files") / "x.safetensors"
    damaged = bytearray(whole)
    length = struct.unpack("<Q", whole[:8])[0]
    for place in data.draw(st.lists(st.integers(0, 8 + length - 1), min_size=1, max_size=4)):
        damaged[place] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(damaged))
    try:
        found, _ = read_tensors(path)
        same_tensors(found, TENSORS, path)
    except InputError as error:
        assert str(path) in str(error)  # noqa: PT017


def test_a_header_of_nonsense(tmp_path):
    path = tmp_path / "x.safetensors"
    for header in ({"a": 3}, {"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, [], "text"):
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 4)
        with pytest.raises(InputError, match="readable tensors"):
            read_tensors(path)


@pytest.mark.parametrize("name", ["model.pt", "model.pth", "model.pkl", "MODEL.PT"])
def test_pickles_are_refused_with_the_line_that_converts_them(tmp_path, name):
    torch.save({"a": torch.ones(1)}, tmp_path / name)
    with pytest.raises(InputError, match="save_file"):
        read_tensors(tmp_path / name)


def test_the_same_tensors_or_a_name(tmp_path):
    path = tmp_path / "x.safetensors"
    same_tensors(TENSORS, dict(reversed(TENSORS.items())), path)
    with pytest.raises(InputError, match="count"):
        same_tensors({name: value for name, value in TENSORS.items() if name != "count"}, TENSORS, path)
    with pytest.raises(InputError, match="extra"):
        same_tensors({**TENSORS, "extra": torch.ones(1)}, TENSORS, path)
    with pytest.raises(InputError, match=r"a/0 of shape \[2, 3\] .*got \[3, 2\]"):
        same_tensors({**TENSORS, "a/0": torch.zeros(3, 2)}, TENSORS, path)


def test_another_kind_of_number_is_told_as_such(tmp_path):
    with pytest.raises(InputError, match=r"float32.*float64"):
        same_tensors({**TENSORS, "a/0": torch.zeros(2, 3).double()}, TENSORS, tmp_path / "x")


def test_finite_looks_at_every_number():
    assert finite(TENSORS)
    for bad in (float("nan"), float("inf"), -float("inf")):
        assert not finite({**TENSORS, "last": torch.tensor([0.0, bad])})


def test_tensors_begin_where_torch_puts_its_own(tmp_path):
    """A product with a tensor that lies elsewhere may be rounded otherwise, and a saved model say something else."""
    write_tensors(tmp_path / "t.safetensors", {f"t{n}": torch.arange(float(n)) for n in (1, 3, 2, 7)})
    found, _ = read_tensors(tmp_path / "t.safetensors")
    assert all(tensor.data_ptr() % 64 == 0 for tensor in found.values())
