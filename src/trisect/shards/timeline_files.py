"""What all ranks know of a timeline that `timeline_writer` has cut into shards on disk, and the shard of one rank."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trisect.comm.ledger import Ledger
from trisect.graph.build import MatrixForm
from trisect.graph.timeline.smoothing import Smoothing
from trisect.graph.timeline.timeline import Timeline
from trisect.partition.partition import imbalance
from trisect.partition.timeline import Runs
from trisect.shards.arrays import load_array
from trisect.shards.kept_runs import KeptRuns
from trisect.shards.part_blocks import block_stream
from trisect.shards.part_events import PartEvents, PartReads
from trisect.shards.shard import Shard
from trisect.shards.timeline_part import TimelinePart
from trisect.shards.whole_timeline import whole_timeline
from trisect.views.catalogue import by_columns

_HOST = torch.device("cpu")
META = "timeline.json"
ARRAYS = ("src", "dst", "weight", "x", "y", "edge_x", "edge_y", "order", "y_weight")


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
        spatial: by which exchange rows cross parts.
        edge_channels: how many features an edge has that layers read.
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
    spatial: str = "auto"
    edge_channels: int = 0

    @property
    def relations(self) -> tuple[str, ...]:
        """Give what the relations of events are called."""
        return self.timeline.relations

    @property
    def remote(self) -> list[int]:
        """For each training step, the rows that all parts together read of others."""
        counts: list[int] = self.halo.sum(1).tolist()
        return counts

    @property
    def quality(self) -> dict[str, Any]:
        """Give how good the cut is, as the summary shows it: the runs of steps, and the parts where there are several.

        `volume` is that of all training steps; edges differ from step to step and are not measured.
        """
        sizes = torch.tensor(self.starts).diff()
        parts: dict[str, Any] | None = None
        if sizes.numel() > 1:
            parts = {
                "rows": sizes.tolist(),
                "volume": int(self.halo.sum()),
                "vertex_imbalance": imbalance(sizes.double()),
                "edge_imbalance": None,
                "cut": None,
            }
        runs = [[[run.start, run.stop] for run in block] for block in self.runs]
        return {"parts": parts, "chunks": None, "runs": runs}


def is_timeline_cut(folder: Path) -> bool:
    """Whether the folder holds shards of a timeline."""
    return (folder / META).exists()


def read_timeline_cut(folder: Path) -> TimelineCut:
    """Read what all ranks know of a cut timeline."""
    meta = json.loads((folder / META).read_text())
    arrays = {name: _mapped(folder / f"{name}.npy") for name in ARRAYS}
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
        merge=meta["merge"],
        relations=tuple(meta["relations"]),
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
        spatial=meta["spatial"],
        edge_channels=meta["edge_channels"],
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
    if len(cut.starts) == 2 or by_columns(cut.spatial):
        rows = slice(cut.starts[part_index], cut.starts[part_index + 1])
        return whole_timeline(
            cut.timeline, form, dtype, budget, ledger, aggregated=cut.aggregated, rows=rows, device=device
        )
    folder = cut.folder / f"part-{part_index}"
    arrays = {path.stem: load_array(path) for path in folder.glob("*.npy")}
    events = PartEvents(
        arrays["src"],
        arrays["dst"],
        arrays.get("weight"),
        arrays["offsets"],
        part_index=part_index,
        starts=cut.starts,
        smoothing=cut.timeline.smoothing,
        first=cut.timeline.first,
        edge_x=arrays.get("edge_x"),
        merge=cut.timeline.merge,
    )
    order = torch.arange(cut.starts[-1]) if cut.timeline.order is None else cut.timeline.order
    sums = _mapped(cut.folder / "sums.npy")
    return TimelinePart(
        rows=events.rows,
        vertices=order[events.own].to(device),
        order=order,
        events=events,
        reads=PartReads(arrays["read-row"], arrays["read-part"], arrays["read-offsets"]),
        blocks=block_stream(events, cut.timeline.steps, form, sums, dtype, ledger, keep_bytes=budget, device=device),
        x=arrays["x"],
        aggregated_x=arrays.get("aggregated") if cut.aggregated else None,
        dtype=dtype,
        symmetric=is_symmetric(cut.timeline, form),
        device=device,
        kept=KeptRuns(budget),
        relations=cut.relations,
    )


def is_symmetric(timeline: Timeline, form: MatrixForm) -> bool:
    """Say whether every snapshot's matrix is its own transpose."""
    return timeline.undirected and form.normalisation != "row"


def _mapped(path: Path) -> Tensor | None:
    return load_array(path) if path.exists() else None
