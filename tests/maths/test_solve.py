from itertools import pairwise

import pytest
import torch
from torch.func import vmap

from warmstart.core.trees import flatten, leaves, unflatten
from warmstart.maths.solve import conjugate_gradient, inverse_of_rows, times_inverse


def problem(size, dtype=torch.float64):
    """A positive definite matrix of uneven spectrum and a target, as a product on a tree of two leaves."""
    root = torch.randn(size, size, dtype=dtype)
    matrix = root @ root.T / size + torch.diag(torch.linspace(0.1, 3, size, dtype=dtype))
    target = {"a": torch.randn(2, dtype=dtype), "b": (torch.randn(size - 2, dtype=dtype),)}
    return matrix, target


def flat(tree):
    return torch.cat([leaf.reshape(-1) for leaf in leaves(tree)])


def product(matrix):
    def apply(tree):
        parts, structure = flatten(tree)
        return unflatten(list((matrix @ flat(tree)).split([len(part) for part in parts])), structure)

    return apply


@pytest.mark.parametrize("steps", [8, 40])
def test_against_a_direct_solve(steps):
    """Exact after as many steps as unknowns, and no worse for more."""
    matrix, target = problem(8)
    found = conjugate_gradient(product(matrix), target, steps)
    torch.testing.assert_close(flat(found), torch.linalg.solve(matrix, flat(target)), rtol=1e-8, atol=1e-10)


def test_single_precision_does_not_drift_after_it_has_converged():
    matrix, target = problem(8, torch.float32)
    found = conjugate_gradient(product(matrix), target, 200)
    torch.testing.assert_close(flat(found), torch.linalg.solve(matrix, flat(target)), rtol=1e-4, atol=1e-5)


def test_as_many_steps_as_distinct_eigenvalues():
    turn = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q
    values = torch.tensor([0.5, 0.5, 0.5, 4.0, 4.0, 4.0], dtype=torch.float64)
    matrix = turn @ torch.diag(values) @ turn.T
    target = {"a": torch.randn(6, dtype=torch.float64)}
    exact = torch.linalg.solve(matrix, target["a"])
    torch.testing.assert_close(conjugate_gradient(product(matrix), target, 2)["a"], exact)
    assert (conjugate_gradient(product(matrix), target, 1)["a"] - exact).norm() > 0.1 * exact.norm()


def test_each_step_brings_the_error_down_in_the_matrix_norm():
    matrix, target = problem(10)
    exact = torch.linalg.solve(matrix, flat(target))
    errors = []
    for steps in range(8):
        gap = flat(conjugate_gradient(product(matrix), target, steps)) - exact
        errors.append((gap @ matrix @ gap).item())
    assert all(later < earlier for earlier, later in pairwise(errors))


def test_a_preconditioner_that_is_the_inverse_needs_one_step_and_one_that_is_near_few():
    matrix, target = problem(12)
    exact = torch.linalg.solve(matrix, flat(target))
    found = conjugate_gradient(product(matrix), target, 1, product(torch.linalg.inv(matrix)))
    torch.testing.assert_close(flat(found), exact)
    uneven = torch.diag(torch.logspace(-2, 3, 12, dtype=torch.float64))
    steep, near = uneven @ matrix @ uneven, product(torch.linalg.inv(uneven @ uneven))
    exact = torch.linalg.solve(steep, flat(target))
    with_it, without = (flat(conjugate_gradient(product(steep), target, 8, *more)) - exact for more in ((near,), ()))
    assert with_it.norm() < 0.01 * exact.norm() < without.norm()


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_the_inverse_of_weighted_rows_with_a_one_behind_each(count):
    """Of few rows by one form, of many by the other."""
    rows, weight = torch.randn(count, 3, dtype=torch.float64), torch.rand(count, dtype=torch.float64)
    beside = torch.cat([rows, torch.ones(count, 1, dtype=torch.float64)], 1)
    matrix = 0.3 * torch.eye(4, dtype=torch.float64) + beside.T @ torch.diag(weight) @ beside
    asked = torch.randn(5, 4, dtype=torch.float64)
    found = inverse_of_rows(rows, weight, 0.3)
    assert found.lines.shape == (min(count, 4), 4)
    torch.testing.assert_close(times_inverse(found, asked), torch.linalg.solve(matrix, asked.T).T)


@pytest.mark.parametrize("count", [5, 100])
@pytest.mark.parametrize("length", [1.0, 1e3, 1e5])
def test_very_long_rows_in_single_precision_leave_it_positive(count, length):
    rows = length * torch.rand(count, 64, dtype=torch.float32)
    found = inverse_of_rows(rows, torch.full((count,), 0.05), 0.005)
    whole = times_inverse(found, torch.eye(65)).double()
    assert torch.linalg.eigvalsh((whole + whole.T) / 2).min() > 0


def test_a_stack_of_systems_of_which_one_is_already_solved():
    matrices = torch.stack([problem(5)[0] for _ in range(3)])
    targets = torch.randn(3, 5, dtype=torch.float64)
    targets[1] = 0
    found = vmap(lambda m, t: conjugate_gradient(product(m), {"a": t}, 7))(matrices, targets)["a"]
    torch.testing.assert_close(found, torch.linalg.solve(matrices, targets), rtol=1e-8, atol=1e-10)
    assert found[1].equal(torch.zeros(5, dtype=torch.float64))
