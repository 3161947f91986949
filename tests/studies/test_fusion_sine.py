"""The study of fused sine networks, made tiny: every row is there, and pools are trained as said."""

import pytest
import torch
from torch.testing import assert_close

from warmstart.core import InputError
from warmstart.engine.noise import generator
from warmstart.fusion import function_gp, meta_model, weight_gp
from warmstart.fusion.network import make_network
from warmstart.models.mlp import MLP
from warmstart.studies import fusion_sine, sine_learners, sine_zoo
from warmstart.tasks import sine


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(sine_zoo, "SEEN", 15)
    monkeypatch.setattr(sine_zoo, "UNSEEN", 5)
    monkeypatch.setattr(fusion_sine, "SHOTS", (0, 4))
    monkeypatch.setattr(fusion_sine, "META_SHOTS", (4,))
    monkeypatch.setattr(fusion_sine, "META_TESTS", 2)
    monkeypatch.setattr(fusion_sine, "TUNING", 2)
    monkeypatch.setattr(sine_learners, "TRIALS", ((1e-3, 2), (1e-2, 2)))
    monkeypatch.setattr(fusion_sine, "TRIALS", ((1e-3, 2), (1e-2, 2)))
    monkeypatch.setattr(fusion_sine, "SETTINGS", {fusion_sine.FIVE: (sine.POLARISED, 15)})
    size = fusion_sine.Preset(30, 2, 1, 2, (fusion_sine.FIVE,), 5, 10)
    monkeypatch.setitem(fusion_sine.PRESETS, "quick", size)
    monkeypatch.setattr(meta_model, "START", weight_gp.Config(rounds=1))
    short = {"weight_gp": weight_gp.Config(rounds=1), "function_gp": function_gp.Config(steps=5)}
    for rows in (fusion_sine.ROWS, fusion_sine.WAYS):
        for name, config in short.items():
            monkeypatch.setitem(rows, name, rows[name]._replace(config=config))


def test_the_study_has_every_row_and_goes_on_from_kept_pools(tiny, tmp_path):
    outcome = fusion_sine.run(seeds=[0], folder=tmp_path)
    rows = {(row.method, row.setting["family"], row.setting["shots"], row.metric): row for row in outcome.results.rows}
    methods = [*fusion_sine.ROWS, fusion_sine.FLOOR, fusion_sine.ZERO, fusion_sine.COLD, fusion_sine.AUTO]
    methods += [fusion_sine.META, fusion_sine.META_LOOSE, fusion_sine.META_REFIT, *sine_learners.HIDDEN]
    for method in methods:
        for family in (fusion_sine.FIVE, "domain 1", "domain 5"):
            assert (method, family, 0, fusion_sine.ERROR) in rows
    five = fusion_sine.FIVE
    for metric in (fusion_sine.ERROR, fusion_sine.COVERED, fusion_sine.NETS, fusion_sine.HARMED, fusion_sine.PAIRED):
        assert (fusion_sine.AUTO, five, 4, metric) in rows
    for name in (fusion_sine.META, fusion_sine.META_LOOSE, fusion_sine.META_REFIT):
        assert len(rows[f"{name}{fusion_sine.TUNED}", five, 4, fusion_sine.ERROR].values) == 1
    apart = rows[fusion_sine.META_H, five, 4, fusion_sine.LESS]
    assert apart.counts == (2,) and rows[f"{fusion_sine.META}{fusion_sine.TUNED}", five, 4, "nRMSE"].counts == (5,)
    whole = rows[fusion_sine.AUTO, five, 0, fusion_sine.ERROR].mean
    parts = [rows[fusion_sine.AUTO, f"domain {k}", 0, fusion_sine.ERROR].mean for k in range(1, 6)]
    assert whole == pytest.approx(sum(parts) / 5)
    assert any("the paper's meta-model, before any row" in section.caption for section in outcome.sections)
    assert "automatic choice errs" in outcome.verdict and len(list(tmp_path.iterdir())) == 1
    again = fusion_sine.run(seeds=[0], only=["nearest"], folder=tmp_path)
    found = {row.method: row.mean for row in again.results.rows if row.setting["family"] == five}
    assert found["nearest"] == rows["nearest", five, 0, fusion_sine.ERROR].mean
    assert "not run" in again.verdict


def test_learners_are_judged_without_a_pool_of_networks(tiny):
    outcome = fusion_sine.run(seeds=[0], only=[sine_learners.FEDERATED])
    found = {(row.method, row.setting["family"], row.setting["shots"]): row for row in outcome.results.rows}
    assert {method for method, _, _ in found} == {sine_learners.FEDERATED}
    assert found[sine_learners.FEDERATED, fusion_sine.FIVE, 0].peer == "paper 0.356"
    assert {shots for _, _, shots in found} == {0, 4}


def test_a_round_of_clients_is_the_average_of_their_own_steps(monkeypatch):
    """One client at a time, by plain autograd."""
    monkeypatch.setattr(sine_learners, "CLIENTS", 3)
    monkeypatch.setattr(sine_learners, "LOCAL", 2)
    module = MLP(1, (5,), 1)
    start = {name: value.detach().clone() for name, value in module.named_parameters()}
    made = sine_learners.average_clients(make_network(module), start, sine.HARD, 4, 1)
    draw = generator(4, 60)
    tasks = sine.parameters(sine.HARD, 3, draw)
    x = -5 + 10 * torch.rand(3, 40, generator=draw)
    y = sine.curve(tasks, x)

    def gradient(params, task, rows):
        live = {name: value.clone().requires_grad_() for name, value in params.items()}
        said = torch.func.functional_call(module, live, (x[task, rows, None],))[:, 0]
        return dict(zip(live, torch.autograd.grad((said - y[task, rows]).square().mean(), live.values()), strict=True))

    ends = []
    for task in range(3):
        w = start
        for k in range(2):
            inner = gradient(w, task, slice(20 * k, 20 * k + 10))
            phi = {name: value - 0.01 * inner[name] for name, value in w.items()}
            outer = gradient(phi, task, slice(20 * k + 10, 20 * k + 20))
            w = {name: value - 0.003 * outer[name] for name, value in w.items()}
        ends.append(w)
    for name, value in made.items():
        assert_close(value, sum(end[name] for end in ends) / 3)


def test_unknown_rows_are_refused():
    with pytest.raises(InputError, match="methods among"):
        fusion_sine.run(only=["magic"])


def test_networks_train_apart_though_in_one_program():
    """The second network of a stack ends where it would have alone."""
    starts = sine_zoo.starts(3, 0)
    x = torch.linspace(-5, 5, 20).expand(3, -1)
    y = sine.curve(torch.tensor([[1.0, 0, 1], [2, 1, 1], [3, 2, 1]]), x)
    together = sine_zoo.fit_networks(starts, x[..., None], y, 8)
    alone = sine_zoo.fit_networks({k: v[1:2] for k, v in starts.items()}, x[1:2, :, None], y[1:2], 8)
    for name, value in alone.items():
        assert_close(together[name][1:2], value, rtol=1e-4, atol=1e-5)


def test_a_stack_is_cut_without_a_trace(monkeypatch):
    starts = sine_zoo.starts(5, 1)
    x, y = torch.rand(5, 6, 1), torch.rand(5, 6)
    whole = sine_zoo.fit_networks(starts, x, y, 3)
    monkeypatch.setattr(sine_zoo, "TOGETHER", 2)
    assert_close(sine_zoo.fit_networks(starts, x, y, 3), whole, rtol=1e-4, atol=1e-5)
