"""The memory of a rank, by what takes it, as the engine keeps it.

Activations are those that autograd saves (`plan.probe` lists them layer by layer); the rest are sizes of arrays. The
peak is reached when backward begins: all activations of a block are there, and the first gradients beside them. What
comes before (reading, sorting, preparing the matrix) has its own peak, and the larger of the two counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from trisect.errors import LayoutError
from trisect.ops._products import sums_bytes
from trisect.ops.memory import HUGE, SMALLEST
from trisect.ops.spmm.grouping import worthwhile
from trisect.partition.halo import features_at_once
from trisect.plan.cluster import Device
from trisect.plan.probe import Passing, Saved, SavedTensor, saved_by
from trisect.plan.workload import Workload
from trisect.views.plan import Plan
from trisect.views.trace import trace_of

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
        self._saved: dict[tuple[int, bool], Saved] = {}
        self.unprobed: dict[str, str] = {}
        """The layers that could not be run to see what they keep, each with the reason."""

    def of(self, plan: Plan, device: Device) -> Memory:
        """Give the memory of the rank that takes most."""
        return max((self.of_stage(plan, device, stage) for stage in range(plan.layout.layer)), key=lambda m: m.total)

    def of_stage(self, plan: Plan, device: Device, stage: int) -> Memory:
        """Give the memory of the heaviest rank of a stage."""
        return _Rank(self, plan, device, stage).memory()

    def saved(self, number: int, plan: Plan) -> Saved:
        """Give what a layer keeps for backward."""
        layer, trace, size = self.workload.layers[number], plan.layers[number], plan.dtype.itemsize
        key = number, number == 0 and plan.aggregated
        if key not in self._saved:
            # entries of a row, as far as a few rows can have them
            degree = int(max(self.workload.entries) / max(1, self.workload.vertices))
            degree = min(_MOST_ENTRIES, max(1, degree))
            try:
                self._saved[key] = saved_by(layer, plan.timeline, aggregated=key[1], dtype=plan.dtype, degree=degree)
            except Exception as error:  # a user's layer may want what a few rows of a ring do not have
                kind = "" if isinstance(error, LayoutError) else f"{type(error).__name__}: "
                self.unprobed[repr(layer)] = f"{kind}{error}".split("\n")[0]
                each = SavedTensor(_UNKNOWN * trace.out_channels * size, 0.0, 0.0)
                passing = Passing((trace.in_channels + trace.out_channels) * size, 0.0, 0.0, share=1.0)
                self._saved[key] = Saved((each,), reads=True, writes=True, forward=passing, backward=passing)
        return self._saved[key]


class _Rank:
    """What takes the memory of the heaviest rank of a stage.

    Attributes:
        numbers: of its layers; `kept`: those whose activations are there at the same time, all or with recompute one
            group; `readers`: those that read rows of neighbours.
        steps: that are there at once; `entries`: of the matrix of one of them.
        remote, columns: rows of other parts that are read, of the heaviest step; and own rows with them.
        fetched: outputs of other parts that a part's loss reads at a step.
        dealt: for each layer whose rows are dealt to other ranks along time before its temporal half, how many numbers
            of a row are.
        shares: of a part's rows that cells have: chunks, or all.
    """

    def __init__(self, model: MemoryModel, plan: Plan, device: Device, stage: int) -> None:
        self.work, self.plan, self.device, self.stage = model.workload, plan, device, stage
        self.size, self.rows, self.alone = plan.dtype.itemsize, max(plan.rows), plan.layout.world == 1
        self.numbers, self.last = range(plan.bounds[stage], plan.bounds[stage + 1]), stage == plan.layout.layer - 1
        self.saved = {number: model.saved(number, plan) for number in self.numbers}
        groups = plan.groups(stage)
        self.kept = self.numbers[: max(1, len(groups[0]))] if plan.recompute else self.numbers
        self.readers = [
            plan.layers[k] for k in self.numbers if plan.layers[k].spatial and not (k == 0 and plan.aggregated)
        ]
        self.by_columns = any(layer.across == "redistribute" for layer in self.readers)
        self.steps = max(len(run) for block in plan.runs for run in block) if plan.timeline else 1
        training = self.work.entries[: self.work.training]
        self.entries = sum(training) / len(training) / plan.parts
        self.remote = max(plan.remote) / plan.parts if plan.parts > 1 and plan.remote else 0.0
        self.columns = self.rows + self.remote
        self.fetched = max(self.work.fetched_rows(plan.layout)) // plan.parts if plan.fetches else 0
        dealers = [k for k in self.numbers if plan.layout.time > 1 and plan.layers[k].along == "redistribute"]
        self.dealt = {number: self._dealt(number) for number in dealers}
        # steps let go of their activations one after the other
        self.shares = [1.0 / plan.updates] if plan.updates > 1 else [1.0 / plan.chunks] * plan.chunks

    def memory(self) -> Memory:
        """Give it by what takes it."""
        work, plan, parameters = self.work, self.plan, self.plan.stage_bytes[self.stage]
        features = adjacency = snapshots = 0.0
        if self.stage == 0 or self.alone:
            steps = work.steps if plan.timeline else 1
            kept_steps = (1 if plan.fixed else steps) + (steps if plan.aggregated else 0)
            features = self.rows * work.features * self.size * kept_steps
        if plan.timeline:
            snapshots = self._snapshots() if self.readers or (self.alone and not plan.aggregated) else 0.0
        elif self.readers or self.alone:
            adjacency = self._adjacency()
        by_layer = self._kept_by_layer()
        activations, gradients = self._activations(by_layer), self._passing(by_layer)
        halo = 0.0 if plan.stale or plan.updates > 1 else self._boards()
        pairs = self._pairs() if self.last else 0.0
        remembered = work.remembered(plan.layout.time) if self.last else 0  # in training and in evaluation
        # what a pass of training takes has been given back when an exact one begins, and is not there yet before it
        a_pass = activations + gradients + halo
        exact = self._exact_pass() - a_pass
        ranked = self._evaluation() if self.last else 0.0
        first_sums = self._first_sums() - a_pass if self.stage == 0 else 0.0
        return Memory(
            libraries=self.device.libraries + (0 if self.alone else self.device.joined),
            parameters=2.0 * parameters,
            optimiser=(work.copies + 1.0) * parameters,
            features=features,
            adjacency=adjacency,
            activations=activations,
            gradients=gradients,
            history=self._history(),
            halo=halo,
            carries=self._carries(),
            snapshots=snapshots,
            messages=self._messages(),
            # labels, masks and the order of all vertices, on every rank
            labels=work.vertices * (8.0 + 8.0 + 3.0) + (work.events * 12.0 if work.timeline else 0),
            pairs=pairs + remembered,
            evaluation=max(0.0, max(ranked, exact) - pairs),
            # edges as they were read, which one process holds beside what it makes of them
            reading=max(0.0, work.events * 24.0 if self.alone and not work.timeline else 0.0, first_sums),
        )

    def _frames(self, width: int) -> float:
        """The bytes of a buffer of all own rows and steps."""
        return paged(self.rows * self.steps * width * self.size, self.device)

    # What the data take

    def _adjacency(self) -> float:
        """The matrix and, unless it is its own, its transpose."""
        plan, by_columns = self.plan, self.plan.across == "redistribute"
        parts = self.work.parts(1 if by_columns else plan.parts)
        share = 1.0 if by_columns else parts.heaviest / plan.parts
        entries, rows = max(self.work.entries) * share, plan.vertices if by_columns else self.rows
        one = entries * _ENTRY + rows * _ROW
        return self._relations(entries, rows) + (one if self.work.symmetric and plan.parts == 1 else 2.0 * one)

    def _relations(self, entries: float, rows: float) -> float:
        """Weights of edges in each relation, and the matrices that are made of them."""
        count = max(len(trace_of(layer, timeline=self.work.timeline).related) for layer in self.work.layers)
        return entries * (4 * count + _RELATED) + rows * count * _RELATED_ROW if count else 0.0

    def _snapshots(self) -> float:
        """Prepared matrices of the steps that are kept, each with its transpose, and groups of them."""
        work, plan = self.work, self.plan
        share = work.parts(plan.parts).heaviest / plan.parts
        entries = sum(work.entries[: work.training]) * work.distinct * share / plan.layout.time
        rows = self.rows * work.training / plan.layout.time
        alone = 2.0 * (entries * _ENTRY + rows * _ROW) + self._relations(entries, rows)
        # narrow rows are summed up over two steps at once, of matrices that are laid over each other for it
        widths = [
            layer.message_channels // (plan.parts if layer.across == "redistribute" else 1)
            for number, layer in enumerate(plan.layers)
            if layer.spatial and layer.across != "halo" and not (number == 0 and plan.aggregated)
        ]
        if not any(worthwhile(width, plan.dtype, 2, work.overlaid, 0, 1) for width in widths):
            return alone
        return alone + (1.0 if work.symmetric else 2.0) * work.overlaid * entries * (4 + 2 * self.size) + rows * _ROW

    def _pairs(self) -> float:
        """What a loss keeps of the pairs of its steps, those that exist in all steps, and what one makes of its rows.

        Where vertices are cut, all pairs of an epoch are drawn on every rank, which then takes its own.
        """
        work, parts = self.work, self.plan.parts
        if not work.pairs:
            return 0.0
        drawn = _PAIR * work.pairs * self.steps if parts > 1 else 0.0
        existing = _PAIR_STORED * work.events * (2.0 if work.symmetric else 1.0)
        own = _PAIR_INDEX * work.pairs / parts * self.steps
        # one product of the rows that a part's pairs of a step are made of
        product = paged((self.rows + self.fetched) * work.pair_channels * self.size, self.device)
        return own + _PAIR_ROWS * product + drawn + existing

    def _evaluation(self) -> float:
        """Sampled pairs that measures keep for the run, and the scores of those of one step; after training."""
        at_once, kept = self.work.judged_pairs
        # the steps of a run are dealt to its parts, and those of a timeline to ranks along time
        share = 1.0 / (self.plan.parts * self.plan.layout.time)
        return at_once * _RANKED + _PAIR * kept * share

    def _exact_pass(self) -> float:
        """All rows forward for measures, nothing kept: a layer's input and what it makes of it, or outputs and scores.

        Chunks are one, and the rows of other parts are read.
        """
        most = 0.0
        for number, saved in self.saved.items():
            read = 0.0 if number == 0 else self._frames(self.plan.layers[number].in_channels)
            written = self._frames(self.plan.layers[number].out_channels) if saved.writes else 0.0
            most = max(most, read + written + saved.forward.bytes(self.rows, self.entries, self.steps))
        if self.last and not self.work.pairs:
            # of a split's rows at a step: a copy, and that in double precision
            scored = self.work.judged * self.rows * self.plan.out_channels * (self.size + 8.0)
            most = max(most, self._frames(self.plan.out_channels) + scored)
        return most + self._boards()

    def _first_sums(self) -> float:
        """The rows of other parts that the first layer's sums are made of, some features at once, before training.

        Rows are sent and received, put behind the own ones, and summed up.
        """
        plan, width = self.plan, self.work.features
        if plan.timeline or plan.parts == 1 or not plan.aggregated or plan.layers[0].across == "redistribute":
            return 0.0
        at_once = features_at_once(round(self.columns), width, self.size)
        return self.size * at_once * (2.0 * self.remote + self.columns + (self.rows if at_once < width else 0))

    # What a pass takes

    def _kept_by_layer(self) -> list[float]:
        """What autograd saves of each layer, with the input that it has from the layer before."""
        totals: list[float] = []
        before: Saved | None = None
        for number in self.kept:
            saved, total = self.saved[number], 0.0
            for tensor in saved.inside:
                size = tensor.bytes(self.rows * self.steps, self.entries * self.steps)
                total += in_pieces(size, self.device, self.shares, pooled=tensor.pooled)
            # the input is the output of the layer before: one of the two keeps it, or neither
            if (before.writes if before is not None else False) or (saved.reads and number > 0):
                pooled = before is None or before.pooled
                total += self._rows_in_pieces(self.plan.layers[number].in_channels, pooled=pooled)
            totals.append(total)
            before = saved
        if before is not None and before.writes:
            totals[-1] += self._rows_in_pieces(self.plan.layers[self.kept[-1]].out_channels)
        return totals

    def _rows_in_pieces(self, width: int, *, pooled: bool = True) -> float:
        return in_pieces(self.rows * self.steps * width * self.size, self.device, self.shares, pooled=pooled)

    def _activations(self, by_layer: Sequence[float]) -> float:
        """What autograd saves of the layers of a stage, and with recompute what each group begins with."""
        # rows that are dealt out again lie where they were made, and where the temporal half reads them
        total = sum(by_layer) + sum(self.dealt.values()) * self.rows * self.steps * self.size
        if self.plan.recompute:
            groups = len(self.numbers) / max(1, len(self.kept))
            total += groups * self._frames(max(self.plan.layers[number].in_channels for number in self.kept))
        return total

    def _passing(self, by_layer: Sequence[float]) -> float:
        """What is there beside all activations at the moment that takes most: what a layer has for a while on its way
        forward or back, when those after it have let go of theirs; and the outputs with what the loss makes of them.
        """
        plan, share = self.plan, max(self.shares)
        most = after = 0.0
        for number, kept in zip(reversed(self.kept), reversed(by_layer), strict=True):
            saved = self.saved[number]
            forward, backward = (
                each.bytes(self.rows * share, self.entries * share, self.steps)
                for each in (saved.forward, saved.backward)
            )
            extra = max(forward, backward + self._sums(number, self.rows * share * self.steps))
            most = max(most, extra - after)
            after += kept
        # what is dealt out again lies side by side, then cut for its readers, then side by side from all of them
        most = max(most, _DEALT * self.rows * self.steps * max(self.dealt.values(), default=0) * self.size)
        shared = {layer.writes for layer in plan.layers if layer.writes is not None}
        most += len(shared) * self._frames(max(plan.layers[number].out_channels for number in self.numbers))
        if self.last:
            # a loss on pairs reads the outputs of other parts behind the own ones, as one more tensor
            read = (self.rows + self.fetched) * self.steps * plan.out_channels * self.size
            most += (4.0 if plan.fetches else 2.0) * paged(read, self.device)
        return most

    def _sums(self, number: int, rows: float) -> float:
        """Return the bytes in which the gradient of a layer's largest weight is summed."""
        weights = (p.shape for p in self.work.layers[number].parameters() if p.dim() == 2 and p.requires_grad)
        return max((sums_bytes(rows, inputs, outputs, self.size) for outputs, inputs in weights), default=0.0)

    def _dealt(self, number: int) -> int:
        """Give how many numbers of a row are dealt out before a layer's temporal half."""
        call, fixed = self.plan.layers[number].recurrence, number == 0 and self.plan.fixed
        frames = () if call is None else zip(call.widths, call.inputs, strict=True)
        return sum(width for width, features in frames if not (fixed and features))

    def _history(self) -> float:
        """Rows of an earlier epoch, and where they are kept apart from this epoch's, those too."""
        if not self.plan.stale or self.plan.timeline:
            return 0.0
        recipe = self.plan.layout.recipe
        apart = recipe is not None and recipe.apart and self.plan.batches == 1
        return (2.0 if apart else 1.0) * sum(self._columns_of_readers(1))

    def _columns_of_readers(self, steps: int) -> list[float]:
        """The bytes of the rows that each layer reads, own ones among them."""
        widths = (layer.message_channels for layer in self.readers)
        return [paged(self.columns * steps * width * self.size, self.device) for width in widths]

    def _boards(self) -> float:
        """Rows of other parts beside the own ones, or their gradients."""
        if self.plan.parts == 1:
            return 0.0
        if self.by_columns:
            # the message by rows and by columns, and the sums by columns and by rows: each as large as the others
            return _TURNED * self._frames(max(layer.message_channels for layer in self.readers))
        # forward has the rows of two layers at a time, and no gradients yet; backward has the gradients of one
        return max(self._columns_of_readers(self.steps), default=0.0)

    def _carries(self) -> float:
        """The states between blocks, and those that begin and end a run."""
        plan = self.plan
        if not plan.timeline:
            return 0.0
        count = plan.blocks + 1 if plan.blocks > 1 or plan.layout.time > 1 else 1
        forms = (plan.layers[number].form for number in self.numbers)
        return sum((count * math.prod(form.shape(self.rows)) * self.size for form in forms if form is not None), 0.0)

    def _messages(self) -> float:
        """Messages between ranks that lie in shared memory or in buffers until they are read."""
        plan, layout, size, total = self.plan, self.plan.layout, self.size, 0.0
        if self.alone:
            return 0.0
        chunks = layout.chunks if plan.stale else 1
        if plan.parts > 1:
            widest = max((layer.message_channels for layer in self.readers), default=0)
            remote = self.rows * (plan.parts - 1) / plan.parts if self.by_columns else self.remote
            total += _SLOTS * remote * self.steps * widest * size / chunks
            total += 2.0 * self.fetched * self.steps * plan.out_channels * size
        if layout.layer > 1:
            boundary = sum(plan.boundary_widths(self.stage)) if self.stage > 0 else 0
            after = 0 if self.last else sum(plan.boundary_widths(self.stage + 1))
            kept = plan.blocks if plan.timeline else 1
            total += self.rows * self.steps * size * (boundary * max(1, kept) + after / chunks)
        if layout.time > 1:
            others = (layout.time - 1) / layout.time
            # sent and received, in memory that ranks share: rows on their way to the temporal half, those that wait for
            # their reader, and rows that are read where they lie on the way back
            wide = max((_SLOTS * dealt + plan.layers[k].out_channels for k, dealt in self.dealt.items()), default=0)
            total += 2.0 * others * self.rows * self.steps * size * wide
            widths = [
                math.prod(layer.form.shape(1))
                for number, layer in enumerate(plan.layers)
                if layer.form is not None and layer.form.kind != "weight" and number not in self.dealt
            ]
            total += _SLOTS * self.rows * max(widths, default=0) * size
        return total


def in_pieces(count: float, device: Device, shares: Sequence[float], *, pooled: bool = True) -> float:
    """Give the bytes that buffers take which together have so many, each a share of them.

    Args:
        pooled: whether they come from the pool where they are large enough for it; others lie scattered on the heap.
    """
    pieces = [count * share for share in shares]
    return sum(paged(size, device) if pooled and size >= SMALLEST else size * _SCATTERED for size in pieces)


def paged(count: float, device: Device) -> float:
    """Give the bytes that a buffer takes; a large one takes whole huge pages."""
    return count if count < HUGE else float(-(-count // device.page) * device.page)
