"""Which tensor is read, which is history, and which gradients may take, from epoch to epoch."""

from __future__ import annotations

import torch
from torch import Tensor

from trisect.views.history_rows import HistoryRows


def history_rows(*, apart: bool = True) -> HistoryRows:
    return HistoryRows([2, 3], 4, torch.float64, torch.device("cpu"), apart=apart)


def full(value: float, width: int = 2) -> Tensor:
    return torch.full((4, width), value, dtype=torch.float64)


def fill(rows: HistoryRows, value: float) -> None:
    for slot, width in ((0, 2), (1, 3)):
        rows.write(slot, 0, 4, full(value, width))


def test_a_mean_is_taken_in_two_tensors() -> None:
    rows = history_rows()
    rows.begin(chunked=False, keep=0.0)
    fill(rows, 1.0)
    addresses = set()
    mean = 1.0
    for epoch in range(2, 6):
        rows.begin(chunked=True, keep=0.75)
        assert rows.blends
        rows.write(0, 0, 2, full(epoch)[:2])
        # rows that are done are fresh, the others still the mean
        assert torch.equal(rows.rows(0)[:2], full(epoch)[:2])
        assert torch.allclose(rows.rows(0)[2:], full(mean)[2:])
        rows.write(0, 2, 4, full(epoch)[2:])
        rows.write(1, 0, 4, full(epoch, 3))
        rows.turn()
        mean = 0.75 * mean + 0.25 * epoch
        rows.memory_for_gradients(0).fill_(99.0)
        assert torch.allclose(rows.history()["history.0"], full(mean))
        addresses |= {rows.memory_for_gradients(0).data_ptr(), rows.history()["history.0"].data_ptr()}
    assert len(addresses) == 2


def test_fixed_history_changes_only_when_it_is_kept() -> None:
    rows = history_rows()
    for epoch, keep in ((1, None), (2, 0.0), (3, None), (4, None), (5, 0.0)):
        rows.begin(chunked=True, keep=keep)
        before = {1: 0.0, 2: 0.0, 3: 2.0, 4: 2.0, 5: 2.0}[epoch]
        assert torch.equal(rows.rows(0), full(before))
        fill(rows, float(epoch))
        rows.turn()
        rows.memory_for_gradients(0).fill_(99.0)
    assert torch.equal(rows.history()["history.0"], full(5.0))


def test_the_last_epoch_is_history_in_place() -> None:
    rows = history_rows(apart=False)
    rows.begin(chunked=True, keep=0.0)
    assert torch.equal(rows.rows(0), full(0.0))
    fill(rows, 1.0)
    rows.turn()
    rows.memory_for_gradients(0).fill_(99.0)
    rows.begin(chunked=True, keep=0.0)
    assert torch.equal(rows.rows(0), full(1.0))
    again = history_rows(apart=False)
    again.restore(rows.history())
    assert torch.equal(again.history()["history.1"], full(1.0, 3))


def test_a_pass_that_is_not_kept_leaves_history_alone() -> None:
    rows = history_rows()
    rows.begin(chunked=False, keep=0.0)
    fill(rows, 1.0)
    rows.begin(chunked=False, keep=None)
    fill(rows, 2.0)
    assert torch.equal(rows.history()["history.0"], full(1.0))
