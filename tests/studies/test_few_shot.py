"""The picture studies on pictures that a test can draw: bars of different slopes are the classes."""

import math

import pytest
import torch

from warmstart.baselines import protonet
from warmstart.cli.writing import write_report
from warmstart.core import InputError, Prediction
from warmstart.core.trees import concat, tree_map
from warmstart.engine.files import read_tensors
from warmstart.engine.loop import silent
from warmstart.engine.noise import generator
from warmstart.engine.stage import PLAIN
from warmstart.learners import imaml, maml, scratch
from warmstart.metrics.calibration import expected_calibration_error, maximum_error_by_chance, reliability
from warmstart.studies import cost, few_shot, omniglot, tiny_imagenet
from warmstart.studies.few_shot import Network, Parts, Size, one_by_one, run_study
from warmstart.studies.few_shot_rows import MIRRORED, WARPED, Setting, entries
from warmstart.studies.few_shot_tables import ACCURACY, ALONE, APART, BY_CHANCE, ECE, MANY, rows_of, verdict
from warmstart.tasks.class_split import load_split
from warmstart.tasks.images import draw_episodes, make_images, with_rotations
from warmstart.tasks.omniglot import read_omniglot, split_omniglot
from warmstart.tasks.warps import SLIGHT
from warmstart.training.train import Plan, Trained

SIDE, EACH = 12, 8
LOOKED = [("fomaml, mirrored", 6, 12), ("fomaml, mirrored", 12, 12)] + [
    ("imaml, plain gradient, mirrored", done, 2)
    for done in (1, 2)  # a sixth of the updates, as many looks
]
LEARNERS = entries(
    {
        "scratch": lambda at: scratch.Config(test_steps=1),
        "maml": lambda at: maml.Config(inner_lr=0.1),
        "protonet": lambda at: protonet.Config(outer_lr=3e-3),
    }
)
TINY = Size(
    ("nearest_centroid", "linear_head", "protonet", "maml", "scratch"),
    (Setting(3, 1), Setting(3, 2)),
    Plan(steps=12, every=6),
    tests=16,
    looks=3,
    query=3,
    tasks={3: 4},
    asked={3: 3},
    classifier=10,
)


def bars(first, count):
    """Class k: noisy pictures of a line through the middle with its own slope, at random offsets."""
    draw = torch.Generator().manual_seed(first)
    place = torch.arange(SIDE) - (SIDE - 1) / 2
    pictures = []
    for k in range(first, first + count):
        angle = math.pi * k / 40
        for _ in range(EACH):
            offset = 4 * torch.rand((), generator=draw) - 2
            distance = (place[None, :] * math.sin(angle) - place[:, None] * math.cos(angle) + offset).abs()
            picture = 200 * (distance < 1.2) + 50 * torch.rand(SIDE, SIDE, generator=draw)
            pictures.append(picture.to(torch.uint8)[None])
    return make_images(
        torch.stack(pictures), torch.full((count,), EACH), tuple(f"slope {k}" for k in range(first, first + count))
    )


@pytest.fixture(scope="module", autouse=True)
def stacked():
    """Pictures this small are judged sooner in stacks of tasks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(few_shot.CHUNK, "cpu", 100)
        yield


def run_plain(*arguments):
    """A study of trainings so short that they are over before their programs would be recorded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(few_shot, "fastest_stage", lambda *_: PLAIN)
        return run_study(*arguments)


@pytest.fixture(scope="module")
def parts():
    return Parts(bars(0, 20), bars(20, 6), bars(26, 10))


@pytest.fixture(scope="module")
def outcome(parts):
    published = {("maml", 3, 1): 98.7}
    return run_plain(
        "omniglot", "quick", TINY, parts, Network(4, True), LEARNERS, published, [0, 1], [], "cpu", None, None
    )


@pytest.mark.xdist_group("few_shot")
def test_every_method_has_every_row(outcome):
    found = {(row.method, row.metric, row.setting["shot"]) for row in outcome.results.rows}
    metrics = (ACCURACY, ALONE, "NLL", ECE, "MCE", "ECE, calibrated", "MCE, calibrated", BY_CHANCE)
    assert found == {(name, metric, shot) for name in TINY.methods for metric in metrics for shot in (1, 2)}
    row = next(row for row in outcome.results.rows if (row.method, row.metric) == ("maml", ACCURACY))
    assert row.seeds == (0, 1) and row.counts == (16, 16) and row.peer == "paper 98.7"
    assert all(0 <= row.mean <= 100 for row in outcome.results.rows)


