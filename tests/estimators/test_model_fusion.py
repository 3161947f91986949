"""A generator of models: it chooses, says how sure it is, uses rows, and survives the disk."""

import json

import pandas as pd
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from warmstart.core import InputError
from warmstart.estimators.model_fusion import ADAPTER_WAYS, WAYS, ModelFusion, make_inputs, relative_error
from warmstart.fusion import adapter_functions, function_gp, hypernetwork
from warmstart.fusion.zoo import make_zoo
from warmstart.maths import gp
from warmstart.models.mlp import MLP, seeded

RANGE = (-3.0, 3.0)
FAST = {
    **WAYS,
    "hypernetwork": WAYS["hypernetwork"]._replace(config=hypernetwork.Config(hidden=(8,), steps=20)),
    "function_gp": WAYS["function_gp"]._replace(config=function_gp.Config(steps=40)),
}


def curve(a, b, x):
    return a * torch.sin(x + b)


def trained_pool(n=24, seed=0):
    """Networks [1-32-1] trained together on a sin(x + b), each from its own start."""
    draw = torch.Generator().manual_seed(seed)
    a, b = 0.5 + 2 * torch.rand(n, generator=draw), 1.5 * torch.rand(n, generator=draw)
    starts = []
    for i in range(n):
        with seeded(i):
            starts.append(dict(MLP(1, (32,), 1).named_parameters()))
    params = {k: torch.stack([s[k].detach() for s in starts]).requires_grad_() for k in starts[0]}
    x = 6 * torch.rand(n, 60, 1, generator=draw) - 3
    y = curve(a[:, None], b[:, None], x[..., 0])
    optimiser = torch.optim.Adam(params.values(), lr=0.02)
    apply = torch.func.vmap(lambda one, rows: torch.func.functional_call(MLP_SHAPE, one, (rows,)))
    for _ in range(500):
        optimiser.zero_grad()
        (apply(params, x)[..., 0] - y).square().mean(1).sum().backward()
        optimiser.step()
    names = tuple(f"net{i}" for i in range(n))
    table = pd.DataFrame({"net": names, "a": a.numpy(), "b": b.numpy()})
    return make_zoo(names, {k: v.detach() for k, v in params.items()}, table)


MLP_SHAPE = MLP(1, (32,), 1)


@pytest.fixture(scope="module")
def fitted():
    return ModelFusion(ways=FAST).fit(trained_pool(), inputs=RANGE)


def test_the_way_with_the_smallest_held_out_error_is_taken(fitted):
    means = {name: float(error.mean()) for name, error in fitted.errors_.items()}
    assert set(means) == set(WAYS) and fitted.chosen_ == min(means, key=means.get) == "function_gp"
    assert means["nearest"] > 1.5 * means["function_gp"]


def test_an_unseen_task_is_predicted_inside_its_band_and_rows_narrow_it(fitted):
    x = torch.linspace(-3, 3, 100)
    inside, before, after, widths = [], [], [], []
    for a, b in [(0.8, 0.3), (1.6, 1.2), (2.1, 0.7), (1.1, 1.0)]:
        truth = curve(a, b, x).double()
        rows = torch.linspace(-2.8, 2.9, 12)
        plain = fitted.generate({"a": a, "b": b})
        better = fitted.generate({"a": a, "b": b}, (rows[:, None], curve(a, b, rows)))
        mean, low, high = plain.predict(x[:, None])
        inside.append(float(((low[:, 0] <= truth) & (truth <= high[:, 0])).double().mean()))
        before.append(float((mean[:, 0] - truth).square().mean()))
        after.append(float((better.predict(x[:, None])[0][:, 0] - truth).square().mean()))
        widths.append(float(better.half / plain.half))
        assert better.shots == 12 and plain.shots == 0
    assert sum(inside) / 4 > 0.8 and sum(after) < 0.7 * sum(before) and max(widths) < 1


def test_far_outside_the_pool_the_band_is_wide_and_a_warning_is_given(fitted):
    near, far = fitted.generate({"a": 1.5, "b": 0.7}), fitted.generate({"a": 40.0, "b": 0.7})
    assert near.warning == "" and "far outside" in far.warning and far.half > 4 * near.half


def test_rows_of_another_task_are_warned_of(fitted):
    x = torch.linspace(-2.5, 2.5, 4)
    other = fitted.generate({"a": 1.5, "b": 0.7}, (x[:, None], curve(1.5, 0.7, x) + 9.0))
    same = fitted.generate({"a": 1.5, "b": 0.7}, (x[:, None], curve(1.5, 0.7, x)))
    assert "most rows lie outside the interval" in other.warning and same.warning == ""


