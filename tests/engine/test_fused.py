"""Fused kernels against the recorded program run task by task, on a GPU or else in Triton's interpreter."""

import os
from copy import deepcopy

import pytest
import torch
from torch.func import grad_and_value, vjp

from warmstart.core import functional, make_batch, task_loss
from warmstart.core.trees import flatten
from warmstart.engine.fused import fuse
from warmstart.engine.stage import record
from warmstart.maths.descent import descent
from warmstart.maths.optim import named
from warmstart.models.likelihoods import binary, multiclass, squared
from warmstart.models.mlp import MLP

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is first imported
pytest.importorskip("triton", reason="triton is not installed")
if DEVICE == "cpu":
    from triton.language import sum as builtin
    from triton.runtime.interpreter import InterpretedFunction

    if not isinstance(builtin, InterpretedFunction):
        pytest.skip("triton was imported without its interpreter", allow_module_level=True)

# the interpreter's numpy tells of divisions by zero in padding
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
TASKS = 3


def recorded(fn, *args):
    inputs, structure = flatten(args)
    graph, example, _ = record(fn, inputs, structure)
    return graph, example


def task_by_task(graph, inputs, batched):
    runs = [
        graph(*(leaf[t] if many else leaf for leaf, many in zip(inputs, batched, strict=True))) for t in range(TASKS)
    ]
    return [torch.stack(parts) for parts in zip(*runs, strict=True)]


def stacked(example, batched, seed=1):
    """A stack of tasks, each the example with every number scaled at random; integers stay."""
    generator = torch.Generator().manual_seed(seed)

    def scaled(leaf):
        copies = leaf.expand(TASKS, *leaf.shape)
        noise = torch.randn(copies.shape, generator=generator, dtype=torch.float64).to(leaf.device)
        return copies * (0.5 * noise).exp().to(leaf.dtype) if leaf.is_floating_point() else copies

    return [scaled(leaf) if many else leaf for leaf, many in zip(example, batched, strict=True)]


def assert_fused(graph, example, batched):
    inputs = stacked(example, batched)
    run = fuse(graph, example, batched)
    assert run is not None
    found, expected = run(*inputs), task_by_task(graph, inputs, batched)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def draw(*shape, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + sum(shape)), dtype=dtype).to(DEVICE)


# ---- what meta-learning runs: the inner step, its pullback, the gradient on query rows

SETTINGS = {
    "squared-relu": (squared, MLP(1, (33, 33), 1, "relu"), 7),
    "squared-silu": (squared, MLP(3, (16, 16), 1, "silu"), 16),
    "squared-gelu-momentum": (squared, MLP(2, (9, 20), 1, "gelu"), 20, "momentum"),
    "binary-tanh": (binary, MLP(1, (33, 33), 1, "tanh"), 7),
    "binary-tanh-head": (binary, MLP(4, (17, 17), 1, "tanh"), 5, "sgd", "head.*"),
    "multiclass-relu": (multiclass, MLP(3, (33, 16), 5, "relu"), 7),
}


def setting(likelihood, net, rows, inner="sgd", fast="*"):
    """Functions with their arguments: what is shared, then what each task has of its own."""
    net = deepcopy(net).to(DEVICE, torch.float64)
    with torch.no_grad():
        for leaf in net.parameters():
            leaf.copy_(draw(*leaf.shape) * leaf.shape[-1] ** -0.5)
    model = functional(net, fast=fast)
    rule, loss = descent(model, likelihood, named(inner)), task_loss(model, likelihood)
    labels = torch.arange(rows, device=DEVICE) * 3 % (net.head.out_features if likelihood is multiclass else 2)
    y = labels if likelihood is multiclass else labels.double() if likelihood is binary else draw(rows)
    mask = (torch.arange(rows, device=DEVICE) < rows - 2).double()
    batch = make_batch(draw(rows, net.body[0].in_features), y, w=draw(rows).abs(), mask=mask)
    phi, slow = model.split(model.params)

    def step(slow, inner, batch):
        return rule.step(slow, inner, batch, 0.1)

    def pull(slow, inner, batch, cotangent):
        return vjp(lambda a, b: step(a, b, batch), slow, inner)[1](cotangent)

    def judge(slow, phi, batch):
        return grad_and_value(lambda a, b: loss({**a, **b}, batch), argnums=(0, 1))(slow, phi)

    start = rule.start(phi)
    return {
        "step": (step, slow, start, batch),
        "pull": (pull, slow, start, batch, start),
        "judge": (judge, slow, phi, batch),
    }


