"""What planning and exchanges must know of a model, the data and a layout: plain numbers, the same on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

import torch

from trisect.comm.wire import encoded_bytes
from trisect.layout import Layout, Wire
from trisect.nn.base import Layer
from trisect.nn.halves import AnyLayer, Half, HalfKind, reads_neighbours, spatial_part
from trisect.nn.temporal.dynamic import DynamicLayer, SpatialTemporal
from trisect.nn.temporal.evolving import Evolving

NONE = "none"
Runs = tuple[tuple[range, ...], ...]


@dataclass(frozen=True)
class LayerFacts:
    """What planning must know of a layer.

    Attributes:
        inside_channels: how wide its rows are between the spatial and the temporal half.
        message_channels: how wide a row is that neighbours read.
        spatial: whether it reads neighbours.
        collects: whether it does no more with what it reads than sum it up.
        preaggregates: whether it can begin with the sum over its neighbours of the data's features.
        reads, writes: the shared inputs that it reads, and the one that it writes.
        concat: whether the temporal half reads the layer's input beside the convolved rows.
        state: what its state is: of each vertex, a window of frames, or a weight matrix; None without a temporal half.
        state_widths: the widths of the tensors of the state; `state_frames` of a window or a weight, how many rows a
            vertex (a window) or the state (a weight) has.
        summarises: whether the state reads a summary of all vertices (EvolveGCN-H).
        parameters: how many numbers are trained.
        multiplies: whether its message is made with parameters, so that a gradient of it is always wanted.
        across, along: the option of the exchange by which its rows cross parts, and its state runs; NONE: by none.
    """

    in_channels: int
    out_channels: int
    inside_channels: int
    message_channels: int
    spatial: bool
    collects: bool
    preaggregates: bool
    reads: tuple[str, ...] = ()
    writes: str | None = None
    concat: bool = False
    state: Literal["vertex", "window", "weight"] | None = None
    state_widths: tuple[int, ...] = ()
    state_frames: int = 1
    summarises: bool = False
    parameters: int = 0
    across: str = NONE
    along: str = NONE
    multiplies: bool = False

    @property
    def window(self) -> int:
        """Of a window state, how many frames a step reads, its own included."""
        return self.state_frames + 1 if self.state == "window" else 1

    def state_shape(self, rows: int) -> tuple[int, int]:
        """Give the shape of the matrix that is the state of so many vertices on the wire."""
        if self.state == "vertex":
            return rows, sum(self.state_widths)
        return (self.state_frames if self.state == "weight" else self.state_frames * rows), self.state_widths[0]


def facts_of(layer: AnyLayer) -> LayerFacts:
    """Read the facts of a layer, which may lie on the meta device."""
    spatial = spatial_part(layer)
    parameters = sum(p.numel() for p in layer.parameters() if p.requires_grad)
    state = layer.state_kind if isinstance(layer, DynamicLayer) else None
    widths: tuple[int, ...] = ()
    frames = 1
    if isinstance(layer, DynamicLayer):
        sample = layer.initial_state(1, dtype=torch.float32, device=torch.device("cpu"))
        widths, frames = tuple(tensor.shape[-1] for tensor in sample), sample[0].shape[0]
    inside = spatial.out_channels if spatial is not None else layer.out_channels
    message = spatial.message_channels if spatial is not None else layer.in_channels
    if isinstance(layer, Evolving):
        message = layer.message_channels
    return LayerFacts(
        in_channels=layer.in_channels,
        out_channels=layer.out_channels,
        inside_channels=inside,
        message_channels=message,
        spatial=reads_neighbours(layer),
        collects=isinstance(layer, Evolving) or (spatial is not None and spatial.collects),
        preaggregates=reads_neighbours(layer) and layer.preaggregates,
        reads=layer.reads if isinstance(layer, Layer) else (),
        writes=layer.writes if isinstance(layer, Layer) else None,
        concat=isinstance(layer, SpatialTemporal) and layer.concat,
        state=state,
        state_widths=widths,
        state_frames=frames,
        summarises=isinstance(layer, Evolving) and layer.summary is not None,
        parameters=parameters,
        multiplies=bool(getattr(spatial if spatial is not None else layer, "transform_first", False)),
    )


@dataclass(frozen=True)
class Facts:
    """How a model goes over its data: what all ranks know.

    Attributes:
        layers: of the whole model.
        head: the numbers that the head trains, or None where there is no head; `out_channels`: how wide outputs are.
        extra: the numbers that the task trains, in the last stage.
        bounds: stage s has the layers bounds[s] .. bounds[s+1]-1, the last one also the head and the output.
        halves: of the whole model.
        runs: runs[block][run], consecutive ranges of steps; a run may be empty, a block not.
        rows: of each part; `chunk_rows` where each part's chunks begin and the last ends.
        carry_chunks: vertex chunks in which a state crosses runs.
        remote: for each step, the rows that all parts together read of others.
        timeline: whether the data are a timeline, however few its steps.
        aggregated: whether the first layer finds the sum over its neighbours ready.
        fixed: whether the features are the same in all steps.
        fetches: whether the loss reads output rows of other parts.
        symmetric: whether every matrix is its own transpose: then what reads a row is what it reads.
        stale: whether chunks read history.
        dtype: of rows.
    """

    layout: Layout
    layers: tuple[LayerFacts, ...]
    head: int | None
    extra: int
    out_channels: int
    bounds: tuple[int, ...]
    halves: tuple[Half, ...]
    runs: Runs
    rows: tuple[int, ...]
    chunk_rows: tuple[tuple[int, ...], ...]
    carry_chunks: int = 1
    remote: tuple[int, ...] = (0,)
    timeline: bool = False
    aggregated: bool = False
    fixed: bool = False
    fetches: bool = False
    symmetric: bool = False
    stale: bool = False
    recompute: bool = False
    dtype: torch.dtype = torch.float32

    @property
    def blocks(self) -> int:
        """How many blocks the steps are cut into."""
        return len(self.runs)

    @property
    def parts(self) -> int:
        """How many parts the vertices are cut into."""
        return self.layout.vertex

    @property
    def vertices(self) -> int:
        """How many vertices all parts have together."""
        return sum(self.rows)

    def stage_halves(self, stage: int) -> range:
        """Give the halves of a stage."""
        return self._halves_by_stage[stage]

    @cached_property
    def _halves_by_stage(self) -> tuple[range, ...]:
        return tuple(self._find_halves(stage) for stage in range(len(self.bounds) - 1))

    def _find_halves(self, stage: int) -> range:
        last = stage == len(self.bounds) - 2
        mine = [
            k
            for k, half in enumerate(self.halves)
            if self.bounds[stage] <= half.layer and (last or half.layer < self.bounds[stage + 1])
        ]
        return range(mine[0], mine[-1] + 1)

    def stage_of(self, half: int) -> int:
        """Give the stage of a half."""
        return next(s for s in range(len(self.bounds) - 1) if half in self.stage_halves(s))

    def steps(self, block: int) -> range:
        """Give all steps of a block."""
        return range(self.runs[block][0].start, self.runs[block][-1].stop)

    def shared_across(self, boundary: int) -> tuple[str, ...]:
        """Give the shared inputs that cross the boundary before layer `boundary`: written before it, read after."""
        written = {layer.writes for layer in self.layers[:boundary] if layer.writes is not None}
        read = {name for layer in self.layers[boundary:] for name in layer.reads}
        return tuple(sorted(written & read))

    def boundary_widths(self, stage: int) -> list[int]:
        """Give the widths of what enters a stage: the rows, then each shared input."""
        widths = {layer.writes: layer.out_channels for layer in self.layers if layer.writes is not None}
        first = self.bounds[stage]
        return [self.layers[first].in_channels, *(widths[name] for name in self.shared_across(first))]

    def before(self, block: int, run: int) -> tuple[int, int] | None:
        """Give (block, run) of the run that comes before, empty ones left out."""
        return self._neighbour(block, run, -1)

    def after(self, block: int, run: int) -> tuple[int, int] | None:
        """Give (block, run) of the run that comes after, empty ones left out."""
        return self._neighbour(block, run, 1)

    def _neighbour(self, block: int, run: int, direction: int) -> tuple[int, int] | None:
        times = len(self.runs[0])
        index = block * times + run + direction
        while 0 <= index < self.blocks * times:
            if self.runs[index // times][index % times]:
                return index // times, index % times
            index += direction
        return None

    def read_before(self, block: int, run: int, owner: int, window: int) -> tuple[int, ...]:
        """Of the window-1 steps before a run, give those that run `owner` has."""
        start = self.runs[block][run].start
        if not self.runs[block][run]:
            return ()
        owned = (self.runs[b][owner] for b in range(block + 1))
        return tuple(
            step for own in owned for step in range(max(own.start, start - (window - 1)), min(own.stop, start))
        )

    def reads_trained(self, layer: int) -> bool:
        """Whether a gradient of a layer's input is wanted: something before it is trained, or another stage made it."""
        stage = next(s for s in range(len(self.bounds) - 1) if layer < self.bounds[s + 1] or s == len(self.bounds) - 2)
        return stage > 0 or any(before.parameters > 0 for before in self.layers[:layer])

    def layer_of(self, half: int) -> int:
        """Give the layer of a half."""
        return self.halves[half].layer

    def layer_at(self, half: int, kind: HalfKind) -> LayerFacts | None:
        """Give the layer of a half that is of some kind; None where the half is of another."""
        return self.layers[self.halves[half].layer] if self.halves[half].kind is kind else None

    def half_index(self, kind: HalfKind, layer: int) -> int:
        """Give the number of a half."""
        return next(k for k, half in enumerate(self.halves) if half.kind is kind and half.layer == layer)

    def wire_bytes(self, rows: int, width: int, wire: Wire | None = None) -> int:
        """Give the bytes of so many rows on the wire."""
        return encoded_bytes(rows, width, self.layout.wire if wire is None else wire, self.dtype)


def equal_shares(total: int, count: int) -> list[int]:
    """Where `count` equal shares of `total` rows or columns begin, and the last one ends."""
    return [total * k // count for k in range(count + 1)]


def offsets(sizes: Sequence[int]) -> list[int]:
    """Where each of some consecutive pieces begins, and the last one ends."""
    return [0, *accumulate(sizes)]
