from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trisect.comm.ledger import Ledger
from trisect.graph.timeline.timeline import Timeline
from trisect.nn.models.dynamic_models import Spatial, recurrent
from trisect.nn.temporal.dynamic import DynamicModel
from trisect.partition.timeline import cut_timeline, deal, step_work
from trisect.shards.part_blocks import PartBlocks
from trisect.shards.timeline_files import (
    TimelineCut,
    is_timeline_cut,
    read_timeline_cut,
    read_timeline_part,
)
from trisect.shards.timeline_part import TimelinePart
from trisect.shards.timeline_writer import write_timeline_shards
from trisect.shards.whole_timeline import WholeTimeline

VERTICES, STEPS = 30, 6


def make(seed: int = 0, **more: Any) -> Timeline:
    generator = torch.Generator().manual_seed(seed)
    counts = torch.tensor([20, 0, 35, 12, 40, 7])
    total = int(counts.sum())
    ends = torch.randint(0, VERTICES, (2, total), generator=generator)
    return Timeline.from_arrays(
        ends[0], ends[1], torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]), vertices=VERTICES, **more
    )


def model_for(features: int, spatial: Spatial = "gcn") -> DynamicModel:
    return recurrent(features, 3, spatial=spatial, layers=2, hidden=4).model(0)


def written(
    timeline: Timeline, folder: Path, model: DynamicModel, parts: int, *, aggregated: bool = True
) -> tuple[Timeline, TimelineCut]:
    partition = cut_timeline(timeline, parts)
    timeline = timeline.reordered(partition.order)
    runs = deal(step_work(timeline)[:4], 2, 2)
    write_timeline_shards(timeline, partition, runs, model, folder, aggregated=aggregated, dtype=torch.float64)
    assert is_timeline_cut(folder)
    return timeline, read_timeline_cut(folder)


def part_of(cut: TimelineCut, part_index: int, model: DynamicModel, budget: int = 1 << 20) -> TimelinePart:
    part = read_timeline_part(cut, part_index, model, torch.float64, budget, Ledger())
    assert isinstance(part, TimelinePart)
    return part


def whole_of(cut: TimelineCut, model: DynamicModel, budget: int = 1 << 20) -> WholeTimeline:
    part = read_timeline_part(cut, 0, model, torch.float64, budget, Ledger())
    assert isinstance(part, WholeTimeline)
    return part


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"undirected": True, "smoothing": {"kind": "edge-life", "length": 3}},
        {"smoothing": {"kind": "m-transform", "length": 2}, "weighted": True},
    ],
    ids=["plain", "undirected", "weighted"],
)
@pytest.mark.parametrize("spatial", ["gcn", "sage", "gin"])
def test_blocks_are_rows_of_the_whole_snapshots(
    tmp_path: Path, parts: int, options: dict[str, Any], spatial: Spatial
) -> None:
    options = dict(options)
    if options.pop("weighted", False):
        options["weight"] = torch.rand(114, generator=torch.Generator().manual_seed(3)) + 0.1
    model = model_for(2, spatial)
    timeline, cut = written(make(**options), tmp_path, model, parts, aggregated=spatial != "gin")
    found = [part_of(cut, part_index, model) for part_index in range(parts)]
    steps = range(STEPS)
    for step in steps:
        whole = timeline.snapshot(step, model.normalisation, self_loops=model.self_loops, dtype=torch.float64).dense()
        for part_index, part in enumerate(found):
            rows = slice(cut.starts[part_index], cut.starts[part_index + 1])
            block = part.snapshots(steps)[step]
            positions = _halo_positions(cut, found, part_index, step)
            columns = torch.cat([torch.arange(rows.start, rows.stop), positions])
            assert torch.allclose(block.dense(), whole[rows][:, columns], rtol=1e-7, atol=0)
            hidden = whole[rows].clone()
            hidden[:, columns] = 0
            assert not hidden.any()  # nothing that a row reads is left out
            x = timeline.features_at(step).double()
            assert part.features(steps)[step].equal(x[rows])
            known = part.aggregated(steps)
            if known is not None:
                assert torch.allclose(known[step], (whole @ x)[rows], rtol=1e-6)
    assert int(cut.halo.sum()) == sum(part.part_graph(step).halo.numel() for part in found for step in range(4)) > 0


def _halo_positions(cut: TimelineCut, parts: list[TimelinePart], part_index: int, step: int) -> Tensor:
    """From what the others would send, which must be what the part expects."""
    mine = parts[part_index].part_graph(step)
    pieces = []
    for other, part in enumerate(parts):
        [sent], [(low, high)] = part.part_graph(step).send[part_index], mine.receive[other]
        assert sent.numel() == high - low
        pieces.append(sent + cut.starts[other])
    positions = torch.cat(pieces)
    assert mine.halo.equal(positions)
    assert cut.timeline.order is not None
    columns = parts[part_index].column_ids(step)
    assert columns is not None
    own = torch.arange(cut.starts[part_index], cut.starts[part_index + 1])
    assert columns.equal(cut.timeline.order[torch.cat([own, positions])])
    return positions


def test_a_wrong_row_sum_shows(tmp_path: Path) -> None:
    model = model_for(2)
    _, cut = written(make(), tmp_path, model, 2)
    part = part_of(cut, 0, model, budget=0)
    before = part.snapshots(range(1))[0].dense()
    source = part.blocks.source
    assert isinstance(source, PartBlocks)
    assert source.sums is not None
    source.sums[0] += 1
    assert not torch.allclose(part.snapshots(range(1))[0].dense(), before)


def test_a_rank_along_time_maps_the_whole_timeline(tmp_path: Path) -> None:
    model = model_for(2)
    x = torch.rand(STEPS, VERTICES, 2)
    timeline, cut = written(make(x=x, splits=None), tmp_path, model, 1)
    part = whole_of(cut, model)
    assert part.rows == VERTICES
    assert cut.runs == deal(step_work(timeline)[:4], 2, 2)
    assert cut.timeline.src.equal(timeline.src)
    run = cut.runs[0][1]
    assert part.features(run).equal(x[run.start : run.stop].double())
    for place, step in enumerate(run):
        whole = timeline.snapshot(step, "symmetric", self_loops=True, dtype=torch.float64)
        assert part.snapshots(run)[place].dense().equal(whole.dense())
    first = part.aggregated(run)
    assert first is not None
    again = part.aggregated(run)
    assert again is not None
    assert again.data_ptr() == first.data_ptr()
    inside = part.aggregated(run[1:])
    assert inside is not None
    assert inside.equal(first[1:])
    poor = whole_of(cut, model, budget=0)
    made = poor.aggregated(run)
    assert made is not None
    assert made.equal(first)
    other = poor.aggregated(run)
    assert other is not None
    assert other.data_ptr() != made.data_ptr()