@pytest.mark.parametrize("program", ["step", "pull", "judge"])
@pytest.mark.parametrize("name", SETTINGS)
def test_programs_of_meta_learning(name, program):
    fn, shared, *rest = setting(*SETTINGS[name])[program]
    graph, example = recorded(fn, shared, *rest)
    batched = [False] * len(shared) + [True] * (len(example) - len(shared))
    assert_fused(graph, example, batched)


def test_single_precision_is_that_of_torch():
    fn, *args = setting(*SETTINGS["binary-tanh"])["pull"]
    inputs, structure = flatten(args)
    graph, example, _ = record(fn, [leaf.float() for leaf in inputs], structure)
    batched = [True] * len(example)
    given = stacked(example, batched)
    exact = task_by_task(record(fn, inputs, structure)[0], [leaf.double() for leaf in given], batched)
    for one, other in zip(fuse(graph, example, batched)(*given), exact, strict=True):
        assert (one - other).abs().max() < 1e-6 * other.abs().max()


# ---- single operations, with sizes that need padding and functions that are not zero at zero

MATRIX, COLUMN, ROW, SCALAR, POSITIVE = draw(7, 5), draw(7, 1), draw(5), draw(), draw(7, 5).abs() + 0.5
INDEX = torch.tensor([[0], [4], [2], [2], [1], [0], [3]], device=DEVICE)
OPERATIONS = {
    "sum of all": (lambda a: a.exp().sum(), MATRIX),
    "sum of columns": (lambda a: a.exp().sum(0), MATRIX),
    "sum of rows": (lambda a: (a + 1).sum(-1, keepdim=True), MATRIX),
    "mean of rows": (lambda a: (a / a).mean(1), MATRIX),
    "mean": (lambda a: (2 - a).mean(), MATRIX),
    "sum of a broadcast": (lambda a: a.expand(7, 5).sum(0), ROW),
    "sum of a constant": (lambda a: torch.full_like(a, 0.1).sum() + a.sum(), ROW),
    "ones": (lambda a, b: (torch.ones_like(a) * b, torch.zeros_like(a) - 3, -torch.ones_like(b)), MATRIX, ROW),
    "row and column": (lambda a, b: a.sigmoid() - b, COLUMN, ROW),
    "vectors of both kinds": (lambda a, b: a.squeeze(1) * b.sum(1) + b.sum(0).sum(), COLUMN, MATRIX),
    "scalar": (lambda a, b: (a + b, b * 2, b.view(1, 1)), MATRIX, SCALAR),
    "transposes": (lambda a, b: (a.t() + b.unsqueeze(1), a.transpose(0, 1), a.permute(1, 0) * 2), MATRIX, ROW),
    "mixed transposes": (lambda a, b: a.t() + (b * 2).t() * a.exp().t(), MATRIX, POSITIVE),
    "matrix products": (lambda a, b: (a.exp() @ b.t(), a.t().exp() @ b, (a / b) @ b.t()), MATRIX, POSITIVE),
    "product of transposes": (lambda a, b: (a.t() @ (b @ a.t() * 0.1).t()).exp(), MATRIX, POSITIVE),
    "thin products": (lambda a, b, c: (a.exp() @ c.unsqueeze(1), b.t() @ a, b @ c.unsqueeze(0)), MATRIX, COLUMN, ROW),
    "inner product": (lambda a, b: a.t().exp() @ b, COLUMN, draw(7, 1) + 1),
    "product of a broadcast": (lambda a, b: a.expand(7, 5).t() @ b, ROW, MATRIX),
    "comparisons": (lambda a, b: torch.where((a > b) & (a != 0) | (a <= -1), a, 0.1).sum(0), MATRIX, ROW),
    "counted comparison": (lambda a: (a * (a >= 0.1) + (a < 0.3).to(a.dtype)).sum(1), MATRIX),
    "powers": (lambda a: (a**2, a**3, a**4, a**0.5, a**-0.5, a**-1, a**0, a**1), POSITIVE),
    "roots and logarithms": (lambda a: (a.sqrt(), a.rsqrt(), a.log(), a.reciprocal(), a.log1p(), a.abs()), POSITIVE),
    "scaled sums": (lambda a, b: (torch.add(a, b, alpha=0.3), torch.sub(a, b, alpha=2), torch.rsub(a, 3)), MATRIX, ROW),
    "divisions": (lambda a, b: ((a / b).sum(0), (b / 3).sum(), (1 / b).sum()), MATRIX, POSITIVE),
    "softplus": (lambda a: torch.nn.functional.softplus(a * 30, beta=0.7), MATRIX),
    "log softmax of rows": (lambda a: torch.log_softmax(a * 100, -1), MATRIX),
    "log softmax of columns": (lambda a: torch.log_softmax(a.t(), 1).t().sum(0), MATRIX),
    "gather": (lambda a, i: (a.gather(1, i), a.t().gather(0, i.t())), MATRIX, INDEX),
    "scatter": (lambda a, i, b: a.scatter_add(1, i, b), MATRIX, INDEX, COLUMN),
    "an input as it is": (lambda a, b: (a, b.unsqueeze(0), a), MATRIX, ROW),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name):
    fn, *args = OPERATIONS[name]
    graph, example = recorded(fn, *args)
    assert_fused(graph, example, [True] * len(example))


