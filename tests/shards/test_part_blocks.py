"""Blocks of a part that slide from step to step equal blocks built anew; so do their transposes and the halo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import trisect
from trisect.comm.ledger import Ledger
from trisect.graph.adjacency import Adjacency
from trisect.graph.build import Normalisation, validate
from trisect.graph.timeline.timeline import Timeline
from trisect.partition.partition import Partition
from trisect.partition.timeline import deal, step_work
from trisect.shards.part_blocks import PartBlocks
from trisect.shards.timeline_files import read_timeline_cut, read_timeline_part
from trisect.shards.timeline_part import TimelinePart
from trisect.shards.timeline_writer import write_timeline_shards

VERTICES = 40
COUNTS = (25, 0, 0, 60, 3, 31, 0, 44, 18)
EDGE_LIFE = {"kind": "edge-life", "length": 4}
MEAN = {"kind": "m-transform", "length": 4, "matrix": "mean"}
ONES = {"kind": "m-transform", "length": 3, "matrix": "ones"}
HARMONIC = {"kind": "m-transform", "length": 3, "matrix": "harmonic"}


@dataclass(frozen=True)
class Form:
    normalisation: Normalisation
    self_loops: bool


def timeline_of(smoothing: dict[str, Any] | None, *, undirected: bool) -> Timeline:
    generator = torch.Generator().manual_seed(7)
    counts = torch.tensor([0, *COUNTS])
    source, target = torch.randint(0, VERTICES, (2, sum(COUNTS)), generator=generator)
    repeated = torch.randint(0, sum(COUNTS), (60,), generator=generator)
    source[repeated], target[repeated] = source[repeated.flip(0)], target[repeated.flip(0)]
    source[::13] = target[::13]  # loops
    timeline = Timeline.from_arrays(
        source, target, counts.cumsum(0), vertices=VERTICES, undirected=undirected, smoothing=smoothing
    )
    return timeline.between(1, len(COUNTS))  # the window reaches before the first step


def parts_of(
    timeline: Timeline, folder: Path, form: Form, parts: int, dtype: torch.dtype, budget: int = 0
) -> list[TimelinePart]:
    partition = Partition.equal(VERTICES, parts)
    runs = deal(step_work(timeline)[:5], 1, 1)
    write_timeline_shards(timeline, partition, runs, form, folder, aggregated=False, dtype=dtype)
    cut = read_timeline_cut(folder)
    shards = [read_timeline_part(cut, part, form, dtype, budget, Ledger()) for part in range(parts)]
    return [shard for shard in shards if isinstance(shard, TimelinePart)]


def source_of(part: TimelinePart) -> PartBlocks:
    assert isinstance(part.blocks.source, PartBlocks)
    return part.blocks.source


def same(block: Adjacency, anew: Adjacency, tolerance: float = 0.0) -> bool:
    """Equal arrays: to the bit, or values up to a relative tolerance."""
    if block.shape != anew.shape or (block.values is None) != (anew.values is None):
        return False
    arrays = [(block.starts, anew.starts), (block.ends, anew.ends), (block.indices, anew.indices)]
    if not all(torch.equal(one, other) for one, other in arrays):
        return False
    if block.values is None or anew.values is None:
        return True
    return torch.allclose(block.values, anew.values, rtol=tolerance, atol=0)


@pytest.mark.parametrize("undirected", [True, False], ids=["undirected", "directed"])
@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("smoothing", [None, EDGE_LIFE, MEAN, ONES, HARMONIC], ids=str)
def test_every_block_equals_the_one_built_anew(
    tmp_path: Path, smoothing: dict[str, Any] | None, parts: int, undirected: bool
) -> None:
    forms = (Form("symmetric", True), Form("row", False), Form("none", True), Form("symmetric", False))
    for number, form in enumerate(forms):
        for dtype in (torch.float32, torch.float64):
            folder = tmp_path / f"{number}-{dtype.itemsize}"
            folder.mkdir()
            timeline = timeline_of(smoothing, undirected=undirected)
            # k times the mean's factor and its sum k times are rounded differently in float64
            tolerance = 1e-14 if smoothing is MEAN and dtype == torch.float64 else 0.0
            steps = range(timeline.steps)
            for part in parts_of(timeline, folder, form, parts, dtype):
                forward = [part.blocks.at(step) for step in steps]
                backward = [part.blocks.at(step) for step in reversed(steps)][::-1]
                anew = [source_of(part).assemble(step) for step in steps]
                for step in steps:
                    validate(forward[step])
                    assert same(forward[step], anew[step], tolerance)
                    assert same(backward[step], anew[step], tolerance)
                for step in reversed(steps):  # as backward asks for them
                    assert same(forward[step].transpose(), anew[step].transpose(), tolerance)
                assert not all(same(one, other) for one, other in zip(forward[1:], anew, strict=False))
                full = max(steps, key=lambda step: anew[step].entries)
                changed = anew[full].with_values(torch.full((anew[full].entries,), 0.3, dtype=dtype))
                assert not same(forward[full], changed, 1e-3)


def test_an_event_that_changes_shows(tmp_path: Path) -> None:
    [part, _] = parts_of(timeline_of(EDGE_LIFE, undirected=False), tmp_path, Form("row", True), 2, torch.float64)
    anew = [source_of(part).assemble(step) for step in range(6)]
    events = part.events
    stretch = events.window(3)
    events.dst[stretch.start : stretch.stop] = events.rows - 1 - events.dst[stretch.start : stretch.stop]
    assert not all(same(part.blocks.at(step), anew[step]) for step in range(6))


def test_only_events_that_enter_are_sent(tmp_path: Path) -> None:
    for part in parts_of(timeline_of(EDGE_LIFE, undirected=True), tmp_path, Form("row", True), 2, torch.float32):
        ledger = part.blocks.ledger
        part.blocks.at(0)
        before, offsets = ledger.sent_bytes, part.events.offsets
        part.blocks.at(1)
        entering = int(offsets[part.events.first + 2] - offsets[part.events.first + 1])
        stretch = part.events.window(1)
        assert ledger.sent_bytes - before == 8 * entering < 8 * (stretch.stop - stretch.start)


def test_blocks_are_kept_within_the_budget(tmp_path: Path) -> None:
    timeline, form = timeline_of(EDGE_LIFE, undirected=True), Form("symmetric", True)
    [rich, _] = parts_of(timeline, tmp_path, form, 2, torch.float32, budget=1 << 20)
    assert rich.part_graph(2) is rich.part_graph(2)
    assert rich.blocks.keeps(2)
    (tmp_path / "poor").mkdir()
    [poor, _] = parts_of(timeline, tmp_path / "poor", form, 2, torch.float32)
    assert poor.part_graph(2) is not poor.part_graph(2)
    assert not poor.blocks.keeps(2)
    assert same(poor.part_graph(2).adjacency, rich.part_graph(2).adjacency)


@pytest.mark.parametrize("smoothing", [EDGE_LIFE, MEAN], ids=str)
def test_training_without_a_budget_is_that_of_one_process(
    smoothing: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRISECT_MEMORY", "1")  # nothing is kept between epochs
    timeline = Timeline.generate("evolving", vertices=50, steps=12, communities=3, features=5, smoothing=smoothing)
    options = {"layers": 2, "hidden": 4, "epochs": 3, "lr": 0.02, "precision": "float64", "dropout": 0.2}
    task = {"name": "node-classification", "split": [8, 2, 2]}
    alone, cut = (trisect.fit("cd-gcn", timeline, task, layout, **options) for layout in ("", "vertex=2,blocks=2"))
    assert cut.loss == pytest.approx(alone.loss, rel=1e-10)
    expected, own = alone.model.state_dict(), cut.model.state_dict()
    assert expected.keys() == own.keys()
    for name, value in expected.items():
        assert torch.allclose(own[name], value, rtol=1e-8, atol=1e-12), name
    other = Timeline.generate("evolving", vertices=50, steps=12, communities=3, features=5)
    assert trisect.fit("cd-gcn", other, task, "", **options).loss != pytest.approx(alone.loss, rel=1e-6)
