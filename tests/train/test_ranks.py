"""Hosts that cut the data for themselves and come to different orders are told, not trained; one process and ranks
refuse the same settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch

from trisect.comm.mesh import Mesh
from trisect.comm.transport import Transport
from trisect.config import TrainOptions
from trisect.errors import ConfigError, LayoutError
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.nn.models.source import NamedModel
from trisect.partition.partition import order_digest
from trisect.train.ranks import cut_data, require_one_order
from trisect.train.setup import Setup


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


@pytest.mark.parametrize("monitor", ["val.loss", "val.accuracy"])
def test_a_monitor_without_steps_is_refused_alike(timeline: Timeline, tmp_path: Path, monitor: str) -> None:
    task = {"name": "node-classification", "split": [6, 0, 2], "at": "every"}
    maker, options = NamedModel("gcn", {"layers": 2, "hidden": 4}, 0), TrainOptions(monitor=monitor)
    said = []
    with pytest.raises(ConfigError) as alone:
        Setup.of(maker, timeline, task, options)
    said.append(str(alone.value))
    for layout in (Layout(vertex=2), Layout(time=2), Layout(layer=2)):
        with pytest.raises(ConfigError) as cut:
            cut_data(timeline, maker, task, layout, options, tmp_path)
        said.append(str(cut.value))
    assert set(said) == {f"train.monitor is {monitor!r}, but there are no steps of val; use another split."}
    Setup.of(maker, timeline, task, TrainOptions(monitor="test.loss"))
