"""Every stage runs the same function: plain is the reference."""

import pytest
import torch
from torch import nn
from torch.func import vmap

from warmstart.core import functional, make_batch, task_loss
from warmstart.core.trees import flatten, leaves, tree_map
from warmstart.engine.stage import LOOPED, PLAIN, TRACED, over_tasks, signature
from warmstart.models.likelihoods import squared

pytestmark = pytest.mark.usefixtures("float64")


def check(found, expected):
    assert flatten(found)[1] == flatten(expected)[1]
    for left, right in zip(leaves(found), leaves(expected), strict=True):
        assert left.shape == right.shape and left.dtype == right.dtype
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-12)


def step(shared, inner, rows, noise):
    """One task: trees in, trees out, with something that is shared, something untouched and something doubled."""
    moved = torch.tanh(rows @ shared["w"]) * inner["phi"] + sum(leaf.sum() for leaf in leaves(noise))
    return {"phi": inner["phi"] - 0.1 * moved.sum(0), "same": inner["same"], "pair": (moved.sum(), moved.sum(), ())}


def arguments(tasks=3, rows=4):
    return (
        {"w": torch.randn(2, 2)},
        {"phi": torch.randn(tasks, 2), "same": torch.randn(tasks)},
        torch.randn(tasks, rows, 2),
        (torch.randn(tasks, 5), ()),
    )


def compare(args, fn=step):
    """Traced and looped `stack` and `differentiate` against the plain ones, with a cotangent of uneven entries."""
    reference = PLAIN.differentiate(fn)
    expected, saved = reference.forward(*args)
    cotangent = tree_map(torch.randn_like, expected)
    for stage in (TRACED, LOOPED):
        check(stage.stack(fn)(*args), expected)
        forward, backward = stage.differentiate(fn)
        result, mine = forward(*args)
        check(result, expected)
        check(backward(mine, cotangent), reference.backward(saved, cotangent))


def test_plain_is_vmap_and_vjp():
    shared, inner, rows, noise = args = arguments()
    stacked = vmap(step, in_dims=(None, 0, 0, 0))(*args)
    check(PLAIN.stack(step)(*args), stacked)
    check(over_tasks(step)(*args), stacked)
    alone = step(shared, {name: leaf[1] for name, leaf in inner.items()}, rows[1], (noise[0][1], ()))
    torch.testing.assert_close(stacked["phi"][1], alone["phi"])
    assert PLAIN.run(step) is step


def test_traced():
    compare(arguments())


@pytest.mark.parametrize("noise", [(), {}, ((), ())])
def test_empty_trees(noise):
    shared, inner, rows, _ = arguments()
    compare((shared, inner, rows, noise))
    compare(((), inner, rows, noise), fn=lambda shared, inner, rows, noise: {"phi": inner["phi"] * rows.sum()})


def test_the_same_tensor_passed_twice():
    """A recording must not take two arguments for one because they were one when it was made."""
    call = TRACED.stack(lambda shared, a, b: a * 2 + b * shared)
    one, other, shared = torch.randn(3, 2), torch.randn(3, 2), torch.randn(2)
    check(call(shared, one, one), one * 2 + one * shared)
    check(call(shared, one, other), one * 2 + other * shared)
    forward, backward = TRACED.differentiate(lambda shared, a, b: a * b * shared)
    for second in (one, other):
        result, saved = forward(shared, one, second)
        check(result, one * second * shared)
        check(backward(saved, other), ((other * one * second).sum(0), other * second * shared))


def test_tensors_that_are_not_contiguous():
    shared, inner, rows, noise = arguments()
    turned = ({"w": shared["w"].T}, inner, rows.transpose(0, 1).contiguous().transpose(0, 1), noise)
    compare(turned)
    thin = {"phi": torch.randn(2).expand(3, 2), "same": torch.zeros(()).expand(3)}
    compare((shared, thin, rows[:1].expand(3, 4, 2), (noise[0][:, ::2], ())))


