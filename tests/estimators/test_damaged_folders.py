"""A damaged model folder loads or is refused in one sentence; nothing else."""

import json
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmstart.core import InputError
from warmstart.estimators.adapted import AdaptedModel
from warmstart.estimators.meta_learner import MetaLearner

FILES = ("config.json", "schema.json", "weights.safetensors", "card.md")


@pytest.fixture(scope="module")
def folders(fitted, new_task, tmp_path_factory):
    """Files of a saved model and of an adapted one, and a folder to spoil copies in."""
    home = tmp_path_factory.mktemp("folders")
    model = fitted("empirical_bayes")
    model.save(home / "meta")
    model.adapt(new_task[0], new_task[2]).save(home / "adapted")
    whole = {kind: {name: (home / kind / name).read_bytes() for name in FILES} for kind in ("meta", "adapted")}
    return whole, home / "spoilt"


def write(folder, files):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def try_loading(kind, folder):
    load = MetaLearner.load if kind == "meta" else AdaptedModel.load
    try:
        load(folder)
    except InputError:
        return False
    return True


shares = st.floats(0, 1, exclude_max=True)


@st.composite
def damages(draw):
    """A file and what becomes of its bytes."""
    name = draw(st.sampled_from(FILES))
    place, value = draw(shares), draw(st.integers(1, 255))

    def flip(content):
        at = int(place * len(content))
        return content[:at] + bytes([content[at] ^ value]) + content[at + 1 :]

    def head(content):  # where a safetensors file and JSON say what is to come
        at = int(place * min(len(content), 400))
        return content[:at] + bytes([content[at] ^ value]) + content[at + 1 :]

    cut = draw(st.sampled_from([flip, head, lambda c: c[: int(place * len(c))], lambda c: c[int(place * len(c)) :]]))
    return name, cut


@settings(max_examples=150)
@given(kind=st.sampled_from(["meta", "adapted"]), damage=damages())
def test_flipped_and_cut_bytes(folders, kind, damage):
    whole, folder = folders
    name, cut = damage
    write(folder, whole[kind] | {name: cut(whole[kind][name])})
    try_loading(kind, folder)


values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
contents = st.recursive(values, lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=4), part))


def paths(content, path=()):
    """The places of all values in a JSON document."""
    yield path
    parts = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in parts:
        yield from paths(value, (*path, key))


@settings(max_examples=150)
@given(kind=st.sampled_from(["meta", "adapted"]), name=st.sampled_from(FILES[:2]), place=shares, new=contents)
def test_other_values_in_the_json_files(folders, kind, name, place, new):
    whole, folder = folders
    document = {"top": json.loads(whole[kind][name])}
    places = list(paths(document))[1:]
    *path, last = places[int(place * len(places))]
    part = document
    for key in path:
        part = part[key]
    part[last] = new
    write(folder, whole[kind] | {name: json.dumps(document["top"]).encode()})
    try_loading(kind, folder)


@pytest.mark.parametrize("kind", ["meta", "adapted"])
def test_whole_folders_load_and_incomplete_ones_do_not(folders, kind):
    whole, folder = folders
    write(folder, whole[kind])
    assert try_loading(kind, folder)
    for name in FILES[:3]:
        write(folder, {other: content for other, content in whole[kind].items() if other != name})
        assert not try_loading(kind, folder)
    write(folder, whole["adapted" if kind == "meta" else "meta"])
    assert not try_loading(kind, folder)


def test_weights_that_are_not_numbers_are_refused(folders):
    whole, folder = folders
    content = whole["meta"]["weights.safetensors"]
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    start = 8 + size + header["theta/prior/mean"]["data_offsets"][0]
    write(folder, whole["meta"] | {"weights.safetensors": content[:start] + b"\x00\x00\xc0\x7f" + content[start + 4 :]})
    with pytest.raises(InputError, match="finite weights"):
        MetaLearner.load(folder)