def test_shared_inputs_are_the_same_for_all_tasks():
    graph, example = recorded(lambda a, b, c: (a @ b.t() * c, b + c), MATRIX, POSITIVE, SCALAR)
    assert_fused(graph, example, [True, False, False])
    assert_fused(graph, example, [False, False, True])


def test_a_stack_that_repeats_one_tensor_uses_the_same_kernel():
    """As an initialisation does before the first step, and no more after it."""
    graph, example = recorded(lambda a, b: a @ b.t() + 1, MATRIX, POSITIVE)
    run = fuse(graph, example, [True, True])
    for inputs in (stacked(example, [True, True]), [leaf.expand(TASKS, *leaf.shape) for leaf in example]):
        torch.testing.assert_close(run(*inputs), task_by_task(graph, inputs, [True, True]), rtol=1e-10, atol=1e-10)


def test_small_arguments_keep_their_digits():
    small = torch.tensor([1e-12, -3e-8, 2e-6, -1e-4, 5e-3, -0.3, 40.0], device=DEVICE)
    graph, example = recorded(lambda a: (a.tanh(), a.abs().log1p(), a.expm1()), small)
    exact = small.double().tanh(), small.double().abs().log1p(), small.double().expm1()
    for one, other in zip(fuse(graph, example, [True])(small.unsqueeze(0)), exact, strict=True):
        assert (one[0] / other - 1).abs().max() < 1e-6


# ---- what is left to others

REFUSED = {
    "an unknown operation": (lambda a: a.cumsum(0), MATRIX),
    "a joined tensor": (lambda a, b: torch.cat([a, b.unsqueeze(0)]), MATRIX, ROW),
    "a real view": (lambda a: a.reshape(5, 7), MATRIX),
    "three axes": (lambda a: a.unsqueeze(0), MATRIX),
    "an odd power": (lambda a: a**1.7, POSITIVE),
    "half precision": (lambda a: a * 2, MATRIX.half()),
    "mixed precision": (lambda a, b: a * b, MATRIX, ROW.float()),
    "an index of several entries": (lambda a, i: a.gather(1, i), MATRIX, INDEX.expand(7, 2)),
    "an approximation": (lambda a: torch.nn.functional.gelu(a, approximate="tanh"), MATRIX),
    "a large block": (lambda a: a + 1, draw(200, 60)),
    "a large product": (lambda a: a @ a.t(), draw(100, 60)),
    "a constant tensor": (lambda a: a + torch.arange(5.0, dtype=torch.float64, device=DEVICE), MATRIX),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    fn, *args = REFUSED[name]
    graph, example = recorded(fn, *args)
    assert fuse(graph, example, [True] * len(example)) is None


def test_refused_without_a_stack():
    graph, example = recorded(lambda a: a + 1, MATRIX)
    assert fuse(graph, example, [False]) is None


@pytest.mark.skipif(DEVICE == "cuda", reason="on a CPU only")
def test_refused_on_a_cpu_without_the_interpreter(monkeypatch):
    graph, example = recorded(lambda a: a + 1, MATRIX)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert fuse(graph, example, [True]) is None
