"""Hosts that cut the data for themselves and come to different orders are told, not trained."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from trisect.comm.mesh import Mesh
from trisect.comm.transport import Transport
from trisect.errors import LayoutError
from trisect.partition.partition import order_digest
from trisect.train.ranks import require_one_order


def test_an_order_has_a_name_of_its_own() -> None:
    order = torch.randperm(50, generator=torch.Generator().manual_seed(1))
    assert order_digest(order) == order_digest(order.clone())
    assert order_digest(order) == order_digest(order.to(torch.int32))
    assert order_digest(order) != order_digest(order.flip(0))


def test_ranks_with_another_order_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    order = torch.arange(5)
    monkeypatch.setattr(Transport, "__init__", lambda *given: None)
    others: list[Any] = [order_digest(order)]
    monkeypatch.setattr(Transport, "gather", lambda self, value: [value, *others])
    mesh = cast("Mesh", None)
    require_one_order(order, mesh)
    others[0] = order_digest(order.flip(0))
    with pytest.raises(LayoutError, match="cut in another way on the host of rank 1 than on that of rank 0"):
        require_one_order(order, mesh)
    with pytest.raises(LayoutError, match="rank 1"):
        require_one_order(None, mesh)