def test_classes_that_were_turned_are_judged_apart_too():
    """A grey square turned is the same square: only where no class is another one turned are all told apart."""

    def greys(first):
        pixels = torch.arange(first, 250, 25, dtype=torch.uint8).repeat_interleave(EACH)[:, None, None, None]
        names = tuple(f"grey {value}" for value in range(first, 250, 25))
        return with_rotations(make_images(pixels.expand(-1, 1, 4, 4), torch.full((len(names),), EACH), names))

    parts = Parts(greys(0), greys(5), greys(10))
    size = TINY._replace(methods=("nearest_centroid",), settings=(Setting(3, 1),), tests=200)
    outcome = run_study("omniglot", "quick", size, parts, Network(4, True), LEARNERS, {}, [0], [], "cpu", None, None)
    found = {row.metric: row for row in outcome.results.rows}
    # ten greys turned four ways: 22 % of the tasks hold one twice and have a third of their pictures wrong
    assert found[APART].mean == 100 and found[APART].counts == (200,)
    assert 90 < found[ACCURACY].mean < 96


@pytest.mark.xdist_group("few_shot")
def test_the_page_has_a_table_and_a_diagram_for_each_setting(outcome):
    assert [section.heading for section in outcome.sections] == ["3-way 1-shot", "3-way 2-shot"]
    for section in outcome.sections:
        assert section.svg.startswith("<svg") and len(section.table.lines) == len(TINY.methods)
    assert "best baseline" in outcome.verdict


def test_an_interrupted_study_goes_on(parts, tmp_path):
    size = TINY._replace(methods=("maml",), settings=(Setting(3, 1),))
    told = []

    def progress(label):
        return lambda done, of, words: told.append(done)

    arguments = ("omniglot", "quick", size, parts, Network(4, True), LEARNERS, {}, [0], [], "cpu", progress, tmp_path)
    first = run_study(*arguments)
    trained = len(told)
    again = run_study(*arguments)
    assert len(told) - trained < trained  # nothing is trained twice
    assert [row.values for row in again.results.rows] == [row.values for row in first.results.rows]


def cell(learners, parts, size):
    return few_shot.Cell(learners, parts, Setting(3, 1), size, Network(4, True), 0, torch.device("cpu"))


def test_warped_rows_differ_in_training_alone(parts, tmp_path):
    learners = entries(
        {"protonet": lambda at: protonet.Config(outer_lr=3e-3), "imaml_head": lambda at: imaml.HEAD},
        {WARPED: SLIGHT},
    )
    assert "scratch, warped" not in omniglot.LEARNERS and "maml, warped" in omniglot.LEARNERS  # it trains on nothing
    assert learners["imaml_head"].fast == "head.*" and learners["protonet, warped"].warp == SLIGHT
    names = ("protonet", "protonet, warped", "imaml_head", "imaml_head, warped")
    size = TINY._replace(methods=names, settings=(Setting(3, 1),))
    outcome = run_plain("omniglot", "quick", size, parts, Network(4, True), learners, {}, [0], [], "cpu", None, None)
    found = {row.method: row for row in outcome.results.rows if row.metric == "NLL"}
    assert set(found) == set(names) and len({row.mean for row in found.values()}) == len(names)
    assert "best baseline, protonet" in outcome.verdict and "imaml_head" in outcome.verdict
    kept = [few_shot.kept_name(name, cell(learners, parts, size)) for name in names]
    assert len({name.rpartition("-")[2] for name in kept}) == len(names)


def test_the_luckiest_look_must_beat_the_last_state_on_more_tasks(parts, monkeypatch):
    """Whichever of the two tells classes apart is kept; a network of zeros does not."""
    found = []

    def trained(place):
        def train(learner, state, source, plan, look, **_):
            blank = state._replace(theta=tree_map(torch.zeros_like, state.theta))
            found[:] = (state, blank) if place == 0 else (blank, state)
            return Trained(found[0], 0.0, 1, found[1])

        monkeypatch.setattr(few_shot, "train", train)
        where = cell({"protonet": LEARNERS["protonet"]}, parts, TINY._replace(looks=20))
        return few_shot.trained("protonet", where, PLAIN, silent, None)[1]

    for place in (0, 1):
        assert trained(place) is found[place]