def test_one_descriptor_at_a_time(fitted):
    for known in (torch.zeros(3), fitted.zoo_.descriptor[:2], torch.tensor([0.0, float("nan")])):
        with pytest.raises(InputError, match="one descriptor of 2 finite numbers"):
            fitted.generate(known)


def test_what_was_taken_for_granted_is_said(fitted):
    (note,) = fitted.notes_
    assert note.startswith("read as ") and "ReLU" in note and "nothing around the layers" in note


def test_relevance_is_largest_for_near_tasks_and_makes_the_mean(fitted):
    known = fitted.zoo_.names[3]
    encoded = fitted.zoo_.descriptor[3]
    weights = fitted.generate(encoded).relevance
    assert next(iter(weights)) == known
    order = torch.tensor([weights[name] for name in fitted.zoo_.names])
    said = order.double() @ fitted.process_.y
    assert_close(said, gp.predict(fitted.process_, encoded[None].double())[0][0])


def test_wider_levels_are_wider(fitted):
    known = {"a": 1.5, "b": 0.7}
    assert fitted.generate(known, level=0.5).half < fitted.generate(known, level=0.9).half
    with pytest.raises(InputError, match="a level between 0 and 1"):
        fitted.generate(known, level=90)


def test_a_saved_generator_makes_the_same_models(fitted, tmp_path):
    fitted.save(tmp_path / "gen")
    again = ModelFusion.load(tmp_path / "gen")
    rows = (torch.tensor([[0.5], [1.0]]), torch.tensor([0.9, 1.4]))
    for support in (None, rows):
        ours, theirs = (each.generate({"a": 1.2, "b": 0.4}, support) for each in (fitted, again))
        assert_close(ours.half, theirs.half)
        for name, value in ours.params.items():
            assert torch.equal(value, theirs.params[name])
    assert "function_gp" in (tmp_path / "gen" / "card.md").read_text()


@pytest.mark.parametrize("way", WAYS)
def test_every_way_can_be_asked_for_saved_and_loaded(way, fitted, tmp_path):
    names = fitted.zoo_.names[:12]
    table = pd.DataFrame({"net": names, "t": range(12)})
    zoo = make_zoo(names, {k: v[:12] for k, v in fitted.zoo_.params.items()}, table)
    model = ModelFusion(way, FAST).fit(zoo, inputs=RANGE)
    assert model.chosen_ == way
    model.save(tmp_path / "gen")
    again = ModelFusion.load(tmp_path / "gen")
    again.ways = FAST
    assert_close(again.generate({"t": 3.3}).params, model.generate({"t": 3.3}).params)


def test_a_damaged_folder_is_refused(fitted, tmp_path):
    fitted.save(tmp_path / "gen")
    config = json.loads((tmp_path / "gen" / "config.json").read_text())
    (tmp_path / "gen" / "config.json").write_text(json.dumps({**config, "columns": 3}))
    with pytest.raises(InputError, match="damaged"):
        ModelFusion.load(tmp_path / "gen")


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, x):
        return self.b(x + torch.tanh(self.a(x)))


def test_a_network_of_unknown_symmetry_is_fused_without_alignment_and_that_is_said():
    draw = torch.Generator().manual_seed(0)
    params = {name: torch.randn(8, *value.shape, generator=draw) for name, value in Residual().named_parameters()}
    names = tuple("abcdefgh")
    zoo = make_zoo(names, params, pd.DataFrame({"m": names, "t": range(8)}))
    model = ModelFusion(ways=FAST).fit(zoo, Residual(), torch.linspace(-2, 2, 20)[:, None])
    assert [note.split(" ")[0] for note in model.notes_] == ["aligned_average", "weight_gp"]
    with pytest.raises(InputError, match="symmetry is known"):
        ModelFusion("weight_gp", FAST).fit(zoo, Residual(), torch.linspace(-2, 2, 20)[:, None])


def test_bad_support_is_refused(fitted):
    known = {"a": 1.5, "b": 0.7}
    for support, words in [
        ((torch.zeros(3, 2), torch.zeros(3)), "support rows of \\[1\\] inputs"),
        ((torch.zeros(3, 1), torch.zeros(2)), "support rows"),
        ((torch.zeros(0, 1), torch.zeros(0)), "support rows"),
        ((torch.full((1, 1), float("nan")), torch.zeros(1)), "finite numbers"),
    ]:
        with pytest.raises(InputError, match=words):
            fitted.generate(known, support)


