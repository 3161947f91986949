"""A user's own network goes in and comes back."""

import pytest
import torch
from torch import nn

from warmstart.core import InputError
from warmstart.estimators.adapted import AdaptedModel
from warmstart.estimators.meta_learner import MetaLearner
from warmstart.models.mlp import MLP, seeded
from warmstart.tasks.pool import make_pool
from warmstart.tasks.roles import Roles

POINT = ("scratch", "maml", "anil", "reptile", "meta_sgd")


def sines(tasks, seed):
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(tasks, 12, 1, generator=draw) * 10 - 5
    y = torch.rand(tasks, 1, generator=draw) * torch.sin(x[..., 0])
    return make_pool(x.flatten(0, 1), y.flatten(), torch.full((tasks,), 12))


def network(seed=0):
    with seeded(seed):
        return MLP(1, (8, 8), 1)


@pytest.mark.parametrize("name", [*POINT, "empirical_bayes"])
def test_own_module_round_trip(tmp_path, plan, name):
    x, y = torch.linspace(-3, 3, 6)[:, None], torch.linspace(0, 1, 6)
    module = network()
    given = {key: value.clone() for key, value in module.state_dict().items()}
    model = MetaLearner(name, plan=plan, trials=1, model=module).fit_pools(sines(16, 0), sines(4, 1))
    ours = model.adapt(x, y=y)
    mean = ours.predict(x).mean
    model.save(tmp_path / "model")
    theirs = MetaLearner.load(tmp_path / "model", model=network(seed=5)).adapt(x, y=y)
    assert torch.equal(theirs.predict(x).mean, mean)
    ours.save(tmp_path / "adapted")
    alone = AdaptedModel.load(tmp_path / "adapted", model=network(seed=6))
    assert torch.equal(alone.predict(x).mean, mean)
    low, high = alone.predict_interval(x, 0.5)
    assert (low < mean).all() and (mean < high).all()
    if name in POINT:
        for adapted in (ours, alone):
            torch.testing.assert_close(adapted.module()(x)[:, 0], mean)
    assert all(torch.equal(value, given[key]) for key, value in module.state_dict().items()), "the module was changed"


def test_anil_adapts_the_head_alone(plan):
    model = MetaLearner("anil", plan=plan, trials=1, model=network()).fit_pools(sines(16, 0), sines(4, 1))
    x = torch.linspace(-3, 3, 6)[:, None]
    adapted = model.adapt(x, y=torch.ones(6))
    assert set(adapted.adapted) == {"head.weight", "head.bias"}
    body = {key: value for key, value in adapted.module().state_dict().items() if not key.startswith("head")}
    assert all(torch.equal(value, model.fitted.state.theta[key]) for key, value in body.items())
    with pytest.raises(InputError, match=r"head\.\*"):
        MetaLearner("anil", plan=plan, trials=1, model=nn.Linear(1, 1)).fit_pools(sines(16, 0), sines(4, 1))


def test_what_cannot_be_is_said(tmp_path, plan, fitted, new_task):
    train, validation = sines(16, 0), sines(4, 1)
    for model, words in ((MetaLearner("maml"), "a network"), (MetaLearner(model=network()), "a method")):
        with pytest.raises(InputError, match=words):
            model.fit_pools(train, validation)
    with pytest.raises(InputError, match="fit_pools"):
        MetaLearner("maml", model=network()).fit(new_task[0], Roles("user", "y"))
    with pytest.raises(InputError, match=r"squared, .*sqared"):
        MetaLearner("maml", model=network()).fit_pools(train, validation, "sqared")
    model = MetaLearner("pretrain", plan=plan, trials=1, model=network()).fit_pools(train, validation)
    model.save(tmp_path / "model")
    with pytest.raises(InputError, match="model="):
        MetaLearner.load(tmp_path / "model")
    with pytest.raises(InputError, match="tensors of this model"):
        MetaLearner.load(tmp_path / "model", model=nn.Linear(1, 1))
    with pytest.raises(InputError, match="your own module"):
        model.adapt(torch.zeros(1, 1), y=torch.zeros(1)).export(tmp_path / "m.onnx")
    with pytest.raises(InputError, match="y"):
        model.adapt(torch.zeros(1, 1))
    with pytest.raises(InputError, match="your own module"):
        fitted("maml").adapt(new_task[0]).module()


def test_own_module_on_classes(plan):
    train, validation = (pool._replace(y=(pool.y > 0).long()) for pool in (sines(16, 0), sines(4, 1)))
    with seeded(0):
        module = MLP(1, (8,), 3)
    model = MetaLearner("maml", plan=plan, trials=1, model=module).fit_pools(train, validation, "multiclass", 3)
    before = model.adapt(None).predict(torch.zeros(2, 1)).mean
    after = model.adapt(torch.zeros(4, 1), y=torch.tensor([0, 1, 2, 2])).predict(torch.zeros(2, 1)).mean
    assert after.shape == (2, 3) and (after[:, 2] > before[:, 2]).all()
    torch.testing.assert_close(after.sum(-1), torch.ones(2))


class Scaled(nn.Module):
    """A network with what is not a parameter: a buffer, dropout and batch statistics."""

    def __init__(self, scale, seed=0):
        super().__init__()
        self.inner = network(seed)
        self.register_buffer("scale", torch.tensor(scale))
        self.norm, self.dropout = nn.BatchNorm1d(1), nn.Dropout(0.3)

    def forward(self, x):
        return self.inner(self.dropout(self.norm(x))) * self.scale


def test_buffers_come_back_too(tmp_path, plan):
    x, y = torch.linspace(-3, 3, 6)[:, None], torch.linspace(0, 1, 6)
    module = Scaled(3.0).eval()
    module.norm.running_mean.fill_(0.4)
    model = MetaLearner("maml", plan=plan, trials=1, model=module).fit_pools(sines(16, 0), sines(4, 1))
    ours = model.adapt(x, y=y)
    model.save(tmp_path / "model")
    ours.save(tmp_path / "adapted")
    for found in (
        MetaLearner.load(tmp_path / "model", model=Scaled(1.0, 5).eval()).adapt(x, y=y),
        AdaptedModel.load(tmp_path / "adapted", model=Scaled(1.0, 6).eval()),
    ):
        assert torch.equal(found.predict(x).mean, ours.predict(x).mean)
        assert float(found.module().scale) == 3.0
    with pytest.raises(InputError, match="tensors of this model"):
        MetaLearner.load(tmp_path / "model", model=network())


def test_layers_that_draw_or_remember_are_refused_in_training(tmp_path, plan):
    for module, words in (
        (nn.Sequential(nn.Dropout(0.1), nn.Linear(1, 1)), "Dropout 0 in training mode"),
        (nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)), r"BatchNorm1d 1 .* call eval\(\)"),
    ):
        with pytest.raises(InputError, match=words):
            MetaLearner("maml", plan=plan, trials=1, model=module).fit_pools(sines(16, 0), sines(4, 1))
        model = MetaLearner("maml", plan=plan, trials=1, model=module.eval()).fit_pools(sines(16, 0), sines(4, 1))
        model.save(tmp_path / "model")
        with pytest.raises(InputError, match=words):
            MetaLearner.load(tmp_path / "model", model=module.train())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_refused(plan, bad):
    model = MetaLearner("maml", plan=plan, trials=1, model=network()).fit_pools(sines(16, 0), sines(4, 1))
    fine, odd = torch.ones(2), torch.tensor([1.0, bad])
    for x, y in ((fine, odd), (odd, fine)):
        with pytest.raises(InputError, match="finite numbers"):
            model.adapt(x[:, None], y=y)
