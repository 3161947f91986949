"""Folders of preference models: a damaged one loads or is refused in one sentence; nothing else."""

import json
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmstart.core import InputError
from warmstart.estimators.preference_learner import PreferenceLearner

FILES = ("config.json", "schema.json", "weights.safetensors", "card.md")


@pytest.fixture(scope="module")
def folders(preference_models, click_models, tmp_path_factory):
    home = tmp_path_factory.mktemp("preferences")
    found = {}
    for name, model in (preference_models | click_models).items():
        model.save(home / name)
        found[name] = {file: (home / name / file).read_bytes() for file in FILES}
    return found, home / "spoilt"


def try_loading(folder, files):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    try:
        PreferenceLearner.load(folder)
    except InputError:
        return False
    return True


@settings(max_examples=60)
@given(
    method=st.sampled_from(["preference_bayes", "rating_means", "reg_paml", "click_bayes", "click_means"]),
    name=st.sampled_from(FILES),
    place=st.floats(0, 1, exclude_max=True),
    value=st.integers(1, 255),
    cut=st.booleans(),
)
def test_damaged_folders_load_or_are_refused(folders, method, name, place, value, cut):
    whole, folder = folders
    content = whole[method][name]
    at = int(place * len(content))
    spoilt = content[:at] if cut else content[:at] + bytes([content[at] ^ value]) + content[at + 1 :]
    loaded = try_loading(folder, whole[method] | {name: spoilt})
    assert not (loaded and cut and name != "card.md")


def paths(content, path=()):
    yield path
    parts = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in parts:
        yield from paths(value, (*path, key))


@settings(max_examples=60)
@given(
    method=st.sampled_from(["preference_bayes", "click_bayes"]),
    name=st.sampled_from(FILES[:2]),
    place=st.floats(0, 1, exclude_max=True),
    new=st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4) | st.just([]),
)
def test_other_values_in_the_json_files(folders, method, name, place, new):
    whole, folder = folders
    document = {"top": json.loads(whole[method][name])}
    places = list(paths(document))[1:]
    *path, last = places[int(place * len(places))]
    part = document
    for key in path:
        part = part[key]
    part[last] = new
    try_loading(folder, whole[method] | {name: json.dumps(document["top"]).encode()})


def test_incomplete_newer_and_other_folders_are_refused(folders):
    whole, folder = folders
    assert try_loading(folder, whole["preference_bayes"])
    for name in FILES[:3]:
        assert not try_loading(folder, {k: v for k, v in whole["preference_bayes"].items() if k != name})
        assert not try_loading(folder, whole["preference_bayes"] | {name: whole["rating_means"][name]})
    for name, key in (("config.json", "format"), ("schema.json", "version")):
        newer = json.loads(whole["rating_means"][name]) | {key: 99}
        assert not try_loading(folder, whole["rating_means"] | {name: json.dumps(newer).encode()})
        with pytest.raises(InputError, match=r"99; update warmstart"):
            PreferenceLearner.load(folder)