def test_a_row_may_come_after_another(parts, tmp_path):
    """It starts from the network that the other's training ends with, takes its share of updates, and is kept apart."""
    learners = entries(
        {
            "fomaml": lambda at: maml.Config(inner_lr=0.1, test_steps=1, first_order=True),
            "imaml, plain gradient": lambda at: imaml.Config(inner_steps=1, test_steps=1, solve_steps=0, outer_lr=1e-9),
        },
        {MIRRORED: SLIGHT._replace(mirror="classes")},
    )
    name = "imaml, plain gradient, mirrored"
    row = learners[name]
    assert row.after == "fomaml, mirrored" and row.warp == learners[row.after].warp
    size = TINY._replace(methods=(row.after, name), settings=(Setting(3, 1),), tests=4, looks=2)
    told = []

    def progress(label):
        return lambda done, of, words: told.append((label, done, of))

    arguments = ("omniglot", "quick", size, parts, Network(4, True), learners, {}, [0], [], "cpu", progress, tmp_path)
    run_plain(*arguments)
    assert told == [(f"{name}, 3-way 1-shot, seed 0", done, of) for name, done, of in LOOKED]
    names = [few_shot.kept_name(name, cell(learners, parts, size)) for name in size.methods]
    first, second = (read_tensors(tmp_path / name / "checkpoint.safetensors")[0] for name in names)
    other = learners | {row.after: learners[row.after]._replace(config=lambda at: maml.FOMAML)}
    assert few_shot.kept_name(name, cell(other, parts, size)) not in names
    best = [name for name in first if name.startswith("memo/state/theta/")]  # from which the second hardly moves
    assert len(best) == 14
    for name in best:
        torch.testing.assert_close(second[name], first[name], rtol=0, atol=1e-7)


def test_alone_is_one_query_row_at_a_time(parts):
    task = draw_episodes(parts.test, 4, 3, 1, 2, torch.Generator().manual_seed(0))

    def predict(task):
        return Prediction(task.query.x["pixels"].mean((-1, -2)) - task.query.x["pixels"].mean((1, -1, -2))[:, None])

    said = one_by_one(predict)(task).mean
    assert said.shape == (4, 6, 1) and not said.abs().max() > 1e-6  # each is its own mean
    assert predict(task).mean.abs().max() > 1e-3


def test_of_many_query_pictures_some_of_every_class_are_judged_alone(parts, monkeypatch):
    monkeypatch.setattr(few_shot, "SEEN_ALONE", 4)
    task = draw_episodes(parts.test, 5, 3, 1, 3, torch.Generator().manual_seed(0))
    seen = []

    def predict(task):
        seen.append(task.query.y)
        return Prediction(torch.nn.functional.one_hot(task.query.y.long(), 3).float())

    judged = few_shot.judge(predict, predict, task)
    together, alone = seen
    assert together.shape == (5, 9) and alone[0].tolist() == [0, 0, 1, 2, 2]  # every second one
    assert judged.accuracy.tolist() == judged.alone.tolist() == [1.0] * 5 and judged.said.probability.shape == (5, 9, 3)


def test_a_boastful_method_is_calibrated_on_validation_classes(parts):
    """Right on seven rows of ten whatever it says: one power, settled on other tasks, makes it say so."""
    judged, test = (draw_episodes(parts.test, 60, 3, 1, 3, torch.Generator().manual_seed(seed)) for seed in (0, 1))

    def predict(task):
        draw = torch.Generator().manual_seed(len(task.key))
        guess = torch.where(torch.rand(task.query.y.shape, generator=draw) < 0.7, task.query.y, task.query.y + 1) % 3
        return Prediction(0.985 * torch.nn.functional.one_hot(guess.long(), 3) + 0.005)

    found = few_shot.judge(predict, predict, test, few_shot.settle(predict, judged))
    rows = {row.metric: row.mean for row in rows_of("maml", Setting(3, 1), {0: found}, {})}
    assert rows["ECE"] > 0.2 and rows["ECE, calibrated"] < 0.06 and rows["MCE, calibrated"] < 0.06
    bins = reliability(found.said.calibrated, found.said.query)
    assert rows[BY_CHANCE] == pytest.approx(maximum_error_by_chance(bins)) and 0.01 < rows[BY_CHANCE] < 0.06
    assert (found.said.calibrated.argmax(-1) == found.said.probability.argmax(-1)).all()


