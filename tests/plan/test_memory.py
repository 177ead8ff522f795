"""The memory of a rank by component."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.plan.workloads import cluster, static, timeline

from trisect.layout import parse_layout
from trisect.partition.halo import features_at_once
from trisect.plan.memory import MemoryModel, in_pieces, paged

DEVICE = cluster().device
ROWS = 100_000


def _memory(workload, text):
    return MemoryModel(workload).of(workload.plan(parse_layout(text)), DEVICE)


def test_large_buffers_take_whole_pages():
    assert paged(1000, DEVICE) == 1000
    assert paged((1 << 21) + 1, DEVICE) == 2 << 21
    assert in_pieces(4 << 20, DEVICE, [0.5, 0.5]) == 4 << 20
    assert in_pieces(5 << 20, DEVICE, [0.5, 0.5]) == 8 << 20


def test_by_hand():
    workload = static("gcnii", layers=4, hidden=64, vertices=ROWS, edges=400_000)
    memory = _memory(workload, "vertex=1")
    one = paged(ROWS * 64 * 4, DEVICE)
    # each of four layers keeps its sum and a bit an element; the first layer its bits, the last one its input
    assert memory.activations == pytest.approx(5 * one, rel=0.08)
    assert memory.parameters == pytest.approx(2 * 4 * workload.parameters)
    assert memory.optimiser == pytest.approx(3 * 4 * workload.parameters)
    assert memory.libraries == DEVICE.libraries
    assert memory.halo == memory.history == memory.carries == 0.0
    assert memory.total == pytest.approx(
        sum(value for key, value in memory.plain().items() if key != "total"), rel=1e-6
    )


def test_what_a_layout_saves():
    workload = static("gcnii", layers=16, hidden=64, vertices=ROWS, edges=400_000)
    whole = _memory(workload, "vertex=1")
    assert _memory(workload, "recompute=true").activations < 0.55 * whole.activations
    assert _memory(workload, "vertex=4").activations < 0.35 * whole.activations
    assert _memory(workload, "vertex=4").halo > 0
    assert _memory(workload, "layer=4,chunks=8").history > 0
    dynamic = timeline(vertices=ROWS, edges=400_000)
    blocks = _memory(dynamic, "blocks=4")
    assert blocks.activations < 0.3 * _memory(dynamic, "blocks=1").activations
    assert blocks.carries > _memory(dynamic, "blocks=1").carries
    assert _memory(workload, "vertex=1").activations == pytest.approx(whole.activations)


def test_the_largest_component_is_named():
    memory = _memory(static("gcnii", layers=16, hidden=64, vertices=ROWS, edges=400_000), "vertex=1")
    assert memory.largest(1)[0][0] == "activations"


def test_evaluation_counts_where_it_takes_more_than_training():
    # one process goes back over outputs and gradients that are as large as the scores; chunks go back one by one
    many = static("gcn", layers=2, hidden=16, vertices=ROWS, edges=400_000, classes=500)
    outputs = ROWS * 500 * 4
    chunked = _memory(many, "layer=2,chunks=64")
    assert chunked.evaluation > 0
    a_pass = chunked.activations + chunked.gradients + chunked.halo + chunked.evaluation
    assert a_pass >= outputs + ROWS * 500 * (4 + 8)
    unmeasured = _memory(replace(many, judged=0.0), "layer=2,chunks=64")
    assert unmeasured.evaluation < chunked.evaluation
    assert unmeasured.total < chunked.total


def test_the_first_sums_of_parts_count_before_training():
    wide = static("gcn", layers=2, hidden=8, vertices=20_000, edges=80_000, features=4000)
    parts, stages = _memory(wide, "vertex=2"), _memory(wide, "layer=2,chunks=8")
    # some features of all rows at once, and never all of them
    assert 64 << 20 < parts.reading < 0.8 * parts.features
    assert stages.reading == 0.0


def test_features_are_exchanged_in_a_few_blocks():
    assert features_at_once(1000, 64, 4) == 64
    assert features_at_once(20_000, 4000, 4) == 832
    assert features_at_once(10**8, 1000, 4) == 128
    assert features_at_once(10**8, 60, 4) == 60
