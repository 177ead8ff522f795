"""`Plan`: how a model goes over its data under a layout: plain numbers, the same on all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from trisect.comm.wire import encoded_bytes
from trisect.layout import Layout, Wire
from trisect.views.timecut import TimeCut
from trisect.views.trace import Call, LayerTrace

Runs = tuple[tuple[range, ...], ...]


@dataclass(frozen=True)
class Plan:
    """Which rank has which layers, rows and steps, and by which exchange each verb moves rows.

    Attributes:
        layers: of the whole model.
        head: the numbers that the head trains, or None where there is no head; `out_channels`: how wide outputs are.
        extra: the numbers that the task trains, in the last stage.
        bounds: stage s has the layers bounds[s] .. bounds[s+1]-1, the last one also the head.
        runs: runs[block][run], consecutive ranges of steps; a run may be empty, a block not.
        rows: of each part; `chunk_rows` where each part's chunks begin and the last ends.
        carry_chunks: chunks of rows in which a state crosses runs.
        remote: for each step, the rows that all parts together read of others.
        timeline: whether the data are a timeline, however few its steps.
        aggregated: whether the first layer's sum over neighbours is kept.
        fixed: whether the features are the same in all steps.
        fetches: whether the loss reads output rows of other parts.
        symmetric: whether every matrix is its own transpose: then gradients are pulled.
        stale: whether chunks read history.
        batches: how many steps of chunks an epoch has; 1: each epoch is a step.
        recompute: whether layers are computed again group by group.
        stop: how many layers, the head included, a pass goes through; None: all.
        dtype: of rows.
    """

    layout: Layout
    layers: tuple[LayerTrace, ...]
    head: int | None
    extra: int
    out_channels: int
    bounds: tuple[int, ...]
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
    batches: int = 1
    recompute: bool = False
    stop: int | None = None
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

    @property
    def chunks(self) -> int:
        """How many chunks a pass goes through one by one: all of those that read history or are steps, else one."""
        return self.layout.chunks if (self.stale or self.batches > 1) and not self.timeline else 1

    @property
    def updates(self) -> int:
        """How many steps of chunks an epoch has."""
        return min(self.batches, self.layout.chunks)

    @property
    def all_steps(self) -> range:
        """All steps of the pass."""
        return range(self.runs[0][0].start, self.runs[-1][-1].stop)

    def steps(self, block: int) -> range:
        """Return all steps of a block."""
        return range(self.runs[block][0].start, self.runs[block][-1].stop)

    def cut(self, run: int = 0) -> TimeCut:
        """Return the steps as a rank of that run has them."""
        return TimeCut(self.runs, run, self.carry_chunks)

    def calls(self, layer: int, *, trains: bool = True) -> tuple[Call, ...]:
        """Return the verbs that a layer asks for, in training or in evaluation; a head asks for none."""
        if layer >= len(self.layers):
            return ()
        trace = self.layers[layer]
        calls = trace.first if layer == 0 and self.aggregated and trace.first is not None else trace.calls
        return calls if trains else tuple(call for call in calls if not call.trains)

    def reads(self, layer: int) -> list[Call]:
        """Return the verbs of a layer that read rows of neighbours which are not kept."""
        return [call for call in self.calls(layer) if call.verb in ("aggregate", "gather") and not call.kept]

    @property
    def across(self) -> str:
        """The option of the exchange by which rows cross parts; "none": none cross."""
        return next((layer.across for layer in self.layers if layer.across != "none"), "none")

    def numbers(self, stage: int) -> list[int]:
        """Return the layers of a stage that a pass goes through; the head is the one after the last."""
        count, last = len(self.layers), stage == len(self.bounds) - 2
        every = [
            *range(self.bounds[stage], self.bounds[stage + 1]),
            *([count] if last and self.head is not None else []),
        ]
        return [number for number in every if self.stop is None or number < self.stop]

    def groups(self, stage: int) -> tuple[tuple[int, ...], ...]:
        """Return the layers of a stage in groups of about √layers, computed again one at a time; else in one group."""
        numbers = self.numbers(stage)
        head = numbers[-1:] if numbers and numbers[-1] == len(self.layers) else []
        own = numbers[: len(numbers) - len(head)]
        size = max(1, round(math.sqrt(len(own))) if self.recompute else len(own))
        groups = [tuple(own[first : first + size]) for first in range(0, len(own), size)] or [()]
        return (*groups[:-1], (*groups[-1], *head))

    def last_recurrent(self, stage: int) -> tuple[int, int] | None:
        """Return the last use of `recur` in a stage, as (layer, number); None: there is none."""
        found = None
        for number in self.numbers(stage):
            uses = sum(call.verb == "recur" for call in self.calls(number))
            found = (number, uses) if uses else found
        return found

    def shared_across(self, boundary: int) -> tuple[str, ...]:
        """Return the shared inputs that cross the boundary before layer `boundary`: written before it, read after."""
        written = {layer.writes for layer in self.layers[:boundary] if layer.writes is not None}
        read = {name for layer in self.layers[boundary:] for name in layer.reads}
        return tuple(sorted(written & read))

    def boundary_widths(self, stage: int) -> list[int]:
        """Return the widths of what enters a stage: the rows, then each shared input."""
        widths = {layer.writes: layer.out_channels for layer in self.layers if layer.writes is not None}
        first = self.bounds[stage]
        return [self.layers[first].in_channels, *(widths[name] for name in self.shared_across(first))]

    def reads_trained(self, layer: int) -> bool:
        """Whether a gradient of a layer's input is wanted: something before it is trained, or another stage made it."""
        return any(0 < bound <= layer for bound in self.bounds[:-1]) or any(
            before.parameters > 0 for before in self.layers[:layer]
        )

    @property
    def stage_bytes(self) -> list[int]:
        """Bytes of the parameters of each stage; head and decoder belong to the last."""
        counts = [
            sum(layer.parameters for layer in self.layers[first:last])
            for first, last in zip(self.bounds, self.bounds[1:], strict=False)
        ]
        counts[-1] += (self.head or 0) + self.extra
        return [count * self.dtype.itemsize for count in counts]

    def statistics_bytes(self, stage: int) -> int:
        """Return the bytes of a stage's running statistics, which runs of steps add up with the gradients."""
        tracked = sum(layer.tracked for layer in self.layers[self.bounds[stage] : self.bounds[stage + 1]])
        return tracked * self.dtype.itemsize if self.layout.time > 1 else 0

    def wire_bytes(self, rows: int, width: int, wire: Wire | None = None) -> int:
        """Return the bytes of so many rows on the wire."""
        return encoded_bytes(rows, width, self.layout.wire if wire is None else wire, self.dtype)

    # Other passes of the same model

    def hidden(self, *, dynamic: bool) -> Plan:
        """Return the plan without what turns embeddings into outputs: a static model's last layer, or the head."""
        last = len(self.layers) - (0 if dynamic else 1)
        return replace(self, stop=last) if last else self

    def forward_only(self, runs: Runs | None = None) -> Plan:
        """Return the plan of an exact pass forward: all chunks at once, nothing fetched, nothing computed again."""
        return replace(
            self if self.timeline else self.without_chunks(),
            runs=self.runs if runs is None else runs,
            fetches=False,
            recompute=False,
            stale=False,
        )

    def without_chunks(self) -> Plan:
        """Return the plan of an exact epoch: all chunks at once."""
        return replace(self, layout=replace(self.layout, chunks=1))


