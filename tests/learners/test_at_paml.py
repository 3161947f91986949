"""AT-PAML: rates of neighbours against a loop by hand, entries that are trained, and who is remembered."""

import pytest
import torch
from torch import nn

from warmstart.core import InputError, functional, make_batch, make_task
from warmstart.core.trees import dense, leaves, scale, take
from warmstart.engine.meta import Feed, meta_update, predict_stack
from warmstart.learners import at_paml, paml
from warmstart.maths.memory import EMPTY, filled_memory
from warmstart.maths.rated import rate_of
from warmstart.models.likelihoods import squared

pytestmark = pytest.mark.usefixtures("float64")
CONFIG = at_paml.Config(
    memory=6, neighbours=2, sharpness=0.8, floor=0.3, warm_up=0, memory_lr=0.7, rate=0.5, outer_lr=0.02, ways=2
)


class Net(nn.Module):
    described = 2

    def __init__(self):
        super().__init__()
        self.about, self.head = nn.Linear(3, self.described), nn.Linear(2, 1)

    def forward(self, x):
        return self.head(x)

    def describe(self, descriptor):
        return self.about(descriptor)


def setting(cfg=CONFIG, keys=(6, 1, 11)):
    torch.manual_seed(3)
    model = functional(Net(), fast="head.*")
    count = len(keys)
    rows = lambda: make_batch(torch.randn(count, 4, 2), torch.randn(count, 4) + 0.7)  # noqa: E731
    tasks = make_task(rows(), rows(), torch.randn(count, 3), torch.tensor(keys))
    learner = at_paml.build(model, squared, cfg)
    return model, learner, learner.init(model.params), tasks


def with_entries(state):
    """Three sets of two entries, by the remainder of 3; one place is free."""
    key = torch.tensor([3, 6, 4, EMPTY, 5, 8])
    used = torch.tensor([1.0, 5.0, 4.0, -1.0, 3.0, 2.0])
    later = state.opt._replace(done=torch.tensor(8.0))
    return state._replace(opt=later, memory=filled_memory(key, torch.rand(6, 3), used))


def test_rates_and_their_gradients_are_those_of_a_loop_over_neighbours():
    model, learner, state, tasks = setting()
    state = with_entries(state)
    memory = state.memory
    entry = memory.entry[:, :-1].clone().requires_grad_()
    vector, value = entry[:, :-1], entry[:, -1]
    params = {name: leaf.clone().requires_grad_() for name, leaf in model.params.items()}
    weights = {name: leaf.clone().requires_grad_() for name, leaf in state.theta["rates"].items()}
    h = tasks.descriptor @ params["about.weight"].T + params["about.bias"]
    total, touched = torch.zeros(()), torch.zeros(6)
    for i, key in enumerate(tasks.key.tolist()):
        others = [j for j, other in enumerate(memory.key.tolist()) if other not in (EMPTY, key)]
        near = sorted(others, key=lambda j: float((vector[j] - h[i]).detach().norm()))[:2]
        touched[near] += 1
        s = [torch.exp(-0.8 * ((h[i] - vector[j]) ** 2).sum()) for j in near]
        rate = rate_of(weights, h[i], 0.5) + sum(a * value[j] for a, j in zip(s, near, strict=True)) / (sum(s) + 0.3)
        head = [params["head.weight"], params["head.bias"]]
        loss = lambda w, b, rows: ((rows.x @ w.T + b).squeeze(-1) - rows.y).square().mean()  # noqa: E731
        slopes = torch.autograd.grad(loss(*head, take(tasks.support, i)), head, create_graph=True)
        moved = [p - rate * g for p, g in zip(head, slopes, strict=True)]
        total = total + loss(*moved, take(tasks.query, i))
    assert float(touched[1]) < 3  # the first user does not find itself
    parts = [*params.values(), *weights.values(), entry]
    wanted = torch.autograd.grad(total, parts)
    delta, info = learner.meta_grad(state, tasks, ())
    moved = dense(delta.near)
    torch.testing.assert_close([*leaves(delta.grad), moved[:, :-1]], list(wanted))
    torch.testing.assert_close(moved[:, -1], touched)
    torch.testing.assert_close(info.loss, total.detach())

    new = learner.update(state, delta, torch.tensor(3.0))
    kept = [i for i in range(6) if memory.key[i] == new.memory.key[i] and memory.key[i] != 6]
    assert len(kept) >= 2
    torch.testing.assert_close(new.memory.entry[kept, :-1], (memory.entry - 0.7 * moved / 3)[kept, :-1])


