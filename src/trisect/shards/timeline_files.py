"""A timeline cut into shards on disk, so that each rank reads its own and nothing else.

One process cuts; the ranks map. Events lie sorted by step, so that a rank along time touches the windows of its own
steps alone. Where vertices are cut, each part has beside that the events into its rows, the rows that others read of
it, and its features; symmetric normalisation scales remote columns too, so their row sums are stored.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trisect import ops
from trisect.comm.ledger import Ledger
from trisect.graph.build import MatrixForm, normalise, row_sums
from trisect.graph.smoothing import Smoothing
from trisect.graph.timeline import Timeline
from trisect.partition.partition import Partition
from trisect.partition.timeline import Runs, halo_rows
from trisect.shards.arrays import create_array, load_array, save_array
from trisect.shards.shard import Shard
from trisect.shards.stream import SnapshotStream
from trisect.shards.timeline_parts import Events, KeptRuns, Reads, TimelinePart, WholeTimeline

_HOST = torch.device("cpu")
_META = "timeline.json"
_EVENTS = ("src", "dst", "weight", "x", "y", "edge_y", "order")


@dataclass(frozen=True, eq=False)
class TimelineCut:
    """What all ranks know of a cut timeline.

    Attributes:
        timeline: mapped, in partition order; without features where vertices are cut.
        training: how many steps are trained on.
        runs: runs[block][run_index] of the training steps.
        starts: part w has the positions starts[w] .. starts[w+1]-1.
        features: their number.
        fixed: whether they are the same in all steps.
        aggregated: whether Â·x of the first layer is kept.
        halo: int64 [training, parts], the rows of others that each part reads at each step.
        vertex_work: what a vertex costs in a step, in events; the runs were balanced by it.
        by_columns: whether rows are redistributed by columns.
    """

    folder: Path
    timeline: Timeline
    training: int
    runs: Runs
    starts: tuple[int, ...]
    features: int
    fixed: bool
    aggregated: bool
    halo: Tensor
    vertex_work: float = 1.0
    by_columns: bool = False

    @property
    def remote(self) -> list[int]:
        """For each training step, the rows that all parts together read of others."""
        counts: list[int] = self.halo.sum(1).tolist()
        return counts

    @property
    def quality(self) -> dict[str, Any]:
        """Of runs and parts, as the summary shows it."""
        sizes = torch.tensor(self.starts).diff()
        found: dict[str, Any] = {"runs": [[[run.start, run.stop] for run in block] for block in self.runs]}
        if sizes.numel() > 1:
            found["parts"] = {"rows": sizes.tolist(), "halo_rows": int(self.halo.sum())}
        return found


def is_timeline_cut(folder: Path) -> bool:
    """Whether the folder holds shards of a timeline."""
    return (folder / _META).exists()


def write_timeline_shards(
    timeline: Timeline,
    partition: Partition,
    runs: Runs,
    form: MatrixForm,
    folder: Path,
    *,
    aggregated: bool,
    by_columns: bool = False,
    dtype: torch.dtype = torch.float32,
    vertex_work: float = 1.0,
) -> None:
    """Write the shards of a timeline whose vertices stand in partition order already.

    Args:
        runs: of the training steps.
        form: how snapshots are prepared.
        by_columns: whether rows are redistributed by columns: then every rank reads whole snapshots.
        aggregated: whether Â·x of the first layer is to be kept.
        vertex_work: by which the runs were balanced (see `step_work`).
    """
    cut = partition.parts > 1 and not by_columns
    for name in _EVENTS:
        array = getattr(timeline, name)
        if array is not None and not (cut and name == "x"):
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
        "by_columns": by_columns,
    }
    (folder / _META).write_text(json.dumps(meta))


def _write_events(timeline: Timeline, partition: Partition, owner: Tensor, folder: Path) -> None:
    source, target, weight = timeline.src, timeline.dst, timeline.weight
    every = timeline.offsets.numel() - 1
    step = torch.repeat_interleave(torch.arange(every), timeline.offsets.diff())
    if timeline.undirected:
        back = torch.nonzero(source != target)[:, 0]
        source, target = torch.cat([source, target[back]]), torch.cat([target, source[back]])
        weight = None if weight is None else torch.cat([weight, weight[back]])
        step = torch.cat([step, step[back]])
        order = torch.argsort(step, stable=True)
        source, target, step = source[order], target[order], step[order]
        weight = None if weight is None else weight[order]
    holder, reader = owner[source.long()], owner[target.long()]
    for part in range(partition.parts):
        place, first = folder / f"part-{part}", partition.part(part)[0]
        mine = torch.nonzero(reader == part)[:, 0]
        save_array(place / "src.npy", source[mine])
        save_array(place / "dst.npy", target[mine] - first)
        if weight is not None:
            save_array(place / "weight.npy", weight[mine])
        save_array(place / "offsets.npy", _offsets(step[mine], every))
        read = torch.nonzero((holder == part) & (reader != part))[:, 0]
        # each row once a step and reader, however many events read it
        codes = torch.unique((step[read] * partition.parts + reader[read]) * timeline.vertices + source[read].long())
        which = codes // timeline.vertices
        save_array(place / "read-row.npy", (codes % timeline.vertices - first).to(torch.int32))
        save_array(place / "read-part.npy", (which % partition.parts).to(torch.int16))
        save_array(place / "read-offsets.npy", _offsets(which // partition.parts, every))


def _offsets(step: Tensor, every: int) -> Tensor:
    found = torch.zeros(every + 1, dtype=torch.int64)
    found[1:] = torch.cumsum(torch.bincount(step, minlength=every), 0)
    return found


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
            found = ops.aggregate(timeline.features_at(step).to(dtype), prepared)
            targets = targets or _by_step(folder, "aggregated", timeline.steps, bounds, found.shape[1], dtype)
            for target, rows in zip(targets, bounds, strict=True):
                target[step] = found[rows]


def _by_step(
    folder: Path, name: str, steps: int, bounds: list[slice], width: int, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    return [
        create_array(folder / f"part-{part}" / f"{name}.npy", (steps, rows.stop - rows.start, width), dtype)
        for part, rows in enumerate(bounds)
    ]


def read_timeline_cut(folder: Path) -> TimelineCut:
    """What all ranks know."""
    meta = json.loads((folder / _META).read_text())
    arrays = {name: _mapped(folder / f"{name}.npy") for name in _EVENTS}
    src, dst = arrays.pop("src"), arrays.pop("dst")
    if src is None or dst is None:
        raise FileNotFoundError(folder / "src.npy")
    timeline = Timeline(
        vertices=meta["vertices"],
        src=src,
        dst=dst,
        offsets=load_array(folder / "offsets.npy"),
        undirected=meta["undirected"],
        smoothing=Smoothing(**meta["smoothing"]),
        splits={name: load_array(folder / f"split-{name}.npy") for name in meta["splits"]},
        first=meta["first"],
        steps=meta["steps"],
        **arrays,  # type: ignore[arg-type]
    )
    return TimelineCut(
        folder=folder,
        timeline=timeline,
        training=meta["training"],
        runs=tuple(tuple(range(*run) for run in block) for block in meta["runs"]),
        starts=tuple(meta["starts"]),
        features=meta["features"],
        fixed=meta["fixed"],
        aggregated=meta["aggregated"],
        halo=load_array(folder / "halo.npy"),
        vertex_work=meta["vertex_work"],
        by_columns=meta["by_columns"],
    )


def read_timeline_part(
    cut: TimelineCut,
    part_index: int,
    form: MatrixForm,
    dtype: torch.dtype,
    budget: int,
    ledger: Ledger,
    device: torch.device = _HOST,
) -> Shard:
    """Give the shard of one part; nothing of it is read yet.

    Args:
        form: how snapshots are prepared.
        budget: bytes that may be kept between epochs, of snapshots and as much again of features.
        ledger: counts the snapshots that are brought to the device.
        device: where they are read.
    """
    if len(cut.starts) == 2 or cut.by_columns:
        rows = slice(cut.starts[part_index], cut.starts[part_index + 1])
        return whole_timeline(
            cut.timeline, form, dtype, budget, ledger, aggregated=cut.aggregated, rows=rows, device=device
        )
    folder = cut.folder / f"part-{part_index}"
    first, last = cut.starts[part_index : part_index + 2]
    order = torch.arange(cut.starts[-1]) if cut.timeline.order is None else cut.timeline.order
    arrays = {path.stem: load_array(path) for path in folder.glob("*.npy")}
    return TimelinePart(
        rows=last - first,
        vertices=order[first:last].to(device),
        part_index=part_index,
        starts=cut.starts,
        order=order,
        events=Events(arrays["src"], arrays["dst"], arrays.get("weight"), arrays["offsets"]),
        reads=Reads(arrays["read-row"], arrays["read-part"], arrays["read-offsets"]),
        smoothing=cut.timeline.smoothing,
        normalisation=form.normalisation,
        self_loops=form.self_loops,
        x=arrays["x"],
        known=arrays.get("aggregated") if cut.aggregated else None,
        sums=_mapped(cut.folder / "sums.npy"),
        dtype=dtype,
        ledger=ledger,
        first=cut.timeline.first,
        budget=budget,
        symmetric=is_symmetric(cut.timeline, form),
        device=device,
        kept=KeptRuns(budget),
    )


def is_symmetric(timeline: Timeline, form: MatrixForm) -> bool:
    """Say whether every snapshot's matrix is its own transpose."""
    return timeline.undirected and form.normalisation != "row"


