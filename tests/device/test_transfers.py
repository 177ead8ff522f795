"""What crosses between device and host in one process: the plan says where, and it happens nowhere else."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from trisect.comm.ledger import Ledger
from trisect.config import TrainOptions
from trisect.graph.graph import Graph
from trisect.graph.timeline import Timeline
from trisect.nn.registry import DYNAMIC, STATIC
from trisect.shards.stream import SnapshotStream
from trisect.train.fit import model_maker
from trisect.train.setup import Setup


def prepared(name: str, data: Graph | Timeline, task: str, **options: Any) -> Setup:
    """A program whose first epoch is over: what is brought to the device once is there."""
    training = TrainOptions(device="sim", precision="float64")
    setup = Setup.of(model_maker(name, options, 0), data, task, training)
    setup.program.begin(1)
    setup.program.run(lambda: None)
    return setup


@pytest.mark.parametrize("name", STATIC)
def test_an_epoch_on_a_graph_copies_the_loss_alone(name: str, community: Graph, pretend: ModuleType) -> None:
    setup = prepared(name, community, "node-classification", layers=3, hidden=8)
    values = []
    with pretend.counted() as transfers:
        setup.program.begin(2)
        setup.program.run(lambda: values.append(setup.program.total_loss()))
    assert len(values) == 1
    assert transfers.to_host == [()]
    assert transfers.to_device == []
    assert transfers.lists == 0


@pytest.mark.parametrize("name", [*STATIC, *DYNAMIC])
def test_an_epoch_on_a_timeline_copies_no_rows(name: str, timeline: Timeline, pretend: ModuleType) -> None:
    setup = prepared(name, timeline, "node-classification", **({"layers": 2, "hidden": 8} if name in STATIC else {}))
    with pretend.counted() as transfers:
        setup.program.begin(2)
        setup.program.run(setup.program.total_loss)
    assert [shape for shape in transfers.to_host if shape] == []
    assert transfers.to_device == []
    assert transfers.lists == 0


@pytest.mark.parametrize("encoding", ["full", "difference", "compact"])
def test_a_stream_brings_the_same_snapshots(encoding: Any, timeline: Timeline, pretend: ModuleType) -> None:
    ledgers = [Ledger(), Ledger()]
    here, there = (
        SnapshotStream(timeline, "symmetric", self_loops=True, device=device, encoding=encoding, ledger=ledger)
        for device, ledger in zip(("cpu", "sim"), ledgers, strict=True)
    )
    for step in range(timeline.steps):
        with pretend.counted() as transfers:
            matrix = there.at(step)
        assert matrix.device.type == "sim"
        assert transfers.to_host == []
        torch.testing.assert_close(matrix.to("cpu").dense(), here.at(step).dense())
