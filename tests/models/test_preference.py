"""The preference model: what is shared and what is adapted, items it has never seen, and where it begins."""

import pytest
import torch

from warmstart.core import Columns, functional
from warmstart.models.mlp import seeded
from warmstart.models.preference import FAST, SLOW, PreferenceNet

pytestmark = pytest.mark.usefixtures("float64")
ITEM, USER = Columns(1, (6,), (5,)), Columns(1, (4, 7))


def rows(count=5, identity=True):
    torch.manual_seed(0)
    own = [torch.randint(2, 9, (count, 1))] if identity else []
    categorical = torch.cat([*own, torch.randint(2, 4, (count, 1)), torch.randint(2, 4, (count, 2))], 1)
    return {"numeric": torch.randn(count, 2), "categorical": categorical, "bag": torch.randint(5, (count, 1, 3))}


def net(items=9):
    with seeded(0):
        return PreferenceNet(ITEM, USER, (8,), embedding=3, items=items, factors=4)


@pytest.mark.parametrize("items", [0, 9])
def test_apply_is_decide_after_encode_and_encode_knows_no_fast_parameter(items):
    model, x = functional(net(items), FAST), rows(identity=items > 0)
    fast, slow = model.split(model.params)
    torch.testing.assert_close(model.decide(model.params, model.encode(slow, x)), model.apply(model.params, x))
    assert all(name.startswith("decision.") for name in fast) and "encoder.features.categorical.0.weight" in slow
    assert any(name == "gain" for name in slow) == (items > 0)
    stacked = {name: leaf.expand(2, *leaf.shape) for name, leaf in x.items()}
    torch.testing.assert_close(model.apply(model.params, stacked)[1], model.apply(model.params, x))


def test_a_model_whose_encoder_is_adapted_is_not_taken_apart():
    model, x = functional(net(), "*"), rows()
    assert model.decide is None and model.encode(model.params, x) is x


def test_the_description_is_what_the_rows_say_of_the_user():
    module, x = net(0), rows(1, identity=False)
    model = functional(module, FAST)
    about = {"numeric": x["numeric"][0, 1:], "categorical": x["categorical"][0, 1:], "bag": torch.zeros(0, 3).long()}
    tables = module.encoder.features.categorical
    wanted = torch.cat([about["numeric"], tables[1](about["categorical"][0]), tables[2](about["categorical"][1])])
    found = model.describe(model.params, about)
    torch.testing.assert_close(found, wanted.detach())
    assert model.width == len(found) == 1 + 3 + 3


def test_out_by_hand():
    module, x = net(), rows(1)
    with torch.no_grad():
        module.decision.user.copy_(torch.tensor([0.3, -0.2, 0.5, 1.0, -0.7]))
        module.encoder.item.weight[:, -1] = torch.arange(9.0)
        module.gain.copy_(torch.tensor([2.0, 4.0]))
    item = int(x["categorical"][0, 0])
    content = {**x, "categorical": x["categorical"][:, 1:]}
    deep = module.decision.head(module.decision.body(module.encoder.features(content)))
    factors = SLOW * module.encoder.item.weight[item, :-1]
    wanted = deep + SLOW * item + 2 * (factors @ torch.tensor([0.3, -0.2, 0.5, 1.0])) + 4 * -0.7
    torch.testing.assert_close(module(x), wanted)


def test_an_item_never_seen_is_its_content_and_the_user():
    module, x = net(), rows(2)
    module.begin(torch.zeros(9), 0.1)
    unseen = {**x, "categorical": x["categorical"].clone()}
    unseen["categorical"][:, 0] = 1
    with torch.no_grad():
        module.decision.user[-1] = 0.5
    torch.testing.assert_close(module(unseen), module.gain[1].detach() * torch.full((2, 1), 0.5))


def test_it_begins_at_the_effects_and_one_step_finds_the_users():
    module, x = net(), rows(6)
    effects = torch.randn(9)
    module.begin(effects, 0.05)
    model = functional(module, FAST)
    item = x["categorical"][:, 0]
    torch.testing.assert_close(model.apply(model.params, x).squeeze(-1), effects[item])
    y = effects[item] + 1.7
    bias = model.params["decision.user"].clone().requires_grad_()
    loss = ((model.apply({**model.params, "decision.user": bias}, x).squeeze(-1) - y) ** 2).mean()
    moved = bias - 0.05 * torch.autograd.grad(loss, bias)[0]
    step = module.gain[1].detach() * moved[-1]
    torch.testing.assert_close(step, torch.tensor(1.7))