def runs_until(runs: Runs, steps: int, stop: int) -> Runs:
    """Return the runs of range(stop), for evaluation: those of training, then blocks of about the same length.

    Args:
        runs: of the `steps` training steps.
    """
    times = len(runs[0])
    cut = [tuple(range(min(run.start, stop), min(run.stop, stop)) for run in block) for block in runs]
    length = max(times, -(-steps // len(runs)))
    for start in range(steps, stop, length):
        end = min(start + length, stop)
        bounds = [start + (end - start) * m // times for m in range(times + 1)]
        cut.append(tuple(range(bounds[m], bounds[m + 1]) for m in range(times)))
    return tuple(block for block in cut if any(block))


def runs_from(runs: Runs, start: int) -> Runs:
    """Return the runs without the steps before `start`."""
    cut = [tuple(range(max(run.start, start), max(run.stop, start)) for run in block) for block in runs]
    return tuple(block for block in cut if any(block))


def runs_split(runs: Runs, at: int) -> Runs:
    """Return the runs with a block that begins at the step `at`."""
    cut = [
        tuple(range(max(run.start, low), min(run.stop, high)) for run in block)
        for block in runs
        for low, high in ((0, at), (at, max(at, *(run.stop for run in block))))
    ]
    return tuple(block for block in cut if any(block))


def equal_chunks(rows: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the bounds of one chunk for each part."""
    return tuple((0, count) for count in rows)
