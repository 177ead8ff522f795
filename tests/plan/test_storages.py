"""Which storages a computation takes, and when."""

from __future__ import annotations

import pytest
import torch

from trisect.ops.memory import empty, pooling_all
from trisect.plan.storages import StorageLog

KIB = 1024


def _kib(count):
    return torch.zeros(count * 256)


def test_what_is_let_go_does_not_count():
    with StorageLog() as log:
        first = _kib(4)
        second = _kib(2)
        del first
        third = _kib(3)
    assert log.highest() == 6 * KIB
    assert log.live() == {log.number_of(second), log.number_of(third)}
    # the negative control: held, the first would be there with the third
    with StorageLog() as log:
        held = [_kib(4), _kib(2), _kib(3)]
    assert log.highest() == 9 * KIB
    assert len(held) == 3


def test_views_take_nothing_and_buffers_of_the_pool_their_tensors():
    with pooling_all(), StorageLog() as log:
        x = empty((16, 16))
        rows = x[2:5].t()
        assert log.number_of(rows) == log.number_of(x)
        assert [storage.bytes for storage in log.storages] == [KIB]
        assert log.storages[0].pooled
        del x
        assert log.live() == {0}
        del rows
        assert log.live() == set()


@pytest.mark.parametrize("held", [False, True])
def test_a_graph_holds_what_it_saves_until_backward(held):
    weight = torch.ones(256, requires_grad=True)
    with StorageLog() as log:
        y = (weight * 2.0).exp().sum()
        kept = log.live()
        turn = len(log.events)
        y.backward(retain_graph=held)
    # exp keeps its own result, which the product does not ask for
    assert sum(log.storages[number].bytes for number in kept) == KIB + 4
    assert log.highest(first=turn) > log.highest(last=turn)
    assert (KIB in [log.storages[number].bytes for number in log.live() if number in kept]) is held
