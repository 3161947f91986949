"""Programs in C++ against the recording itself."""

import pytest
import torch
from torch.func import vjp

from warmstart.core import functional, make_batch
from warmstart.core.trees import expand, flatten, tree_map
from warmstart.engine import native as module
from warmstart.engine import stage
from warmstart.engine.native import native
from warmstart.engine.stage import COMPILED, PLAIN, _inductor, over_tasks, record
from warmstart.maths.descent import descent
from warmstart.maths.optim import named
from warmstart.maths.outer import Delta, outer
from warmstart.models.likelihoods import binary, squared
from warmstart.models.mlp import MLP

pytestmark = pytest.mark.usefixtures("float64")


def draw(*shape, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + sum(shape)), dtype=dtype)


def assert_native(fn, *args, rtol=1e-10):
    inputs, structure = flatten(args)
    graph, example, _ = record(fn, inputs, structure)
    program = native(graph, example)
    assert program is not None
    copies = [leaf.clone() for leaf in example]
    for one, other in zip(program(*example), graph(*example), strict=True):
        assert one.is_contiguous() and one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=rtol, atol=rtol, equal_nan=True)
    torch.testing.assert_close(example, copies, rtol=0, atol=0, equal_nan=True)


# ---- what meta-learning runs, for a stack of tasks: the inner step and its pullback

SETTINGS = {
    "sgd-relu": (squared, "sgd", MLP(1, (33, 33), 1, "relu"), 7),
    "adam-relu": (squared, "adam", MLP(3, (40, 16), 1, "relu"), 20),
    "momentum-gelu": (squared, "momentum", MLP(2, (9, 70), 1, "gelu"), 16),
    "adam-tanh": (binary, "adam", MLP(4, (17, 17), 1, "tanh"), 5),
    "sgd-silu": (binary, "sgd", MLP(1, (8, 8), 1, "silu"), 9),
}


PROGRAMS = [(name, program, torch.float64) for name in SETTINGS for program in ("step", "pull")]


@pytest.mark.parametrize(("name", "program", "dtype"), [*PROGRAMS, ("adam-tanh", "pull", torch.float32)])
def test_programs_of_meta_learning(name, program, dtype):
    likelihood, inner, net, rows = SETTINGS[name]
    model = functional(net)
    rule = descent(model, likelihood, named(inner))
    tasks = 3
    start = tree_map(lambda leaf: 0.1 + 0.3 * draw(tasks, *leaf.shape), rule.start(model.params))
    start = start._replace(opt=tree_map(torch.abs, start.opt))
    y = draw(tasks, rows) if likelihood is squared else (draw(tasks, rows) > 0).double()
    mask = (torch.arange(rows) < rows - 2).double().expand(tasks, rows)
    batch = make_batch(draw(tasks, rows, net.body[0].in_features), y, w=draw(tasks, rows).abs(), mask=mask)
    step = over_tasks(lambda slow, phi, batch: rule.step(slow, phi, batch, 0.1))
    given = tree_map(lambda leaf: leaf.to(dtype), (start, batch))
    rtol = 1e-9 if dtype == torch.float64 else 3e-4
    if program == "step":
        assert_native(lambda phi, rows: step({}, phi, rows), *given, rtol=rtol)
    else:
        assert_native(lambda phi, rows, c: vjp(lambda a: step({}, a, rows), phi)[1](c), *given, given[0], rtol=rtol)


@pytest.mark.parametrize("spoilt", [0.0, 1e3, torch.inf, torch.nan], ids=["as it is", "clipped", "infinite", "nan"])
def test_the_outer_step_keeps_what_is_not_finite_away(spoilt):
    params = {"a": draw(5, 3), "b": draw(4)}
    rule = outer(0.01, decay=7, weight_decay=0.1)
    state = tree_map(lambda leaf: leaf + 0.5, rule.init(params))
    grads = {"a": draw(5, 3) + 1, "b": draw(4)}
    grads["b"][1] += spoilt
    assert_native(lambda s, g, n: rule.update(s, Delta(g), n), state, grads, torch.tensor(3.0))


# ---- single operations, with shapes that are not those of memory