def test_calibration_is_judged_on_many_more_tasks_where_a_study_asks_for_them(parts):
    methods = ("nearest_centroid", "scratch")
    size = TINY._replace(methods=methods, settings=(Setting(3, 1),), many=3, calibrated=methods[:1])
    outcome = run_study("tiny", "quick", size, parts, Network(4, True), LEARNERS, {}, [0], [], "cpu", None, None)
    assert {row.method for row in outcome.results.rows if row.metric.endswith(MANY)} == {"nearest_centroid"}
    found = {row.metric: row.mean for row in outcome.results.rows if row.method == "nearest_centroid"}
    predict, _ = few_shot.fit("nearest_centroid", cell(LEARNERS, parts, size), silent, None)
    drawn = [draw_episodes(parts.test, 100, 3, 1, 3, generator(few_shot.TEST, 3, place)) for place in range(size.many)]
    tasks = concat(drawn)
    bins = reliability(predict(tasks).mean, tasks.query)
    assert found["ECE" + MANY] == pytest.approx(expected_calibration_error(bins), rel=1e-4)
    assert found["ECE" + MANY] != found["ECE"] and found[BY_CHANCE + MANY] < found[BY_CHANCE]
    heads = outcome.sections[0].table.head
    assert [head for head in heads if head.endswith(MANY)] == [
        metric + MANY for metric in ("ECE", "MCE", "ECE, calibrated", "MCE, calibrated", BY_CHANCE)
    ]


def test_unknown_methods_and_missing_data_are_said():
    with pytest.raises(InputError, match="linear_head"):
        run_study("omniglot", "quick", TINY, None, Network(4, True), LEARNERS, {}, [0], ["malm"], "cpu", None, None)
    for study in (omniglot, tiny_imagenet):
        with pytest.raises(InputError, match="--data"):
            study.run()


def test_quick_trains_for_a_minute_and_beats_the_nearest_centroid(shared_data, tmp_path):
    """On real characters; the preset itself, shortened, so that the suite stays short."""
    size = omniglot.SIZES["quick"]
    shorter = size._replace(methods=("nearest_centroid", "protonet"), plan=Plan(steps=60, every=60), tests=40)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(omniglot.SIZES, "quick", shorter)
        outcome = omniglot.run(data=shared_data, device="cpu")
    at = {row.method: row.mean for row in outcome.results.rows if row.metric == ACCURACY}
    assert at["protonet"] > at["nearest_centroid"] > 40
    write_report(tmp_path, outcome, "Omniglot", merged=True)
    images = read_omniglot(shared_data)
    assert load_split(tmp_path / "split.json") == split_omniglot(images)


def test_cost_grows_with_the_inner_steps_only_where_the_loop_is_differentiated(monkeypatch):
    monkeypatch.setitem(cost.PRESETS, "quick", cost.Preset((1, 4), 16, 2, 2, 2, 1))
    outcome = cost.run(only=["maml", "maml, recomputed", "fomaml"], device="cpu")
    growth = {row.method: row.mean for row in outcome.results.rows if row.metric == "growth"}
    assert growth["maml"] > 2 and growth["fomaml"] < 1.05 and growth["maml, recomputed"] < growth["maml"]
    assert "maml" in outcome.verdict and all(section.svg for section in outcome.sections)
    with pytest.raises(InputError, match="methods among"):
        cost.run(only=["malm"])


def test_settings_speak():
    assert Setting(20, 5).label == "20-way 5-shot"
    assert verdict([], Setting(5, 1)) == "Nothing was run."


def test_a_training_that_diverged_is_shown_as_such(parts):
    wild = entries({"maml": lambda at: maml.Config(inner_lr=0.1, outer_lr=1e30)})
    size = TINY._replace(methods=("nearest_centroid", "maml"), settings=(Setting(3, 1),))
    turned = Parts(*(with_rotations(part) for part in parts))
    outcome = run_plain("omniglot", "quick", size, turned, Network(4, True), wild, {}, [0], [], "cpu", None, None)
    lines = {line.label: line.cells for line in outcome.sections[0].table.lines}
    assert [cell.text for cell in lines["maml"][:3]] == ["not finite"] * 3  # together, alone and apart
    assert "nearest_centroid" in outcome.verdict
