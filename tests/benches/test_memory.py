"""Counted bytes are exact, so what memory grows with can be tested."""

from functools import cache

import pytest
import torch

from warmstart.benches import memory
from warmstart.benches.memory import WAYS, peak, run, sections
from warmstart.engine.memory import LiveBytes

CPU = torch.device("cpu")


def test_live_bytes_rise_and_fall_with_the_tensors():
    with LiveBytes() as live:
        a = torch.zeros(100, dtype=torch.float64)
        assert live.peak == 800
        b = a[:50].reshape(5, 10)  # a view holds nothing of its own
        assert live.peak == 800
        c = a + 1
        assert live.peak == 1600
        del c
        del a
        d = torch.ones(100, dtype=torch.float64)  # b still holds a's memory
        assert live.peak == 1600
        del b, d
        e = torch.ones(199, dtype=torch.float64)
        assert live.peak == 1600
        f = torch.ones(3, dtype=torch.float64)
        assert live.peak == 8 * 202
        del e, f


def test_live_bytes_leave_out_what_was_there_before():
    x = torch.ones(1000)
    with LiveBytes() as live:
        y = x[:500].view(50, 10)
        x.add_(1)
    assert live.peak == 0 and y.numel() == 500


def test_live_bytes_see_what_autograd_keeps():
    x = torch.ones(1000, requires_grad=True)
    with LiveBytes() as live:
        y = x.exp().exp().exp()  # every result is needed for the derivative
        assert live.peak == 3 * 4000
        del y
        torch.zeros(2000)
    assert live.peak == 3 * 4000


@cache
def measured(way, steps, rows):
    return peak(WAYS[way], steps, rows, CPU)


def growth(way, rows, first=1):
    return measured(way, 20, rows)[0] / measured(way, first, rows)[0]


@pytest.mark.parametrize("rows", memory.ROWS)
def test_recomputation_holds_the_memory_of_many_steps(rows):
    assert growth("maml, recomputed", rows) <= 2.5
    assert growth("maml, kept", rows) > 5  # what there is to hold


def test_first_order_memory_does_not_depend_on_the_steps():
    assert growth("maml, first order", 10) == 1.0


def test_the_memory_of_gem_does_not_depend_on_the_steps_and_that_of_abml_does():
    assert growth("gem", 10, 5) == 1.0
    assert growth("abml, kept", 10, 5) > 3
    assert [measured("gem", k, 10)[1] for k in (3, 5, 20)] == [25 * 2 * 5 * 1761 * 4 * k for k in (3, 5, 5)]


def test_run_gives_each_peak_and_the_growth(monkeypatch):
    monkeypatch.setattr(memory, "peak", lambda way, steps, rows, device: (2**20 * (rows + steps), 0))
    results = run("cpu")
    growths = [row for row in results.rows if row.metric == "growth"]
    found = {(row.method, row.setting["rows"], row.setting["against"]): row.mean for row in growths}
    assert found["gem", 10, 1] == pytest.approx(30 / 11)
    table = sections(results)[0].table
    assert [cell.text for cell in table.lines[0].cells] == [
        "11.00",
        "15.00",
        "20.00",
        "30.00",
        "2.73",
        "2.00",
        "not run",
    ]