MATRIX, COLUMN, ROW, SCALAR, POSITIVE = draw(7, 5), draw(7, 1), draw(5), draw(), draw(7, 5).abs() + 0.5
STACK, NAN = draw(3, 7, 5), torch.tensor([0.5, torch.inf, -torch.inf, torch.nan, -2.0])
OPERATIONS = {
    "sums": (lambda a: (a.exp().sum(), a.sum(0), a.sum(-1, keepdim=True), a.mean((0, 2)), a.mean()), STACK),
    "sum of a transpose": (lambda a: (a.transpose(0, 2).sum(1), a.permute(1, 2, 0).mean(2)), STACK),
    "sum of a broadcast": (lambda a: a.expand(7, 5).sum(0), ROW),
    "constants": (
        lambda a, b: (torch.ones_like(a) * b, torch.zeros_like(a) - 3, torch.full_like(b, -0.1)),
        MATRIX,
        ROW,
    ),
    "row and column": (lambda a, b, c: a.sigmoid() - b * c, COLUMN, ROW, SCALAR),
    "transposes": (lambda a, b: (a.t() + b.unsqueeze(1), a.t(), (a.t() * 2).exp()), MATRIX, ROW),
    "matrix products": (lambda a, b: (a @ b.t(), a.t() @ b, (a @ b.t()).t() @ a), MATRIX, POSITIVE),
    "stacked products": (
        lambda a: (a @ a.transpose(1, 2), a.transpose(1, 2) @ a, a[1:] @ a[:2].transpose(1, 2)),
        STACK,
    ),
    "thin products": (
        lambda a, b, c: (a @ c[:, None], b.t() @ a, b @ c[None], c[None] @ c[:, None]),
        MATRIX,
        COLUMN,
        ROW,
    ),
    "wide products": (lambda a, b: (a @ b, b.t() @ a.t()), draw(9, 21), draw(21, 70)),
    "product and sum": (lambda a, b: torch.addmm(a[0, :5], a, b.t()), MATRIX, draw(5, 5)),
    "joined and parted": (lambda a, b: torch.cat([a.flatten(), b, a[0]]).exp().split([33, 12]), MATRIX, ROW),
    "joined columns": (lambda a, b: torch.cat([a, b * 2, a], 1), MATRIX, COLUMN),
    "joined with an empty vector": (lambda a, b: torch.cat([b[:0], a, b[:0], a * 2], 1), MATRIX, ROW),
    "slices": (lambda a: (a[1:4, ::2] + 1, a[:, 1].exp()), MATRIX),
    "comparisons": (lambda a, b: torch.where((a > b) & (a != 0) | (a <= -1), a, 0.1).sum(0), MATRIX, ROW),
    "counted comparison": (lambda a: (a * (a >= 0.1) + (a < 0.3).to(a.dtype)).sum(1), MATRIX),
    "powers": (lambda a: (a**2, a**3, a**4, a**0.5, a**-0.5, a**-1), POSITIVE),
    "roots and logarithms": (lambda a: (a.sqrt(), a.rsqrt(), a.log(), a.reciprocal(), a.log1p(), a.expm1()), POSITIVE),
    "tiny arguments": (lambda a: (a.tanh(), a.log1p(), a.expm1()), 1e-12 * POSITIVE),
    "softplus": (lambda a: torch.nn.functional.softplus(a * 30, beta=0.7), MATRIX),
    "cosine": (lambda a: (a * 9).cos(), MATRIX),
    "limits": (lambda a: (a.clamp(min=0.1), a.clamp(max=-0.1), a.clamp(-0.2, 0.4)), MATRIX),
    "not finite": (lambda a: (a.nan_to_num(1.0, 2.0, 3.0), a.isfinite(), a.relu(), a.clamp(max=1.0), a * 0), NAN),
    "an input as it is": (lambda a, b: (a, b.unsqueeze(0), a, a.t()), MATRIX, ROW),
    "nothing": (lambda a, b: (a[:0] + 1, torch.cat([a[:0], b]), b.t() * 2), MATRIX, POSITIVE),
    "used in and after a loop": (lambda a: ((a + 1) * (a + 1).sum(), (a + 1).exp(), (a + 1).t() @ a), MATRIX),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name):
    fn, *args = OPERATIONS[name]
    assert_native(fn, *args)


