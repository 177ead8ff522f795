"""What crosses between device and host in one process: the plan says where, and it happens nowhere else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from trisect.comm.ledger import Ledger
from trisect.config import TrainOptions
from trisect.data.records import TimelineRecord
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.nn.models.registry import DYNAMIC, STATIC
from trisect.shards.stream import SnapshotStream
from trisect.train.fit import model_maker
from trisect.train.setup import Setup


def prepared(name: str, data: Graph | Timeline, task: str, **options: Any) -> Setup:
    """A program whose first epoch is over: what is brought to the device once is there."""
    training = TrainOptions(device="sim", precision="float64")
    setup = Setup.of(model_maker(name, options, 0), data, task, training)
    setup.program.begin(1)
    setup.program.run()
    return setup


@pytest.mark.parametrize("name", STATIC)
def test_an_epoch_on_a_graph_copies_the_loss_alone(
    name: str, community: Graph, pretend: ModuleType, for_model: Callable[[str, Any], Any]
) -> None:
    setup = prepared(name, for_model(name, community), "node-classification", layers=3, hidden=8)
    with pretend.counted() as transfers:
        setup.program.begin(2)
        setup.program.run()
        setup.program.finish()
    assert transfers.to_host == [()]
    assert transfers.to_device == []
    assert transfers.lists == 0


@pytest.mark.parametrize("name", [*STATIC, *DYNAMIC])
def test_an_epoch_on_a_timeline_copies_no_rows(
    name: str, timeline: Timeline, pretend: ModuleType, for_model: Callable[[str, Any], Any]
) -> None:
    setup = prepared(
        name, for_model(name, timeline), "node-classification", **({"layers": 2, "hidden": 8} if name in STATIC else {})
    )
    with pretend.counted() as transfers:
        setup.program.begin(2)
        setup.program.run()
        setup.program.finish()
    assert [shape for shape in transfers.to_host if shape] == []
    assert transfers.to_device == []
    assert transfers.lists == 0


@pytest.fixture(params=["once", "edge-life", "m-transform", "weighted"])
def events(request: pytest.FixtureRequest, record: TimelineRecord) -> Timeline:
    """A timeline whose snapshots are single steps, sums over a window of them, or have weights of their own."""
    if request.param == "once":
        return Timeline.from_record(record)
    if request.param == "weighted":
        weights = np.linspace(0.5, 2, len(record.src)).astype(np.float32)
        return Timeline.from_record(dataclasses.replace(record, weight=weights))
    return Timeline.from_record(record, smoothing={"kind": request.param, "length": 3})


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("encoding", ["full", "difference", "compact"])
def test_a_stream_brings_the_same_snapshots(
    encoding: Any, prefetch: bool, events: Timeline, pretend: ModuleType
) -> None:
    """And copies the bytes that its ledger says, each way through the steps."""
    ledgers = [Ledger(), Ledger()]
    here, there = (
        SnapshotStream(
            events,
            "symmetric",
            self_loops=True,
            device=device,
            encoding=encoding,
            ledger=ledger,
            prefetch=prefetch and device == "sim",
        )
        for device, ledger in zip(("cpu", "sim"), ledgers, strict=True)
    )
    with pretend.counted() as transfers:
        matrices = [there.at(step) for _ in range(2) for step in range(events.steps)]
    assert transfers.to_host == []
    assert transfers.device_bytes == ledgers[1].sent_bytes
    for step, matrix in enumerate(matrices):
        assert matrix.device.type == "sim"
        torch.testing.assert_close(matrix.to("cpu").dense(), here.at(step % events.steps).dense())
    assert ledgers[1].sent_bytes == ledgers[0].sent_bytes


@pytest.mark.parametrize("layout", [Layout(), Layout(blocks=3), Layout(blocks=3, recompute=True)], ids=str)
@pytest.mark.parametrize("name", ["cd-gcn", "tm-gcn", "evolvegcn-h", "gcnii"])
def test_snapshots_that_do_not_fit_are_brought_in_each_epoch(
    name: str, layout: Layout, record: TimelineRecord, pretend: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room for the features, and for no snapshot."""
    monkeypatch.setenv("TRISECT_MEMORY", "8000")
    timeline = Timeline.from_record(record, smoothing={"kind": "edge-life", "length": 3})
    options = TrainOptions(device="sim", precision="float64")
    setup = Setup.of(model_maker(name, {"hidden": 4, "layers": 2}, 0), timeline, "node-classification", options, layout)
    copied = []
    for epoch in (1, 2, 3):
        setup.program.ledger.clear()
        with pretend.counted() as transfers:
            setup.program.begin(epoch)
            setup.program.run()
            setup.program.finish()
            coming = setup.program.shard.matrices._next  # type: ignore[attr-defined]
            if coming is not None:
                coming[1].result()
        assert transfers.to_host == [()]
        copied.append((transfers.device_bytes, setup.program.ledger.sent_bytes))
    assert copied[1][0] == copied[1][1] > 0
    assert copied[1] == copied[2]