def test_unknown_methods_are_refused(fitted):
    with pytest.raises(InputError, match="auto or one among nearest"):
        ModelFusion("magic").fit(fitted.zoo_)


def test_inputs_fill_the_range():
    plane = make_inputs({"w": torch.zeros(4, 5, 2)}, (-1.0, 2.0), 64)
    assert plane.shape == (64, 2) and plane.min() >= -1 and plane.max() <= 2 and (plane.std(0) > 0.7).all()
    with pytest.raises(InputError, match="low below high"):
        make_inputs({"w": torch.zeros(4, 5, 1)}, (2.0, 1.0))


def test_errors_are_relative_to_the_range():
    wanted = torch.tensor([[[0.0], [4.0]], [[1.0], [2.0]]])
    assert_close(relative_error(wanted + 1, wanted), torch.tensor([0.25, 1.0]))


BASE = {"0.bias": torch.zeros(4), "0.weight": torch.eye(4)[:, :2], "2.weight": torch.tensor([[1.0, -1.0, 0.0, 0.0]])}
FEW = adapter_functions.Config(hidden=(8,), steps=20)
QUICK = {**ADAPTER_WAYS, "adapter_functions": ADAPTER_WAYS["adapter_functions"]._replace(config=FEW)}


def adapter_pool(n=15):
    """Of rank 1: the head of the frozen network turns with t, by factors of any size and sign."""
    t = torch.linspace(-1, 1, n)
    size = torch.linspace(-2, 3, n)[:, None]
    head = torch.stack([t, t**2, 0.5 * t, torch.zeros(n)], -1)
    params = {"2.lora_A": (head / size)[:, None], "2.lora_B": size[..., None]}
    names = tuple(f"u{i}" for i in range(n))
    return make_zoo(names, params, pd.DataFrame({"user": names, "t": t.numpy()}))


def test_adapters_are_fused_by_their_products_saved_and_loaded(tmp_path):
    model = ModelFusion(ways=QUICK).fit(adapter_pool(), "tanh", (-2.0, 2.0), base=BASE)
    assert model.chosen_ == "adapter_gp" and set(model.errors_) == set(ADAPTER_WAYS)
    made = model.generate({"t": 0.63})
    wanted = torch.tensor([[0.63, 0.63**2, 0.315, 0.0]])
    assert_close(made.params["2.lora_B"] @ made.params["2.lora_A"], wanted, rtol=0, atol=0.01)
    x = torch.randn(5, 2)
    said = torch.tanh(x @ BASE["0.weight"].T) @ (BASE["2.weight"] + wanted).T
    mean, low, high = made.predict(x)
    assert_close(mean.float(), said, rtol=0, atol=0.03)
    assert (low <= mean).all() and (mean < high).all() and "far outside" in model.generate({"t": 30.0}).warning
    model.save(tmp_path / "gen")
    again = ModelFusion.load(tmp_path / "gen")
    assert_close(again.generate({"t": 0.63}).params, made.params)
    with pytest.raises(InputError, match="no rows for an adapter"):
        model.generate({"t": 0.63}, (x, x[:, 0]))


def test_adapters_of_a_module_are_loaded_with_it(tmp_path):
    module = nn.Sequential(nn.Linear(2, 4), nn.Sigmoid(), nn.Linear(4, 1, bias=False))
    rows = torch.randn(30, 2)
    model = ModelFusion("average").fit(adapter_pool(), module, rows)
    model.save(tmp_path / "gen")
    with torch.no_grad():
        module[0].weight.add_(1.0)  # what was fused stays as it was
    again = ModelFusion.load(tmp_path / "gen", module)
    assert_close(again.generate({"t": 0.0}).predict(rows), model.generate({"t": 0.0}).predict(rows))


def test_adapters_without_their_network_are_refused():
    with pytest.raises(InputError, match="the frozen network of the adapters, got none; pass it with --base"):
        ModelFusion().fit(adapter_pool())
    with pytest.raises(InputError, match="auto or one among nearest, average, adapter_gp, adapter_functions"):
        ModelFusion("weight_gp").fit(adapter_pool(), base=BASE)
    with pytest.raises(InputError, match="got whole models"):
        ModelFusion().fit(trained_pool(4), base=BASE)