def test_a_cotangent_that_is_not_contiguous():
    forward, backward = TRACED.differentiate(lambda shared, a: (a * shared).tanh())
    shared, a = torch.randn(4), torch.randn(3, 4)
    _, saved = forward(shared, a)
    plain = PLAIN.differentiate(lambda shared, a: (a * shared).tanh())
    for cotangent in (torch.randn(4, 3).T, torch.randn(1, 4).expand(3, 4)):
        check(backward(saved, cotangent), plain.backward(plain.forward(shared, a)[1], cotangent))


def test_shapes_and_kinds_of_number_may_change_from_call_to_call():
    call, pulled = TRACED.stack(step), TRACED.differentiate(step)
    for tasks, rows in [(3, 4), (3, 5), (1, 4), (3, 4), (2, 0)]:
        args = arguments(tasks, rows)
        check(call(*args), PLAIN.stack(step)(*args))
        check(pulled.forward(*args)[0], PLAIN.stack(step)(*args))
    single = tree_map(lambda leaf: leaf.float(), arguments())
    assert call(*single)["phi"].dtype == torch.float32


def test_two_pullbacks_wait_for_their_cotangents_at_once():
    """As in an unrolled loop: forward, forward, then backward, backward."""
    forward, backward = TRACED.differentiate(lambda shared, a: (a * shared).exp())
    shared, a = torch.randn(2), torch.randn(3, 2)
    middle, first = forward(shared, a)
    end, second = forward(shared, middle)
    from_second = backward(second, torch.ones_like(end))
    from_first = backward(first, from_second[1])
    twin_shared, twin = shared.clone().requires_grad_(), a.clone().requires_grad_()
    ((twin * twin_shared).exp() * twin_shared).exp().sum().backward()
    torch.testing.assert_close(from_first[1], twin.grad)
    torch.testing.assert_close(from_first[0] + from_second[0], twin_shared.grad)


def test_recording_does_not_touch_its_arguments_nor_ask_for_gradients():
    args = arguments()
    copies = [leaf.clone() for leaf in leaves(args)]
    TRACED.stack(step)(*args)
    assert all(leaf.equal(copy) for leaf, copy in zip(leaves(args), copies, strict=True))
    inner = {name: leaf.requires_grad_() for name, leaf in args[1].items()}
    result = TRACED.stack(step)(args[0], inner, *args[2:])
    assert not result["phi"].requires_grad


def test_run_records_a_whole_function():
    fn = lambda state, rows: (state["a"] + rows.sum(), {"b": state["a"] * 2})  # noqa: E731
    args = ({"a": torch.randn(3)}, torch.randn(2, 2))
    check(TRACED.run(fn)(*args), fn(*args))


def test_a_signature_tells_apart_what_needs_its_own_recording():
    one = torch.zeros(2, 3)
    kinds = [one, one.float(), torch.zeros(3, 2), one[None], {"a": one}, (one,), (one, ()), ((one,), ()), (one, one)]
    assert len({signature(tree)[1] for tree in kinds}) == len(kinds)
    assert signature(one)[1] == signature(one.T.contiguous().T)[1]
    assert signature(one)[0][0] is one


class Mutating(nn.Module):
    """In-place operations as people write them: activations, buffers that are filled, views that are scaled."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(2, 4), nn.Linear(4, 1)
        self.activation = nn.ELU(inplace=True)

    def forward(self, x):
        h = self.activation(self.first(x))
        a, b = torch.zeros_like(h), torch.zeros_like(h)
        a.add_(h)
        b.sub_(h * 2)
        before = b.tanh()
        b[..., :2].mul_(0.5)
        return self.head(a * before + b.tanh())


def test_a_module_that_works_in_place():
    model = functional(Mutating())
    loss = task_loss(model, squared)

    def descend(shared, phi, batch):
        slope = torch.func.grad(loss)(phi, batch)
        return {name: value - 0.1 * slope[name] for name, value in phi.items()}

    phi = {name: value + 0.1 * torch.randn(3, *value.shape) for name, value in model.params.items()}
    compare(((), phi, make_batch(torch.randn(3, 5, 2), torch.randn(3, 5))), fn=descend)
