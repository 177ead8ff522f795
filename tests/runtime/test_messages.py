"""Which tensor is read, which is history, and which gradients may take, from epoch to epoch."""

from __future__ import annotations

import torch
from torch import Tensor

from trisect.runtime.messages import Messages


def messages(*, stale: bool = True, apart: bool = True) -> Messages:
    return Messages([2, 3], 4, torch.float64, torch.device("cpu"), stale=stale, apart=apart)


def full(value: float, width: int = 2) -> Tensor:
    return torch.full((4, width), value, dtype=torch.float64)


def fill(found: Messages, value: float) -> None:
    for segment, width in ((0, 2), (1, 3)):
        found.write(segment, 0, 4, full(value, width))


def test_a_mean_is_taken_in_two_tensors() -> None:
    found = messages()
    found.begin(whole=True, aside=False, keep=0.0)
    fill(found, 1.0)
    places = set()
    mean = 1.0
    for epoch in range(2, 6):
        found.begin(whole=False, aside=False, keep=0.75)
        assert found.blends
        found.write(0, 0, 2, full(epoch)[:2])
        # rows that are done are fresh, the others still the mean
        assert torch.equal(found.rows(0)[:2], full(epoch)[:2])
        assert torch.allclose(found.rows(0)[2:], full(mean)[2:])
        found.write(0, 2, 4, full(epoch)[2:])
        found.write(1, 0, 4, full(epoch, 3))
        found.turn()
        mean = 0.75 * mean + 0.25 * epoch
        found.place_for_gradients(0).fill_(99.0)
        assert torch.allclose(found.history()["history.0"], full(mean))
        places |= {found.place_for_gradients(0).data_ptr(), found.history()["history.0"].data_ptr()}
    assert len(places) == 2


def test_fixed_history_changes_only_when_it_is_kept() -> None:
    found = messages()
    for epoch, keep in ((1, None), (2, 0.0), (3, None), (4, None), (5, 0.0)):
        found.begin(whole=False, aside=False, keep=keep)
        before = {1: 0.0, 2: 0.0, 3: 2.0, 4: 2.0, 5: 2.0}[epoch]
        assert torch.equal(found.rows(0), full(before))
        fill(found, float(epoch))
        found.turn()
        found.place_for_gradients(0).fill_(99.0)
    assert torch.equal(found.history()["history.0"], full(5.0))


def test_the_last_epoch_is_history_in_place() -> None:
    found = messages(apart=False)
    found.begin(whole=False, aside=False, keep=0.0)
    assert torch.equal(found.rows(0), full(0.0))
    fill(found, 1.0)
    found.turn()
    found.place_for_gradients(0).fill_(99.0)
    found.begin(whole=False, aside=False, keep=0.0)
    assert torch.equal(found.rows(0), full(1.0))
    again = messages(apart=False)
    again.restore(found.history())
    assert torch.equal(again.history()["history.1"], full(1.0, 3))


def test_a_pass_aside_leaves_history_alone() -> None:
    found = messages()
    found.begin(whole=True, aside=False, keep=0.0)
    fill(found, 1.0)
    found.begin(whole=True, aside=True, keep=0.0)
    fill(found, 2.0)
    assert torch.equal(found.history()["history.0"], full(1.0))


def test_what_autograd_holds_is_not_overwritten() -> None:
    found = messages()
    found.begin(whole=False, aside=False, keep=None)
    fill(found, 1.0)
    seen = found.rows(0)
    assert found.hold(seen[1:2])
    assert not found.hold(full(1.0))
    found.turn()
    assert found.place_for_gradients(0).data_ptr() != seen.data_ptr()
    assert found.place_for_gradients(1).data_ptr() == found.rows(1).data_ptr()
