"""The memory of a rank, by what takes it, as the engine keeps it.

Activations are those that autograd saves (`plan.probe` lists them layer by layer); the rest are sizes of arrays. The
peak is reached when backward begins: all activations of a block are there, and the first gradients beside them. What
comes before (reading, sorting, preparing the matrix) has its own peak, and the larger of the two counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from torch import nn

from trisect.errors import LayoutError
from trisect.ops._products import sums_bytes
from trisect.ops.memory import HUGE, SMALLEST
from trisect.ops.spmm.grouping import worthwhile
from trisect.partition.halo import features_at_once
from trisect.plan.cluster import Device
from trisect.plan.probe import Passing, Saved, SavedTensor, saved_by
from trisect.plan.workload import Workload
from trisect.views.plan import Plan
from trisect.views.trace import LayerTrace, key_of, trace_of

# bytes of an entry of the matrix: a column and a value; of a row: where its entries begin and end
_ENTRY, _ROW = 8, 16
# of an entry of a relation's matrix and of its transpose, and of a row of both
_RELATED, _RELATED_ROW = 24, 32
# buffers of a layer whose rows are turned into columns and back
_TURNED = 3.0
# buffers of rows that are dealt to other ranks along time
_DEALT = 3.0
# entries of a row on which layers are tried
_MOST_ENTRIES = 64
# bytes of the weights of a layer up to which it is tried
_LARGEST = 128 << 20
# of a layer that could not be run to see what it keeps, in units of its output
_UNKNOWN = 3.0
# what torch keeps of the C library's memory takes more than its bytes: gaps between tensors of different lives
_SCATTERED = 1.5
# of a pair: its two ends; its code besides, where it exists; what autograd keeps of ends and score
_PAIR, _PAIR_STORED, _PAIR_INDEX = 16.0, 24.0, 32.0
# what a loss makes of the rows of a step on its way back: both halves of a pair's first product, and their gradients
_PAIR_ROWS = 4.0
# bytes that ranking takes for a pair: codes, labels, scores as double, their order and sums along it
_RANKED = 180.0
# buffers of messages that may wait for their reader
_SLOTS = 2


@dataclass(frozen=True)
class Memory:
    """The bytes of one rank at its peak."""

    libraries: float = 0.0
    parameters: float = 0.0
    optimiser: float = 0.0
    features: float = 0.0
    adjacency: float = 0.0
    activations: float = 0.0
    gradients: float = 0.0
    history: float = 0.0
    halo: float = 0.0
    carries: float = 0.0
    snapshots: float = 0.0
    messages: float = 0.0
    labels: float = 0.0
    pairs: float = 0.0
    evaluation: float = 0.0
    reading: float = 0.0

    @property
    def total(self) -> float:
        """Give the bytes of all components together."""
        return float(sum(getattr(self, field.name) for field in fields(self)))

    @property
    def of_data(self) -> float:
        """Give the bytes that are there whatever is computed again: all but what a pass takes."""
        fixed = (self.libraries, self.parameters, self.optimiser, self.features, self.adjacency, self.snapshots)
        return sum(fixed) + self.labels + self.reading

    def largest(self, count: int = 3) -> list[tuple[str, float]]:
        """Give the components that take most, the largest first; libraries take what they take."""
        sizes = [(field.name, float(getattr(self, field.name))) for field in fields(self) if field.name != "libraries"]
        return sorted((pair for pair in sizes if pair[1] > 0), key=lambda pair: -pair[1])[:count]

    def plain(self) -> dict[str, int]:
        """Give the components as plain numbers, with their sum."""
        return {field.name: round(getattr(self, field.name)) for field in fields(self)} | {"total": round(self.total)}


class MemoryModel:
    """The memory of the ranks of a workload under layouts; what layers keep is found out once."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._saved: dict[tuple[object, ...], Saved] = {}
        self.unprobed: dict[str, str] = {}
        """The layers that could not be run to see what they keep, each with the reason."""

    def of(self, plan: Plan, device: Device) -> Memory:
        """Give the memory of the rank that takes most."""
        return max((self.of_stage(plan, device, stage) for stage in range(plan.layout.layer)), key=lambda m: m.total)

    def of_stage(self, plan: Plan, device: Device, stage: int) -> Memory:
        """Give the memory of the heaviest rank of a stage."""
        work, size, last = self.workload, plan.dtype.itemsize, stage == plan.layout.layer - 1
        rows, parameters = max(plan.rows), plan.stage_bytes[stage]
        alone = plan.layout.world == 1
        steps = max(len(run) for block in plan.runs for run in block)
        held = steps if plan.timeline else 1
        columns = self._columns(plan)
        first, end = plan.bounds[stage], plan.bounds[stage + 1]
        spatial = any(plan.layers[k].spatial and not (k == 0 and plan.aggregated) for k in range(first, end))
        features = adjacency = snapshots = 0.0
        if stage == 0 or alone:
            kept_steps = work.steps if plan.timeline and not plan.fixed else 1
            features = rows * work.features * size * kept_steps
            if plan.aggregated:
                features += rows * work.features * size * (work.steps if plan.timeline else 1)
        if plan.timeline:
            snapshots = self._snapshots(plan) if spatial or (alone and not plan.aggregated) else 0.0
        elif spatial or alone:
            adjacency = self._adjacency(plan)
        activations = self._activations(plan, device, stage, rows, held)
        gradients = self._passing(plan, device, stage, rows, held)
        halo = self._boards(plan, device, stage, columns, held)
        pairs = self._pairs(plan, device, held) if last else 0.0
        remembered = work.remembered(plan.layout.time) if last else 0  # in training and in evaluation
        # what a pass of training takes has been given back when an exact one begins, and is not there yet before it
        a_pass = activations + gradients + halo
        exact = self._exact_pass(plan, device, stage, rows, held) - a_pass
        ranked = self._evaluation(plan) if last else 0.0
        first_sums = self._first_sums(plan, rows, columns) - a_pass if stage == 0 else 0.0
        return Memory(
            libraries=device.libraries + (0 if alone else device.joined),
            parameters=2.0 * parameters,
            optimiser=(work.copies + 1.0) * parameters,
            features=features,
            adjacency=adjacency,
            activations=activations,
            gradients=gradients,
            history=self._history(plan, device, stage, columns),
            halo=halo,
            carries=self._carries(plan, device, stage, rows),
            snapshots=snapshots,
            messages=self._messages(plan, stage, rows, held),
            labels=self._labels(last=last),
            pairs=pairs + remembered,
            evaluation=max(0.0, max(ranked, exact) - pairs),
            reading=max(0.0, self._reading(plan, alone=alone), first_sums),
        )

    # What the data take

    def _columns(self, plan: Plan) -> float:
        """Own rows and those of other parts that are read, of the heaviest step."""
        remote = max(plan.remote) / plan.parts if plan.parts > 1 and plan.remote else 0.0
        return max(plan.rows) + remote

    def _adjacency(self, plan: Plan) -> float:
        """The matrix and, unless it is its own, its transpose."""
        by_columns = plan.across == "redistribute"
        parts = self.workload.parts(1 if by_columns else plan.parts)
        share = 1.0 if by_columns else parts.heaviest / plan.parts
        entries, rows = max(self.workload.entries) * share, plan.vertices if by_columns else max(plan.rows)
        one = entries * _ENTRY + rows * _ROW
        return self._relations(entries, rows) + (one if self.workload.symmetric and plan.parts == 1 else 2.0 * one)

    def _relations(self, entries: float, rows: float) -> float:
        """Weights of edges in each relation, and the matrices that are made of them."""
        timeline = self.workload.timeline
        count = max(len(trace_of(layer, timeline=timeline).related) for layer in self.workload.layers)
        return entries * (4 * count + _RELATED) + rows * count * _RELATED_ROW if count else 0.0

    def _snapshots(self, plan: Plan) -> float:
        """Prepared matrices of the steps that are kept, each with its transpose, and groups of them."""
        work = self.workload
        share = work.parts(plan.parts).heaviest / plan.parts
        entries = sum(work.entries[: work.training]) * work.distinct * share / plan.layout.time
        rows = max(plan.rows) * work.training / plan.layout.time
        alone = 2.0 * (entries * _ENTRY + rows * _ROW) + self._relations(entries, rows)
        # narrow rows are summed up over two steps at once, of matrices that are laid over each other for it
        widths = [
            layer.message_channels // (plan.parts if layer.across == "redistribute" else 1)
            for number, layer in enumerate(plan.layers)
            if layer.spatial and layer.across != "halo" and not (number == 0 and plan.aggregated)
        ]
        size = plan.dtype.itemsize
        if not any(worthwhile(width, plan.dtype, 2, work.overlaid, 0, 1) for width in widths):
            return alone
        return alone + (1.0 if work.symmetric else 2.0) * work.overlaid * entries * (4 + 2 * size) + rows * _ROW

    def _labels(self, *, last: bool) -> float:
        """Labels, masks and the order of all vertices, on every rank."""
        return self.workload.vertices * (8.0 + 8.0 + 3.0) + (
            self.workload.events * 12.0 if self.workload.timeline else 0
        )

    def _pairs(self, plan: Plan, device: Device, steps: int) -> float:
        """What a loss keeps of the pairs of its steps, those that exist in all steps, and what one makes of its rows.

        Where vertices are cut, all pairs of an epoch are drawn on every rank, which then takes its own.
        """
        work = self.workload
        if not work.pairs:
            return 0.0
        drawn = _PAIR * work.pairs * steps if plan.parts > 1 else 0.0
        existing = _PAIR_STORED * work.events * (2.0 if work.symmetric else 1.0)
        own = _PAIR_INDEX * work.pairs / plan.parts * steps
        return own + _PAIR_ROWS * self._pair_rows(plan, device) + drawn + existing

    def _pair_rows(self, plan: Plan, device: Device) -> float:
        """One product of the rows that a part's pairs of a step are made of."""
        rows = max(plan.rows) + self._fetched(plan)
        return paged(rows * self.workload.pair_channels * plan.dtype.itemsize, device)

    def _evaluation(self, plan: Plan) -> float:
        """Sampled pairs that measures keep for the run, and the scores of those of one step; after training."""
        at_once, kept = self.workload.judged_pairs
        # the steps of a run are dealt to its parts, and those of a timeline to ranks along time
        share = 1.0 / (plan.parts * plan.layout.time)
        return at_once * _RANKED + _PAIR * kept * share

    def _exact_pass(self, plan: Plan, device: Device, stage: int, rows: int, steps: int) -> float:
        """All rows forward for measures, nothing kept: a layer's input and what it makes of it, or outputs and scores.

        Chunks are one, and the rows of other parts are read.
        """
        exact, size = plan.forward_only(), plan.dtype.itemsize
        entries, most = self._entries_of_part(plan), 0.0
        for number in range(plan.bounds[stage], plan.bounds[stage + 1]):
            layer, saved = plan.layers[number], self.saved(number, plan)
            read = 0.0 if number == 0 else paged(rows * steps * layer.in_channels * size, device)
            written = paged(rows * steps * layer.out_channels * size, device) if saved.writes else 0.0
            most = max(most, read + written + saved.forward.bytes(rows, entries, steps))
        if stage == plan.layout.layer - 1 and not self.workload.pairs:
            # of a split's rows at a step: a copy, and that in double precision
            scored = self.workload.judged * rows * plan.out_channels * (size + 8.0)
            most = max(most, paged(rows * steps * plan.out_channels * size, device) + scored)
        return most + self._boards(exact, device, stage, self._columns(plan), steps)

    def _first_sums(self, plan: Plan, rows: int, columns: float) -> float:
        """The rows of other parts that the first layer's sums are made of, some features at once, before training.

        Rows are sent and received, put behind the own ones, and summed up.
        """
        if plan.timeline or plan.parts == 1 or not plan.aggregated or plan.layers[0].across == "redistribute":
            return 0.0
        width = self.workload.features
        at_once = features_at_once(round(columns), width, plan.dtype.itemsize)
        return plan.dtype.itemsize * at_once * (2.0 * (columns - rows) + columns + (rows if at_once < width else 0))

    def _reading(self, plan: Plan, *, alone: bool) -> float:
        """Edges as they were read, which one process holds beside what it makes of them."""
        return self.workload.events * 24.0 if alone and not self.workload.timeline else 0.0

    # What a pass takes

    def saved(self, number: int, plan: Plan) -> Saved:
        """Give what a layer keeps for backward."""
        layer = self.workload.layers[number]
        aggregated = number == 0 and plan.aggregated
        key = (*key_of(layer), aggregated)
        if key not in self._saved:
            try:
                _require_small(layer, plan.dtype.itemsize)
                self._saved[key] = saved_by(
                    layer, plan.timeline, aggregated=aggregated, dtype=plan.dtype, degree=self._degree()
                )
            except Exception as error:  # a user's layer may want what a few rows of a ring do not have
                kind = "" if isinstance(error, LayoutError) else f"{type(error).__name__}: "
                self.unprobed[repr(layer)] = f"{kind}{error}".split("\n")[0]
                trace = plan.layers[number]
                width = (trace.in_channels + trace.out_channels) * plan.dtype.itemsize
                each = SavedTensor(_UNKNOWN * trace.out_channels * plan.dtype.itemsize, 0.0, 0.0)
                passing = Passing(width, 0.0, 0.0, share=1.0)
                self._saved[key] = Saved((each,), reads=True, writes=True, forward=passing, backward=passing)
        return self._saved[key]

    def _layers_kept(self, plan: Plan, stage: int) -> range:
        """The layers whose activations are there at the same time: all, or with recompute those of one group."""
        first, end = plan.bounds[stage], plan.bounds[stage + 1]
        if not plan.recompute:
            return range(first, end)
        return range(first, min(end, first + max(1, len(plan.groups(stage)[0]))))

    def _activations(self, plan: Plan, device: Device, stage: int, rows: int, steps: int) -> float:
        """What autograd saves of the layers of a stage, and with recompute what each group begins with."""
        kept = self._layers_kept(plan, stage)
        total = sum(self._kept_by(plan, device, stage, rows, steps))
        # rows that are dealt out again lie where they were made, and where the temporal half reads them
        again = sum(self._dealt(plan, k) for k in self._dealers(plan, stage))
        total += again * rows * steps * plan.dtype.itemsize
        if plan.recompute:
            groups = (plan.bounds[stage + 1] - plan.bounds[stage]) / max(1, len(kept))
            width = max(plan.layers[number].in_channels for number in kept)
            total += groups * paged(rows * steps * width * plan.dtype.itemsize, device)
        return total

    def _kept_by(self, plan: Plan, device: Device, stage: int, rows: int, steps: int) -> list[float]:
        """What autograd saves of each layer, with the input that it has from the layer before."""
        entries = self._entries_of_part(plan)
        size = plan.dtype.itemsize
        kept, totals = self._layers_kept(plan, stage), []
        shares = self._shares(plan)
        before: Saved | None = None
        for number in kept:
            saved, layer, total = self.saved(number, plan), plan.layers[number], 0.0
            for tensor in saved.inside:
                total += in_pieces(tensor.bytes(rows * steps, entries * steps), device, shares, pooled=tensor.pooled)
            # the input is the output of the layer before: one of the two keeps it, or neither
            if (before.writes if before is not None else False) or (saved.reads and number > 0):
                pooled = before is None or before.pooled
                total += in_pieces(rows * steps * layer.in_channels * size, device, shares, pooled=pooled)
            totals.append(total)
            before = saved
        if before is not None and before.writes:
            totals[-1] += in_pieces(rows * steps * plan.layers[kept[-1]].out_channels * size, device, shares)
        return totals

    def _shares(self, plan: Plan) -> list[float]:
        """The shares of a part's rows that cells have: chunks, or all."""
        return [1.0 / plan.chunks] * plan.chunks

    def _degree(self) -> int:
        """Entries of a row, as far as a few rows can have them."""
        return min(_MOST_ENTRIES, max(1, int(max(self.workload.entries) / max(1, self.workload.vertices))))

    def _entries_of_part(self, plan: Plan) -> float:
        training = self.workload.entries[: self.workload.training]
        return sum(training) / len(training) / plan.parts

    def _passing(self, plan: Plan, device: Device, stage: int, rows: int, steps: int) -> float:
        """What is there beside all activations at the moment that takes most: what a layer has for a while on its way
        forward or back, when those after it have let go of theirs; and the outputs with what the loss makes of them.
        """
        size, share = plan.dtype.itemsize, max(self._shares(plan))
        entries = self._entries_of_part(plan)
        activations = self._kept_by(plan, device, stage, rows, steps)
        most = after = 0.0
        for number, kept in zip(reversed(self._layers_kept(plan, stage)), reversed(activations), strict=True):
            saved = self.saved(number, plan)
            forward, backward = (
                each.bytes(rows * share, entries * share, steps) for each in (saved.forward, saved.backward)
            )
            extra = max(forward, backward + self._sums(number, rows * share * steps, size))
            most = max(most, extra - after)
            after += kept
        # what is dealt out again lies side by side, then cut for its readers, then side by side from all of them
        dealt = max((self._dealt(plan, number) for number in self._dealers(plan, stage)), default=0)
        most = max(most, _DEALT * rows * steps * dealt * size)
        shared = {layer.writes for layer in plan.layers if layer.writes is not None}
        width = max(layer.out_channels for layer in plan.layers[plan.bounds[stage] : plan.bounds[stage + 1]])
        most += len(shared) * paged(rows * steps * width * size, device)
        if stage == plan.layout.layer - 1:
            # a loss on pairs reads the outputs of other parts behind the own ones, as one more tensor
            rows += self._fetched(plan)
            most += (4.0 if plan.fetches else 2.0) * paged(rows * steps * plan.out_channels * size, device)
        return most

    def _sums(self, number: int, rows: float, size: int) -> float:
        """Return the bytes in which the gradient of a layer's largest weight is summed."""
        weights = (p.shape for p in self.workload.layers[number].parameters() if p.dim() == 2 and p.requires_grad)
        return max((sums_bytes(rows, inputs, outputs, size) for outputs, inputs in weights), default=0.0)

    def _fetched(self, plan: Plan) -> int:
        """Give the outputs of other parts that a part's loss reads at a step."""
        return max(self.workload.fetched_rows(plan.layout)) // plan.parts if plan.fetches else 0

    def _dealers(self, plan: Plan, stage: int) -> list[int]:
        """Give the layers of a stage whose rows are dealt to other ranks along time before their temporal half."""
        numbers = range(plan.bounds[stage], plan.bounds[stage + 1])
        return [k for k in numbers if plan.layout.time > 1 and plan.layers[k].along == "redistribute"]

    def _dealt(self, plan: Plan, number: int) -> int:
        """Give how many numbers of a row are dealt out before a layer's temporal half."""
        call, fixed = plan.layers[number].recurrence, number == 0 and plan.fixed
        frames = () if call is None else zip(call.widths, call.inputs, strict=True)
        return sum(width for width, features in frames if not (fixed and features))

    def _history(self, plan: Plan, device: Device, stage: int, columns: float) -> float:
        """Rows of an earlier epoch, and where they are kept apart from this epoch's, those too."""
        if not plan.stale or plan.timeline:
            return 0.0
        recipe = plan.layout.recipe
        copies = 2.0 if recipe is not None and recipe.apart else 1.0
        return copies * sum(
            paged(columns * layer.message_channels * plan.dtype.itemsize, device)
            for _, layer in self._readers(plan, stage)
        )

    def _readers(self, plan: Plan, stage: int) -> list[tuple[int, LayerTrace]]:
        return [
            (number, plan.layers[number])
            for number in range(plan.bounds[stage], plan.bounds[stage + 1])
            if plan.layers[number].spatial and not (number == 0 and plan.aggregated)
        ]

    def _boards(self, plan: Plan, device: Device, stage: int, columns: float, steps: int) -> float:
        """Rows of other parts beside the own ones, or their gradients."""
        if plan.parts == 1 or plan.stale:
            return 0.0
        size, rows = plan.dtype.itemsize, max(plan.rows)
        readers = self._readers(plan, stage)
        if any(layer.across == "redistribute" for _, layer in readers):
            # the message by rows and by columns, and the sums by columns and by rows: each as large as the others
            widest = max(layer.message_channels for _, layer in readers)
            return _TURNED * paged(rows * steps * widest * size, device)
        sizes = sorted(paged(columns * steps * layer.message_channels * size, device) for _, layer in readers)
        # forward has the rows of two layers at a time, and no gradients yet; backward has the gradients of one
        return sum(sizes[-1:])

    def _carries(self, plan: Plan, device: Device, stage: int, rows: int) -> float:
        """The states between blocks, and those that begin and end a run."""
        if not plan.timeline:
            return 0.0
        size, count = plan.dtype.itemsize, plan.blocks + 1 if plan.blocks > 1 or plan.layout.time > 1 else 1
        total = 0.0
        for number in range(plan.bounds[stage], plan.bounds[stage + 1]):
            form = plan.layers[number].form
            if form is not None:
                total += count * math.prod(form.shape(rows)) * size
        return total

    def _messages(self, plan: Plan, stage: int, rows: int, steps: int) -> float:
        """Messages between ranks that lie in shared memory or in buffers until they are read."""
        if plan.layout.world == 1:
            return 0.0
        size, total = plan.dtype.itemsize, 0.0
        chunks = plan.layout.chunks if plan.stale else 1
        if plan.parts > 1:
            widths = [layer.message_channels for _, layer in self._readers(plan, stage)]
            remote = max(plan.remote) / plan.parts if plan.remote else 0.0
            if any(layer.across == "redistribute" for _, layer in self._readers(plan, stage)):
                remote = rows * (plan.parts - 1) / plan.parts
            total += _SLOTS * remote * steps * max(widths, default=0) * size / chunks
            total += 2.0 * self._fetched(plan) * steps * plan.out_channels * size
        if plan.layout.layer > 1:
            boundary = sum(plan.boundary_widths(stage)) if stage > 0 else 0
            after = sum(plan.boundary_widths(stage + 1)) if stage + 1 < plan.layout.layer else 0
            kept = plan.blocks if plan.timeline else 1
            total += rows * steps * size * (boundary * max(1, kept) + after / chunks)
        if plan.layout.time > 1:
            others = (plan.layout.time - 1) / plan.layout.time
            dealers = self._dealers(plan, stage)
            # sent and received, in memory that ranks share: rows on their way to the temporal half, those that wait for
            # their reader, and rows that are read where they lie on the way back
            wide = max((_SLOTS * self._dealt(plan, k) + plan.layers[k].out_channels for k in dealers), default=0)
            total += 2.0 * others * rows * steps * size * wide
            widths = [
                math.prod(layer.form.shape(1))
                for number, layer in enumerate(plan.layers)
                if layer.form is not None and layer.form.kind != "weight" and number not in dealers
            ]
            total += _SLOTS * rows * max(widths, default=0) * size
        return total


def in_pieces(count: float, device: Device, shares: Sequence[float], *, pooled: bool = True) -> float:
    """Give the bytes that buffers take which together have so many, each a share of them.

    Args:
        pooled: whether they come from the pool where they are large enough for it; others lie scattered on the heap.
    """
    pieces = [count * share for share in shares]
    return sum(paged(size, device) if pooled and size >= SMALLEST else size * _SCATTERED for size in pieces)


def _require_small(layer: nn.Module, size: int) -> None:
    """Raise where a layer is too wide to be run for a plan."""
    weights = size * sum(p.numel() for p in layer.parameters())
    if weights > _LARGEST:
        raise LayoutError(f"its weights take {weights / 2**20:,.0f} MiB, which a plan does not build")


def paged(count: float, device: Device) -> float:
    """Give the bytes that a buffer takes; a large one takes whole huge pages."""
    return count if count < HUGE else float(-(-count // device.page) * device.page)