def test_users_are_written_over_their_own_entry_then_where_it_is_free_then_over_the_oldest():
    model, learner, state, tasks = setting()
    state = with_entries(state)
    delta, _ = learner.meta_grad(state, tasks, ())
    delta = delta._replace(near=scale(delta.near, 0.0))  # as if nobody had been a neighbour
    new = learner.update(state, delta, torch.tensor(3.0)).memory
    assert new.key.tolist() == [3, 6, 4, 1, 5, 11]  # 6 over itself, 1 where it is free, 11 over the older of its set
    h = model.describe(model.params, tasks.descriptor)
    torch.testing.assert_close(new.entry[[1, 3, 5], :-2], h)
    torch.testing.assert_close(new.entry[[1, 3, 5], -2], rate_of(state.theta["rates"], h, 0.5))
    assert new.used.tolist() == [1.0, 9.0, 4.0, 9.0, 3.0, 9.0]


def test_users_of_one_set_in_one_update_come_again():
    _, learner, state, tasks = setting(keys=(7, 1, 60))
    found = meta_update(learner)(state, Feed(tasks))[0].memory.key
    assert found.tolist() == [60, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY]
    _, learner, state, tasks = setting(keys=(7, 7, 60))
    found = meta_update(learner)(state, Feed(tasks))[0].memory.key
    assert found.tolist() == [60, EMPTY, 7, EMPTY, EMPTY, EMPTY]


@pytest.mark.parametrize(
    "keys", [(3, *[6] * 9), (3_000_000, 3_000_003), (2**40, 2**40 + 3), (3 * 2**32, 3 * 2**32 + 3 * 2**20)]
)
def test_two_users_of_one_set_are_never_taken_for_one(keys):
    _, learner, state, tasks = setting(keys=keys)
    state = learner.update(state, learner.meta_grad(state, tasks, ())[0], torch.tensor(float(len(keys))))
    assert (state.memory.key == EMPTY).all()


def test_a_memory_that_cannot_be_is_refused():
    with pytest.raises(InputError, match="multiple of its ways"):
        setting(at_paml.Config(memory=10, ways=4))
    with pytest.raises(InputError, match="exact, tree or faiss"):
        setting(at_paml.Config(search="kdtree"))


def test_while_it_warms_up_all_users_have_one_rate_and_are_remembered_with_it():
    cfg = at_paml.Config(**{**vars(CONFIG), "warm_up": 2, "warm_rate": 0.04})
    _, learner, state, tasks = setting(cfg)
    assert float(learner.start(state, tasks.descriptor[0]).rate) == pytest.approx(0.04)
    state = meta_update(learner)(state, Feed(tasks))[0]
    assert state.memory.entry[state.memory.key != EMPTY, -2].tolist() == pytest.approx([0.04] * 3)
    for _ in range(2):
        state = meta_update(learner)(state, Feed(tasks))[0]
    rates = [float(learner.start(state, user).rate) for user in tasks.descriptor]
    assert len({round(rate, 9) for rate in rates}) == 3


def test_without_entries_it_is_paml():
    model, learner, state, tasks = setting()
    plain = paml.build(model, squared, paml.Config(rate=0.5))
    first = plain.init(model.params)
    torch.testing.assert_close(predict_stack(learner, state, tasks).mean, predict_stack(plain, first, tasks).mean)


def test_rates_that_are_remembered_whole_grow_by_themselves():
    """The paper remembers the sum, to which every visit of a user's neighbourhood adds again."""
    grown = {}
    for compound in (False, True):
        still = {"sharpness": 0.0, "floor": 1e-9, "outer_lr": 1e-9, "memory_lr": 0.0}
        _, learner, state, tasks = setting(at_paml.Config(**{**vars(CONFIG), **still, "compound": compound}))
        for _ in range(12):
            state, info = meta_update(learner)(state, Feed(tasks))
        grown[compound] = float(info.rate)
    assert grown[False] < 1.0 < 4 * grown[False] < grown[True]