def whole_timeline(
    timeline: Timeline,
    form: MatrixForm,
    dtype: torch.dtype,
    budget: int,
    ledger: Ledger,
    *,
    aggregated: bool,
    rows: slice | None = None,
    device: torch.device | None = None,
) -> WholeTimeline:
    """Give all vertices of a timeline, in memory or mapped; or an interval of the rows, with whole snapshots."""
    values = torch.float64 if dtype == torch.float64 else torch.float32
    device = timeline.device if device is None else device
    matrices = SnapshotStream(
        timeline,
        form.normalisation,
        self_loops=form.self_loops,
        dtype=values,
        device=device,
        ledger=ledger,
        keep_bytes=budget,
    )
    own = slice(0, timeline.vertices) if rows is None else rows
    vertices = timeline.order
    if own.stop - own.start < timeline.vertices:
        vertices = torch.arange(own.start, own.stop) if vertices is None else vertices[own]
    return WholeTimeline(
        rows=own.stop - own.start,
        vertices=None if vertices is None else vertices.to(device),
        timeline=timeline,
        matrices=matrices,
        dtype=dtype,
        aggregates=aggregated,
        kept=KeptRuns(budget),
        first_row=own.start,
        device=device,
    )


def _mapped(path: Path) -> Tensor | None:
    return load_array(path) if path.exists() else None
