import math

import pytest
import torch
from torch.func import grad, vmap

from warmstart.core import InputError
from warmstart.core.trees import expand, leaves, stack, take, tree_map
from warmstart.maths.optim import adam, cosine, descend, linear, momentum, named, sgd
from warmstart.maths.outer import Delta, clipped, outer

PAIRS = {
    "sgd": (sgd(), lambda p: torch.optim.SGD(p, lr=3e-3), 3e-3),
    "momentum": (momentum(0.8), lambda p: torch.optim.SGD(p, lr=2e-3, momentum=0.8), 2e-3),
    "adam": (adam(0.8, 0.95), lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.8, 0.95)), 0.05),
    "adam as it comes": (adam(), lambda p: torch.optim.Adam(p, lr=0.01), 0.01),
    "adam without momentum": (adam(b1=0.0), lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.0, 0.999)), 0.01),
    "adam, large eps": (adam(eps=0.1), lambda p: torch.optim.Adam(p, lr=0.1, eps=0.1), 0.1),
    "adamw": (adam(weight_decay=0.3), lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.3), 0.05),
}


def awkward(params):
    """A curved valley, coordinates a million times apart in scale, and one leaf that does not matter at all."""
    u, v = params["valley"].unbind()
    scales = torch.tensor([1e-3, 1.0, 1e3]).to(u)
    return (
        (1 - u) ** 2
        + 20 * (v - u**2) ** 2
        + (scales * (params["scaled"] - 0.3) ** 2).sum() / 10
        + torch.sin(3 * params["scalar"])
        + 0 * params["idle"].sum()
    )


def start(dtype):
    tree = {
        "valley": torch.tensor([-1.2, 0.7]),
        "scaled": torch.tensor([[2.0, -1.0, 0.4]]),
        "scalar": torch.tensor(0.1),
        "idle": torch.tensor([[1.0], [-2.0]]),
    }
    return tree_map(lambda leaf: leaf.to(dtype), tree)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
