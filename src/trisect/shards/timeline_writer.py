"""A timeline cut into shards on disk, so that each rank reads its own and nothing else.

One process cuts; the ranks map. Events lie sorted by step, so that a rank along time touches the windows of its own
steps alone. Where vertices are cut, each part has beside that the events into its rows, the rows that others read of
it, and its features; symmetric normalisation scales remote columns too, so their row sums are stored.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from trisect.graph.build import MatrixForm, normalise, row_sums
from trisect.graph.edge_features import both_ways
from trisect.graph.timeline.timeline import Timeline
from trisect.ops.spmm.aggregate import aggregate
from trisect.partition.partition import Partition
from trisect.partition.timeline import Runs, halo_rows
from trisect.settings.writing import to_json
from trisect.shards.arrays import create_array, save_array
from trisect.shards.timeline_files import ARRAYS, META
from trisect.views.catalogue import by_columns


def write_timeline_shards(
    timeline: Timeline,
    partition: Partition,
    runs: Runs,
    form: MatrixForm,
    folder: Path,
    *,
    aggregated: bool,
    spatial: str = "auto",
    dtype: torch.dtype = torch.float32,
    vertex_work: float = 1.0,
) -> None:
    """Write the shards of a timeline whose vertices stand in partition order already.

    Args:
        runs: of the training steps.
        form: how snapshots are prepared.
        spatial: by which exchange rows cross parts; where it sums up neighbours in a half of its own, every rank reads
            full snapshots.
        aggregated: whether Â·x of the first layer is to be kept.
        vertex_work: by which the runs were balanced (see `step_work`).
    """
    cut = partition.parts > 1 and not by_columns(spatial)
    for name in ARRAYS:
        array = getattr(timeline, name)
        if array is not None and not (cut and name in ("x", "edge_x")):
            save_array(folder / f"{name}.npy", array)
    save_array(folder / "offsets.npy", timeline.offsets)
    for name, mask in timeline.splits.items():
        save_array(folder / f"split-{name}.npy", mask)
    training = runs[-1][-1].stop
    halo = torch.zeros(training, 1, dtype=torch.int64)
    if cut:
        owner = partition.owner_of_positions(torch.arange(timeline.vertices))
        halo = halo_rows(timeline, owner, partition.parts, range(training))
        for part in range(partition.parts):
            (folder / f"part-{part}").mkdir()
        _write_events(timeline, partition, owner, folder)
        _write_features(timeline, partition, folder)
        values = torch.float64 if dtype == torch.float64 else torch.float32
        _write_prepared(timeline, partition, form, folder, aggregated, values)
    save_array(folder / "halo.npy", halo)
    meta = {
        "vertices": timeline.vertices,
        "undirected": timeline.undirected,
        "smoothing": asdict(timeline.smoothing),
        "first": timeline.first,
        "steps": timeline.steps,
        "splits": sorted(timeline.splits),
        "training": training,
        "runs": [[[run.start, run.stop] for run in block] for block in runs],
        "starts": partition.starts,
        "features": 2 if timeline.x is None else timeline.x.shape[-1],
        "fixed": timeline.x is not None and timeline.x.dim() == 2,
        "aggregated": aggregated,
        "vertex_work": vertex_work,
        "spatial": spatial,
        "edge_channels": timeline.edge_channels,
        "merge": timeline.merge,
        "relations": timeline.relations,
    }
    (folder / META).write_text(to_json(meta))


def _write_events(timeline: Timeline, partition: Partition, owner: Tensor, folder: Path) -> None:
    source, target, event = timeline.src, timeline.dst, torch.arange(timeline.src.numel())
    every = timeline.offsets.numel() - 1
    if timeline.undirected:
        # events stay in their order, by which the features of the last one are chosen
        source, target, event = both_ways(source, target)
    step = torch.repeat_interleave(torch.arange(every), timeline.offsets.diff())[event]
    holder, reader = owner[source.long()], owner[target.long()]
    for part in range(partition.parts):
        part_folder, first = folder / f"part-{part}", partition.part(part)[0]
        mine = torch.nonzero(reader == part)[:, 0]
        save_array(part_folder / "src.npy", _columns(source[mine], *partition.part(part)))
        save_array(part_folder / "dst.npy", target[mine] - first)
        for name in ("weight", "edge_x"):
            array = getattr(timeline, name)
            if array is not None:
                save_array(part_folder / f"{name}.npy", array[event[mine]])
        save_array(part_folder / "offsets.npy", _offsets(step[mine], every))
        read = torch.nonzero((holder == part) & (reader != part))[:, 0]
        # each row once a step and reader, however many events read it
        codes = torch.unique((step[read] * partition.parts + reader[read]) * timeline.vertices + source[read].long())
        which = codes // timeline.vertices
        save_array(part_folder / "read-row.npy", (codes % timeline.vertices - first).to(torch.int32))
        save_array(part_folder / "read-part.npy", (which % partition.parts).to(torch.int16))
        save_array(part_folder / "read-offsets.npy", _offsets(which // partition.parts, every))


def _columns(position: Tensor, first: int, last: int) -> Tensor:
    """Number positions as columns of a part: its own rows first, then all other positions in their order."""
    own = (position >= first) & (position < last)
    before = position < first
    return torch.where(own, position - first, torch.where(before, position + (last - first), position))


def _offsets(step: Tensor, every: int) -> Tensor:
    offsets = torch.zeros(every + 1, dtype=torch.int64)
    offsets[1:] = torch.cumsum(torch.bincount(step, minlength=every), 0)
    return offsets


def _write_features(timeline: Timeline, partition: Partition, folder: Path) -> None:
    bounds = [slice(*partition.part(part)) for part in range(partition.parts)]
    if timeline.x is not None and timeline.x.dim() == 2:
        for part, rows in enumerate(bounds):
            save_array(folder / f"part-{part}" / "x.npy", timeline.x[rows])
        return
    targets = _by_step(folder, "x", timeline.steps, bounds, 2 if timeline.x is None else timeline.x.shape[2])
    for step in range(timeline.steps):
        x = timeline.features_at(step)
        for target, rows in zip(targets, bounds, strict=True):
            target[step] = x[rows]


def _write_prepared(
    timeline: Timeline,
    partition: Partition,
    form: MatrixForm,
    folder: Path,
    aggregated: bool,
    dtype: torch.dtype,
) -> None:
    """Row sums for symmetric normalisation, and Â·x, both of whole snapshots, one after the other."""
    kind = form.normalisation
    if kind != "symmetric" and not aggregated:
        return
    bounds = [slice(*partition.part(part)) for part in range(partition.parts)]
    sums, targets = None, None
    if kind == "symmetric":
        sums = create_array(folder / "sums.npy", (timeline.steps, timeline.vertices), dtype)
    for step in range(timeline.steps):
        matrix = timeline.snapshot(step, "none", self_loops=form.self_loops, dtype=dtype)
        prepared = normalise(matrix, kind, False)
        if sums is not None:
            sums[step] = row_sums(matrix).to(dtype)
        if aggregated:
            frame = aggregate(timeline.features_at(step).to(dtype), prepared)
            targets = targets or _by_step(folder, "aggregated", timeline.steps, bounds, frame.shape[1], dtype)
            for target, rows in zip(targets, bounds, strict=True):
                target[step] = frame[rows]


def _by_step(
    folder: Path, name: str, steps: int, bounds: list[slice], width: int, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    return [
        create_array(folder / f"part-{part}" / f"{name}.npy", (steps, rows.stop - rows.start, width), dtype)
        for part, rows in enumerate(bounds)
    ]