def test_buffers_that_are_used_again_hold_nothing_that_is_still_needed():
    def chain(a, b):
        seen = [a]
        for k in range(12):
            seen.append((seen[-1] @ b).tanh() + seen[k // 2] * 0.1)
        return seen[1:], sum(part.sum() for part in seen)

    assert_native(chain, draw(6, 6), draw(6, 6))


def test_compiled_programs_are_native_and_their_stages_agree(monkeypatch):
    """No call of inductor, also where a stack repeats one tensor."""
    monkeypatch.setattr("warmstart.engine.stage._inductor", None)
    step = lambda shared, a, b: {"a": a - 0.1 * (a @ b).tanh() * shared}  # noqa: E731
    args = draw(4), expand(draw(4, 4), 3), draw(3, 4, 4)
    torch.testing.assert_close(COMPILED.stack(step)(*args), PLAIN.stack(step)(*args))
    (found, saved), (expected, kept) = (stage.differentiate(step).forward(*args) for stage in (COMPILED, PLAIN))
    torch.testing.assert_close(found, expected)
    back = COMPILED.differentiate(step)
    result, saved = back.forward(*args)
    pulled = PLAIN.differentiate(step).backward(kept, {"a": args[2]})
    torch.testing.assert_close(back.backward(saved, {"a": args[2]}), pulled)
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("build", [native, _inductor])
def test_strides_other_than_the_recorded_ones_change_nothing(build):
    """What one half of a program saves, the other half takes, also if it was built in the other way."""
    fn = lambda a, b: (a * 2 + b.exp(), a @ b.t())  # noqa: E731
    turned, repeated = draw(5, 3).t(), draw(5).expand(3, 5)
    inputs, structure = flatten((turned.contiguous(), repeated.contiguous()))
    graph, _, _ = record(fn, inputs, structure)
    program = build(graph, [turned, repeated])
    for given in ([turned, repeated], inputs, [inputs[0], repeated]):
        torch.testing.assert_close(list(program(*given)), list(fn(*inputs)))


# ---- what is left to others

REFUSED = {
    "an unknown operation": (lambda a: a.cumsum(0), MATRIX),
    "an odd power": (lambda a: a**1.7, POSITIVE),
    "half precision": (lambda a: a * 2, MATRIX.half()),
    "mixed precision": (lambda a, b: a * b, MATRIX, ROW.float()),
    "another result": (lambda a: a.float(), MATRIX),
    "whole numbers": (lambda a, b: b * 2, MATRIX, torch.arange(5)),
    "an approximation": (lambda a: torch.nn.functional.gelu(a, approximate="tanh"), MATRIX),
    "a large product": (lambda a: a @ a.t(), draw(300, 60)),
    "much memory": (lambda a: ((a + 1).sum() + a).exp().sum(0) * (a * 2).sum(1).sum(), draw(1500, 600)),
    "a constant tensor": (lambda a: a + torch.arange(5.0, dtype=torch.float64), MATRIX),
    "a sum of nothing": (lambda a: a[:0].mean(), MATRIX),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    fn, *args = REFUSED[name]
    graph, example, _ = record(fn, *flatten(args))
    assert native(graph, example) is None


def test_refused_without_a_compiler(monkeypatch):
    graph, example, _ = record(lambda a: a + 1, *flatten((MATRIX,)))
    monkeypatch.setattr(module, "compiler", lambda: None)
    assert native(graph, example) is None


def test_without_a_compiler_programs_run_as_recorded(monkeypatch):
    monkeypatch.setattr(stage, "compiler", lambda: None)
    monkeypatch.setattr(stage, "_inductor", lambda graph, example: pytest.fail("it needs a compiler too"))
    torch.testing.assert_close(stage.COMPILED.run(lambda a: (a @ a.T).exp())(MATRIX), (MATRIX @ MATRIX.T).exp())


def test_a_compiler_that_cannot_be_started_is_told_of(monkeypatch):
    monkeypatch.setattr(module, "compiler", lambda: __file__)
    with pytest.warns(UserWarning, match="other ways are used"):
        assert module.load("", torch.float32) is None


def test_a_program_that_does_not_compile_is_told_of(monkeypatch):
    graph, example, _ = record(lambda a: a + 1, *flatten((MATRIX,)))
    monkeypatch.setattr(module, "FLAGS", [*module.FLAGS, "-DINFINITY=?", "-Dreal=?"])
    with pytest.warns(UserWarning, match="does not compile"):
        assert native(graph, example) is None