@pytest.mark.parametrize("name", PAIRS)
def test_fifty_steps_as_torch(name, dtype):
    optimiser, theirs, lr = PAIRS[name]
    params = start(dtype)
    state = optimiser.init(params)
    twins = tree_map(lambda leaf: leaf.clone().requires_grad_(), params)
    reference = theirs(leaves(twins))
    for _ in range(50):
        grads = grad(awkward)(tree_map(lambda leaf: leaf.detach().clone(), twins))  # both see the same gradients
        params, state = optimiser.update(params, grads, state, lr)
        for leaf, g in zip(leaves(twins), leaves(grads), strict=True):
            leaf.grad = g.contiguous()
        reference.step()
    assert (awkward(params) - awkward(start(dtype))).abs() > 0.1  # it has gone somewhere
    for mine, other in zip(leaves(params), leaves(twins), strict=True):
        torch.testing.assert_close(mine, other.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", PAIRS)
def test_own_trajectory_as_torch(name):
    """The same with each on its own path: what a user would see."""
    optimiser, theirs, lr = PAIRS[name]
    params = start(torch.float64)
    state = optimiser.init(params)
    twins = tree_map(lambda leaf: leaf.clone().requires_grad_(), params)
    reference = theirs(leaves(twins))
    for _ in range(50):
        params, state = optimiser.update(params, grad(awkward)(params), state, lr)
        reference.zero_grad()
        awkward(twins).backward()
        reference.step()
    for mine, other in zip(leaves(params), leaves(twins), strict=True):
        torch.testing.assert_close(mine, other.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", PAIRS)
def test_inside_vmap_each_goes_its_own_way(name):
    optimiser, _, lr = PAIRS[name]

    def three(params):
        state = optimiser.init(params)
        for _ in range(3):
            params, state = optimiser.update(params, grad(awkward)(params), state, lr)
        return params, state

    many = tree_map(lambda leaf: leaf + torch.randn_like(leaf), expand(start(torch.float64), 4))
    together, alone = vmap(three)(many), stack([three(take(many, i)) for i in range(4)])
    for found, expected in zip(leaves(together), leaves(alone), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", PAIRS)
def test_derivative_of_an_inner_loop_by_finite_differences(name):
    optimiser, _, lr = PAIRS[name]
    first = start(torch.float64)

    def after_three(valley, scaled, scalar, idle, rate):
        params = {"valley": valley, "scaled": scaled, "scalar": scalar, "idle": idle}
        state = optimiser.init(params)
        for _ in range(3):
            with torch.enable_grad():
                slopes = torch.autograd.grad(awkward(params), leaves(params), create_graph=True)
            grads = dict(zip(params, slopes, strict=True))
            params, state = optimiser.update(params, grads, state, rate)
        return params["valley"] @ torch.tensor([1.0, -0.5]).double() + params["scaled"].sum() + params["idle"].sum()

    given = [leaf.requires_grad_() for leaf in leaves(first)] + [torch.tensor(lr).double().requires_grad_()]
    assert torch.autograd.gradcheck(after_three, given, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
@pytest.mark.parametrize("name", PAIRS)
def test_gradients_of_zero_have_finite_derivatives(name, dtype):
    """An empty support set: every inner gradient is exactly zero, and phi is theta."""
    optimiser, _, lr = PAIRS[name]
    decay = 0.3 if name == "adamw" else 0.0

    def end(theta):
        params, state = {"w": theta}, optimiser.init({"w": theta})
        for _ in range(2):
            params, state = optimiser.update(params, grad(lambda p: 0 * (p["w"] ** 2).sum())(params), state, lr)
        return (params["w"] ** 2).sum()

    theta = torch.tensor([0.5, -2.0, 0.0], dtype=dtype)
    torch.testing.assert_close(grad(end)(theta), 2 * theta * (1 - lr * decay) ** 4)


def test_rates_may_be_a_number_a_tensor_or_a_tree():
    params, direction = {"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([3.0, 5.0])}
    expected = torch.tensor([0.4, 1.0])
    for rate in (0.2, torch.tensor(0.2), {"a": torch.tensor([0.2, 0.2])}):
        torch.testing.assert_close(descend(params, direction, rate)["a"], expected)
    uneven = descend(params, direction, {"a": torch.tensor([1.0, 0.0])})
    torch.testing.assert_close(uneven["a"], torch.tensor([-2.0, 2.0]))


def test_cosine_and_linear_fall_from_one_to_zero_and_stay():
    done = torch.tensor([0.0, 1.0, 2.0, 4.0, 9.0])
    torch.testing.assert_close(linear(done, 4), torch.tensor([1.0, 0.75, 0.5, 0.0, 0.0]))
    torch.testing.assert_close(cosine(done, 4), torch.tensor([1.0, 0.5 + math.sqrt(2) / 4, 0.5, 0.0, 0.0]))
    for schedule in (cosine, linear):
        assert schedule(done, 0).equal(torch.ones(5))


def test_outer_is_adamw_on_the_mean_over_tasks_with_the_cosine_rate():
    theta = {"w": torch.tensor([0.5, -1.0], dtype=torch.float64)}
    out = outer(0.1, decay=4, weight_decay=0.2, b2=0.95)
    twin = theta["w"].clone().requires_grad_()
    reference = torch.optim.AdamW([twin], lr=0.1, betas=(0.9, 0.95), weight_decay=0.2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(reference, 4)
    state = out.init(theta)
    for k in range(4):
        total = torch.tensor([3.0 + k, -6.0], dtype=torch.float64)
        state = out.update(state, Delta({"w": total}), torch.tensor(3.0))
        twin.grad = total / 3
        reference.step()
        schedule.step()
    torch.testing.assert_close(state.theta["w"], twin.detach(), rtol=1e-9, atol=1e-12)


def test_outer_shortens_a_long_mean_gradient_and_leaves_a_short_one():
    total = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor(-4.0)}
    for count, limit, factor in [(1, 10.0, 1.0), (2, 10.0, 0.5), (1, 2.0, 0.4), (2, 1.0, 0.2)]:
        found = clipped(total, torch.tensor(float(count)), limit)
        torch.testing.assert_close(found, tree_map(lambda leaf, f=factor: f * leaf, total))
    assert clipped({"a": torch.zeros(2)}, torch.tensor(3.0), 1.0)["a"].equal(torch.zeros(2))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_outer_does_not_step_where_a_gradient_is_not_finite(bad):
    """1e30 is, its square is not."""
    found = clipped({"a": torch.tensor([1.0, bad]), "b": torch.tensor(2.0)}, torch.tensor(1.0), 10.0)
    assert found["a"].isfinite().all() and found["a"].norm() <= 10 and found["b"].isfinite()


def test_names():
    for name in ("sgd", "momentum", "adam"):
        pair = named(name)
        params = {"w": torch.tensor([1.0])}
        moved, _ = pair.update(params, {"w": torch.tensor([1.0])}, pair.init(params), 0.5)
        torch.testing.assert_close(moved["w"], torch.tensor([0.5]))
    with pytest.raises(InputError, match="sgd, momentum or adam"):
        named("rmsprop")
