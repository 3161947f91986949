"""Functions that lie among functions that know: found out, on a set that the test writes."""

import json
import re

import numpy as np
import pytest
import torch

from warmstart.core import InputError
from warmstart.studies import select_weak
from warmstart.studies.select_weak import ACCURACY, ALL, ALONE, BEST, F1, OURS, SPEARMAN, SUPERVISED, TOO

SPAM, HAM = ["win", "free", "prize", "cash", "claim", "offer"], ["home", "lunch", "later", "mum", "love", "sorry"]
FILL = [f"word{i}" for i in range(30)]


def write(folder, seed=0):
    """Seven functions, each fires on one word; the last three say the opposite of what it means."""
    draw = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    (folder / "label.json").write_text(json.dumps({"0": "ham", "1": "spam"}))
    for name, rows in (("train", 400), ("valid", 60), ("test", 150)):
        content = {}
        for i in range(rows):
            label = int(draw.random() < 0.4)
            own = draw.choice(SPAM if label else HAM, 2, replace=False).tolist()
            words = draw.permutation([*own, *draw.choice(FILL, 5)]).tolist()
            votes = [1 if word in words else -1 for word in SPAM[:2]] + [0 if word in words else -1 for word in HAM[:2]]
            votes += [0 if word in words else -1 for word in SPAM[2:4]] + [1 if HAM[2] in words else -1]
            content[str(i)] = {"label": label, "weak_labels": votes, "data": {"text": " ".join(words)}}
        (folder / f"{name}.json").write_text(json.dumps(content))


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weak")
    write(folder / "sms")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(select_weak.PRESETS, "quick", select_weak.Preset(("sms",), 1, 40, 6))
        patch.setitem(select_weak.SETS, "sms", (3, 25))
        patch.setattr(select_weak, "find_spec", lambda name: None)
        first = select_weak.run(data=folder, folder=folder / "kept")
        again = select_weak.run(data=folder, folder=folder / "kept")
    return first, again


def test_sources_that_lie_are_left_out(outcome):
    rows = {(row.method, row.metric): row.mean for row in outcome[0].results.rows}
    assert rows[OURS, ACCURACY] > rows[ALL, ACCURACY] + 5
    assert rows[OURS, ACCURACY] >= rows[ALL + TOO, ACCURACY] and rows[OURS, F1] > 60
    assert rows[SUPERVISED, ACCURACY] > 85 and rows[OURS, SPEARMAN] > 0.5
    assert rows[OURS, f"{ACCURACY} minus {ALONE}"] == pytest.approx(rows[OURS, ACCURACY] - rows[ALONE, ACCURACY])
    assert (BEST, F1) in rows and f"{OURS} sms" in outcome[0].verdict


def test_what_is_kept_is_read_back(outcome):
    assert outcome[0].results.rows == outcome[1].results.rows


def test_coefficients_separate_liars(tmp_path):
    write(tmp_path / "sms", seed=1)
    problem = select_weak.make_problem(select_weak.read_wrench(tmp_path, "sms"), True, 40, 0)
    theta, _ = select_weak.estimate(problem, 3, 25)[OURS]
    assert max(theta[:4]) < min(theta[4:])


def test_no_test_label_decides(tmp_path, monkeypatch):
    """With other test labels every choice and every guess is the same."""
    monkeypatch.setitem(select_weak.SETS, "sms", (3, 25))
    write(tmp_path / "sms")
    wrench = select_weak.read_wrench(tmp_path, "sms")
    other = wrench._replace(test=wrench.test._replace(label=1 - wrench.test.label))
    chosen = select_weak.Preset(("sms",), 1, 40, 4)
    names = [ALONE, ALL + TOO, OURS]
    one, two = (
        select_weak.judge(select_weak.make_problem(w, True, 40, 0), "sms", names, chosen, select_weak.silent)
        for w in (wrench, other)
    )
    for name in names:
        assert one[name]["value"] == two[name]["value"]
        assert [1 - right for right in one[name]["right"]] == two[name]["right"]


def test_without_data_it_is_said():
    with pytest.raises(InputError, match="a folder with WRENCH"):
        select_weak.run()


def test_sets_of_the_paper_are_run_where_they_are_and_named_where_not(tmp_path, monkeypatch):
    write(tmp_path / "cdr")
    monkeypatch.setitem(select_weak.PRESETS, "quick", select_weak.Preset(("cdr", "chemprot"), 1, 40, 1))
    monkeypatch.setitem(select_weak.SETS, "cdr", (3, 25))
    found = select_weak.run(data=tmp_path, only=[ALL, OURS])
    assert {row.setting["set"] for row in found.results.rows} == {"cdr"}
    assert {row.metric: row.peer for row in found.results.rows if row.method == ALL} == {ACCURACY: "", F1: "paper 58.2"}
    assert "not at hand: chemprot." in found.sections[0].prose


def test_vectors_of_a_model_stand_beside_tf_idf(tmp_path, monkeypatch):
    write(tmp_path / "data" / "sms")
    monkeypatch.setitem(select_weak.PRESETS, "quick", select_weak.Preset(("sms",), 1, 40, 1))
    asked = []

    def embedded(parts, model):
        asked.append(model)
        return [torch.tensor([[len(text) / 50, 1.0] for text in part.texts]) for part in parts]

    monkeypatch.setattr(select_weak.sentences, "embed", embedded)
    for model in ("org/mini", "org/mini", "other/mini"):
        found = select_weak.run("quick", (0, 1), [ALONE], tmp_path / "data", folder=tmp_path / "kept", texts=model)
    assert asked == ["org/mini", "other/mini"]  # once for all seeds
    names = [file.name for file in (tmp_path / "kept").iterdir()]
    assert len(names) == 4 and all(re.fullmatch(r"sms [01] TF-IDF and mini [0-9a-f]{8}\.json", name) for name in names)
    assert found.results.rows[0].setting == {"set": "sms", "texts": "TF-IDF and mini"}


def test_rows_have_tf_idf_then_vectors_then_one(tmp_path):
    write(tmp_path / "sms")
    wrench = select_weak.read_wrench(tmp_path, "sms")
    vectors = [torch.tensor([[len(text) / 50, 2.0, 1.0] for text in part.texts]) for part in wrench[1:]]
    plain, both = (select_weak.make_problem(wrench, True, 40, 0, more) for more in ((), vectors))
    for one, two, more in zip(parts(plain), parts(both), vectors, strict=True):
        torch.testing.assert_close(two, torch.cat([one[:, :-1], more], 1))
        assert (two == 1).all(0).sum() == 1
    (first,) = (wrench.train.votes[:, 0] >= 0).nonzero()
    own = both.x[torch.from_numpy(first)]
    torch.testing.assert_close(both.sources.gram[0], own.T @ own)


def parts(problem):
    return problem.x, problem.labelled.x, problem.asked


def test_a_folder_is_one_model_from_wherever_it_is_named(tmp_path, monkeypatch):
    (tmp_path / "one" / "mini").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "one")
    same = [select_weak.marked(model) for model in ("mini", tmp_path / "one" / "mini", "../one/mini")]
    assert same[0] == same[1] == same[2] != select_weak.marked(tmp_path / "two" / "mini")
    assert select_weak.marked(None) == []
