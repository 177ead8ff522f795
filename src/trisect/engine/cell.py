"""`Cell`: some rows of some steps on their way through the units of a stage, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from trisect import ops
from trisect.engine.boards import Boards, CellRows
from trisect.engine.packed import PackedActivations
from trisect.engine.recurrence import Recurrence
from trisect.engine.units import Ref, Step, Unit
from trisect.engine.values import Reading, Value, read_rows, require, require_kind, root_of
from trisect.exchanges.facts import NONE, Facts
from trisect.graph.adjacency import Adjacency
from trisect.nn.base import Context, Layer
from trisect.nn.conv.convolution import Convolution
from trisect.nn.halves import AnyLayer, HalfKind, spatial_part
from trisect.nn.temporal.dynamic import DynamicLayer
from trisect.nn.temporal.evolving import Evolving
from trisect.noise import Noise
from trisect.ops.backward import run_backward
from trisect.ops.elementwise import twice
from trisect.ops.message import Message

if TYPE_CHECKING:
    from trisect.shards.shard import Shard

Loss = Callable[[Sequence[Tensor] | Tensor, slice, int], Tensor]
Frames = Tensor | Sequence[Tensor]


@dataclass(frozen=True, eq=False)
class Stage:
    """What all cells of a rank share.

    Attributes:
        layers: by number, the layers of the stage; the head is the one after the model's last.
        loss: loss(frames, rows of the part, first step) of own rows; None where the stage is not the last.
        token: requires a gradient, so that leaves which are no parameters are part of a graph.
    """

    facts: Facts
    layers: Mapping[int, AnyLayer]
    shard: Shard
    boards: Boards | None
    recurrences: Mapping[int, Recurrence]
    packed: PackedActivations | None
    loss: Loss | None
    dtype: torch.dtype
    device: torch.device
    token: Tensor = field(default_factory=lambda: torch.zeros((), requires_grad=True))


@dataclass(eq=False)
class Cell:
    """Rows of a chunk, or of one side of it, over the steps of a block.

    Attributes:
        chunk: under which states of the rows are kept.
        steps: of the timeline; `block` its number.
        noise: of the rows; None in evaluation.
        values: what units made and others read.
        output: the outputs, [steps, rows, channels], where they are asked for.
    """

    stage: Stage
    cell_rows: CellRows
    chunk: int
    steps: range
    block: int
    noise: Noise | None
    evaluates: bool = False
    values: dict[Ref, Value] = field(default_factory=dict)
    output: Tensor | None = None
    losses: list[Tensor] = field(default_factory=list)
    fetched: Sequence[int] = ()
    _roots: dict[int, GradientEdge | None] = field(default_factory=dict)
    _loss_dtype: torch.dtype = torch.float32
    _readings: dict[int, list[Reading]] = field(default_factory=dict)
    _states: dict[int, list[int]] = field(default_factory=dict)

    @property
    def rows(self) -> slice:
        """The rows of the part."""
        return self.cell_rows.rows

    @property
    def count(self) -> int:
        """How many rows there are."""
        rows = self.cell_rows.rows
        return int(rows.stop - rows.start)

    # Forward

    def forward(self, units: Sequence[Unit], *, trained: bool) -> None:
        """Run units one after the other; `trained`: backward will follow."""
        packed = self.stage.packed
        hooks = packed.hooks(self.count) if packed is not None and trained else None
        if self.stage.boards is not None:
            self.stage.boards.saves_rows = trained and hooks is None
        with torch.set_grad_enabled(trained), hooks or nullcontext():
            for unit in units:
                if self.steps:
                    self._forward(unit, trained)
                else:
                    for step in unit.steps:
                        self._evolve_alone(step, unit)
                for ref in unit.frees:
                    if ref in self.values:
                        self.values[ref].rows = None
                if hooks is not None and packed is not None:
                    packed.forget()

    def _forward(self, unit: Unit, trained: bool) -> None:
        local = self._read(unit.reads, trained)
        for step, last_reads in zip(unit.steps, unit.last_reads, strict=False):
            rows, later = local.get(step.x), None
            if rows is not None and step.x not in last_reads:
                local[step.x], later = twice(rows)
            self._run(step, unit, local, trained)
            if later is not None:
                local[step.x] = later
            for ref in last_reads:
                if ref in unit.frees:
                    self.values[ref].rows = None
                if ref not in unit.writes:
                    local.pop(ref, None)
        for ref in unit.writes:
            rows, value = local[ref], self.values.setdefault(ref, Value(None))
            # where nothing is kept for backward, the unit is run again, and its readers want a gradient all the same
            value.rows, value.root = rows.detach(), root_of(rows) if trained else None
            value.trained = rows.requires_grad if trained else not self.evaluates

    def _read(self, refs: Sequence[Ref], trained: bool) -> dict[Ref, Tensor]:
        """Give the rows of values that other units, or exchanges, made."""
        local = {ref: self.values[ref].require(ref) for ref in refs}
        wanted = [ref for ref in refs if self.values[ref].trained] if trained else ()
        if wanted:
            readings = [self.values[ref].reading for ref in wanted]
            leaves = read_rows(self.stage.token, [local[ref] for ref in wanted], readings)
            local.update(zip(wanted, leaves, strict=True))
        return local

    def _run(self, step: Step, unit: Unit, local: dict[Ref, Tensor], trained: bool) -> None:
        kind = step.kind
        if kind is HalfKind.PREPARE:
            self._prepare(step, unit, local, trained)
        elif kind is HalfKind.COMBINE:
            local[step.out] = self._combine(step, unit, local, trained)
        elif kind is HalfKind.AGGREGATE:
            local[step.out] = self._aggregate(step, local)
        elif kind is HalfKind.TEMPORAL:
            local[step.out] = self._temporal(step, unit, local)
        elif kind is HalfKind.SUMMARY:
            local[step.out] = self._summary(step, local)
        elif kind is HalfKind.OUTPUT:
            self._output(step, unit, local)
        else:
            local[step.out] = self._local(step, local)

    def _local(self, step: Step, local: Mapping[Ref, Tensor]) -> Tensor:
        x = local[step.x]
        if step.layer not in self.stage.layers:
            return x  # in place of a head
        layer = self._layer(step)
        if not isinstance(layer, Layer):
            layer = spatial_part(layer) or layer
        shared = {name: local[ref] for name, ref in step.shared}
        head = step.layer == len(self.stage.facts.layers)
        steps = len(self.steps)
        noise = None if head else self.noise
        if steps == 1 and not self._is_fixed(step.x):
            return layer(x, None, self._contexts(step.layer, shared)[0] if not head else Context())  # type: ignore[no-any-return]
        if noise is None or (isinstance(layer, Convolution) and not layer.draws(self._contexts(step.layer, {}))):
            rows: Tensor = layer(x, None, Context(None, shared))
            return self._spread(rows) if self._is_fixed(step.x) else rows
        frames = self._frames(step.x, x)
        contexts = self._contexts(step.layer, shared)
        return torch.cat([layer(frame, None, context) for frame, context in zip(frames, contexts, strict=True)])

    def _prepare(self, step: Step, unit: Unit, local: dict[Ref, Tensor], trained: bool) -> None:
        """What other rows read of these comes to where its readers find it."""
        layer, x, boards = self._layer(step), local[step.x], self.stage.boards
        target = boards.room(step.layer, self.rows) if step.board and boards is not None else None
        if isinstance(layer, Evolving):
            frames = self._frames_tensor(step.x, x)
            message = layer.prepare(frames, local[require(step.weights, "an evolved weight")]).flatten(0, 1)
        else:
            message = self._prepared(layer, step, x, target)
        if not step.board or boards is None:
            local[step.out] = message
            return
        if target is None or message.data_ptr() != target.data_ptr():
            boards.write(step.layer, self.rows, message.detach())
        if trained:
            # the root in the graph alone: the rows are on the board, which is soon free; None: they are x itself
            self._roots[unit.index] = None if message is x else root_of(message)

    def _prepared(self, layer: AnyLayer, step: Step, x: Tensor, target: Tensor | None) -> Tensor:
        spatial = require(spatial_part(layer), "the spatial part of a layer")
        steps = len(self.steps)
        if steps == 1 and not self._is_fixed(step.x):
            noise = None if self.noise is None else self.noise.at(layer=step.layer, step=self.steps.start)
            return spatial.prepare(x, Context(noise, into=target))
        if spatial.draws_before and self.noise is not None:
            pairs = zip(self._frames(step.x, x), self._contexts(step.layer, {}), strict=True)
            return torch.cat([spatial.prepare(frame, context) for frame, context in pairs])
        if self._is_fixed(step.x):
            return self._spread(spatial.prepare(x, Context()))
        return spatial.prepare(x, Context(into=target))

    def _combine(self, step: Step, unit: Unit, local: Mapping[Ref, Tensor], trained: bool) -> Tensor:
        layer, x = self._layer(step), local[step.x]
        if isinstance(layer, Evolving):
            return self._combine_evolving(layer, step, unit, local, trained)
        spatial = require(spatial_part(layer), "the spatial part of a layer")
        shared = {name: local[ref] for name, ref in step.shared}
        steps = len(self.steps)
        if step.fused or step.aggregated:
            contexts = self._contexts(step.layer, shared)
            aggregated = self._aggregated() if step.aggregated else None
            if steps == 1 and not self._is_fixed(step.x):
                if aggregated is not None:
                    return spatial.combine_aggregated(aggregated[0], x, contexts[0])
                return spatial(x, self.cell_rows.blocks[0], contexts[0])  # type: ignore[no-any-return]
            frames = x if self._is_fixed(step.x) else self._frames_tensor(step.x, x)
            blocks = [] if aggregated is not None else self.cell_rows.blocks
            return spatial.over_steps(frames, blocks, contexts, aggregated).flatten(0, 1)
        messages = self._messages(step, unit, local, trained)
        blocks = self._identities() if step.message is not None else self.cell_rows.blocks
        contexts = self._contexts(step.layer, shared, columns=step.message is None)
        if steps == 1:
            return spatial.combine(messages[0], x, blocks[0], contexts[0])
        frames = x if self._is_fixed(step.x) else self._frames_tensor(step.x, x)
        return spatial.combine_steps(messages, frames, blocks, contexts).flatten(0, 1)

    def _messages(self, step: Step, unit: Unit, local: Mapping[Ref, Tensor], trained: bool) -> list[Message]:
        """What the rows read at each step: from the board, or the sums themselves where others have summed up."""
        boards = self.stage.boards
        if step.board and boards is not None:
            messages, readings = boards.read(step.layer, self.cell_rows, trained=trained)
            if trained:
                self._readings[unit.index] = readings
            return messages
        steps = len(self.steps)
        totals = local[require(step.message, "a sum over neighbours")].view(steps, self.count, -1).unbind()
        own = local[require(step.beside, "an own message")].view(steps, self.count, -1).unbind()
        return [Message(total, own=lambda rows=rows: rows) for total, rows in zip(totals, own, strict=True)]  # type: ignore[misc]

    def _combine_evolving(
        self, layer: Evolving, step: Step, unit: Unit, local: Mapping[Ref, Tensor], trained: bool
    ) -> Tensor:
        weights, x = local[require(step.weights, "an evolved weight")], local[step.x]
        if step.fused or step.aggregated:
            aggregated = self._aggregated() if step.aggregated else None
            noise = None if self.noise is None else self.noise.at(layer=step.layer)
            frames = x if self._is_fixed(step.x) else self._frames_tensor(step.x, x)
            blocks = [] if aggregated is not None else self.cell_rows.blocks
            return layer.over_steps(frames, blocks, weights, noise, self.steps.start, aggregated).flatten(0, 1)
        messages = self._messages(step, unit, local, trained)
        blocks = self._identities() if step.message is not None else self.cell_rows.blocks
        contexts = self._contexts(step.layer, {}, columns=True)
        frames = x if self._is_fixed(step.x) else self._frames_tensor(step.x, x)
        return layer.combine_steps(messages, frames, blocks, contexts, weights).flatten(0, 1)

    def _aggregate(self, step: Step, local: Mapping[Ref, Tensor]) -> Tensor:
        """The sums of all rows over their neighbours, of a share of the columns: [steps · all rows, columns]."""
        frames = local[require(step.message, "a message")].view(len(self.steps), self.stage.facts.vertices, -1)
        matrices = self.stage.shard.all_rows(self.steps)
        if len(self.steps) == 1:
            return ops.aggregate(frames.flatten(0, 1), matrices[0])
        return ops.aggregate_steps(frames, matrices).flatten(0, 1)

    def _summary(self, step: Step, local: Mapping[Ref, Tensor]) -> Tensor:
        """What a weight reads of each step to evolve; where vertices are cut, this part's candidates for it."""
        layer, x = require_kind(self._layer(step), Evolving), local[step.x]
        if self.stage.facts.parts == 1:
            frames = x if self._is_fixed(step.x) else self._frames_tensor(step.x, x)
            return layer.summaries(frames, len(self.steps))
        summary = require(layer.summary, "a layer's summary")
        return torch.cat([summary.candidates(frame) for frame in self._frames(step.x, x)])

    def _temporal(self, step: Step, unit: Unit, local: Mapping[Ref, Tensor]) -> Tensor:
        """The temporal half of a layer whose state does not cross ranks (or a weight, which evolves everywhere)."""
        layer = require_kind(self._layer(step), DynamicLayer)  # type: ignore[type-abstract]
        recurrence = self.stage.recurrences[step.layer]
        if isinstance(layer, Evolving):
            return self._evolve(layer, step, unit, local)
        self._note_state(unit, step)
        state = recurrence.enter(self.block, self.chunk, self.count)
        frames = [self._frames_tensor(step.x, local[step.x])]
        if step.beside is not None:
            frames.append(self._frames_tensor(step.beside, local[step.beside]))
        out, after = layer.recur(frames, tuple(state), self.steps.start)
        recurrence.leave(self.chunk, after)
        return out.flatten(0, 1)

    def _evolve(self, layer: Evolving, step: Step, unit: Unit, local: Mapping[Ref, Tensor]) -> Tensor:
        """The weights of the own steps; where no state crosses ranks, from the block's first step on."""
        recurrence, steps = self.stage.recurrences[step.layer], self.evolved_steps()
        self._note_state(unit, step)
        state = recurrence.enter(self.block, self.chunk, self.count)
        summaries = self._summaries(layer, step, local, len(steps))
        weights, after = layer.recur([summaries], tuple(state), steps.start)
        recurrence.leave(self.chunk, after)
        first = self.steps.start - steps.start
        return weights[first : first + len(self.steps)] if len(steps) > len(self.steps) else weights

    def _note_state(self, unit: Unit, step: Step) -> None:
        """Remember which states backward through a unit goes through."""
        if torch.is_grad_enabled():
            self._states.setdefault(unit.index, []).append(step.layer)

    def _summaries(self, layer: Evolving, step: Step, local: Mapping[Ref, Tensor], steps: int) -> Tensor:
        if step.message is None:
            return torch.empty(steps, layer.in_channels, 0, dtype=self.stage.dtype, device=self.stage.device)
        candidates = local[step.message]
        if self.stage.facts.parts == 1:
            return candidates
        summary = require(layer.summary, "a layer's summary")
        return torch.stack([summary.merge(rows) for rows in candidates.view(steps, -1, layer.in_channels).unbind()])

    def evolved_steps(self) -> range:
        """Give the steps over which a weight evolves on this rank, where no state crosses ranks."""
        facts = self.stage.facts
        if facts.layout.time == 1 or not facts.timeline:
            return self.steps
        every = facts.steps(self.block)
        if self.block < facts.blocks - 1:
            return every
        return range(every.start, self.steps.stop) if self.steps else range(0)

    def _evolve_alone(self, step: Step, unit: Unit) -> None:
        """Without steps of its own a rank lets weights evolve all the same, so that the next block finds them."""
        layer = self._layer(step) if step.kind is HalfKind.TEMPORAL else None
        if isinstance(layer, Evolving) and self.stage.facts.layers[step.layer].along == NONE and self.evolved_steps():
            self._evolve(layer, step, unit, {})

    def _output(self, step: Step, unit: Unit, local: Mapping[Ref, Tensor]) -> None:
        """The outputs, or the loss of them."""
        x = local[step.x]
        steps = len(self.steps)
        if self.evaluates:
            self.output = x.detach().view(steps, -1, x.shape[-1])
        if self.stage.loss is None or self.evaluates:
            return
        frames: Frames
        if step.fetched:
            lengths = self.fetched
            frames = list(torch.split(x, list(lengths)))
        else:
            frames = x.view(steps, self.count, -1)
        value = self.stage.loss(frames, self.rows, self.steps.start)
        self.losses.append(value.detach())
        if torch.is_grad_enabled():
            self._roots[unit.index], self._loss_dtype = root_of(value), value.dtype

    # Backward

    def backward(self, unit: Unit) -> None:
        """Back through a unit; the gradients of what it read are then with the values."""
        boards = self.stage.boards
        # without steps there are no rows, only the states of weights that evolve all the same
        roots = self._roots_of(unit) if self.steps else []
        layers = self._states.pop(unit.index, [])
        for layer in layers:
            roots += self.stage.recurrences[layer].roots(self.chunk)  # type: ignore[arg-type]
        if roots:
            run_backward(roots)
        for layer in layers:
            self.stage.recurrences[layer].finish(self.block, self.chunk)
        for step in unit.steps:
            if step.board and step.kind is HalfKind.COMBINE and boards is not None and unit.index in self._readings:
                boards.collect(step.layer, self.cell_rows, self._readings.pop(unit.index))
        for ref in unit.writes:
            self.values.pop(ref, None)
        if self.stage.packed is not None:
            self.stage.packed.forget()

    def _roots_of(self, unit: Unit) -> list[tuple[GradientEdge, Tensor]]:
        """Where backward through a unit begins, each with its gradient; states come in addition."""
        last = unit.steps[-1]
        roots = []
        if last.kind is HalfKind.PREPARE and last.board and self.stage.boards is not None:
            roots += self._message_root(unit, last)
        elif last.kind is HalfKind.OUTPUT and unit.index in self._roots:
            root = self._roots.pop(unit.index)
            if root is not None:
                roots.append((root, torch.ones((), dtype=self._loss_dtype, device=self.stage.device)))
        for ref in unit.writes:
            value = self.values[ref]
            if value.root is not None and value.reading.gradient is not None:
                roots.append((value.root, value.reading.gradient))
        return roots

    def _message_root(self, unit: Unit, step: Step) -> list[tuple[GradientEdge, Tensor]]:
        """Where backward through `prepare` begins, with the gradient of the message rows on the board.

        A message that is the rows themselves has no beginning of its own: its gradient is one more of the rows'.
        """
        boards = require(self.stage.boards, "the board of messages")
        root = self._roots.pop(unit.index, None)
        value = self.values[step.x]
        if root is None and not value.trained:
            return []
        total = boards.gradient_of(step.layer, self.rows)
        if root is not None:
            return [(root, total)]
        value.reading.add(total)
        return []

    # What layers are told

    def _layer(self, step: Step) -> AnyLayer:
        return self.stage.layers[step.layer]

    def _is_fixed(self, ref: Ref) -> bool:
        """Say whether a value is the data's features where they are the same in all steps, [rows, features]."""
        return ref == ("x", -1) and self.stage.facts.fixed and 0 in self.stage.layers and self.stage.facts.timeline

    def _spread(self, rows: Tensor) -> Tensor:
        """Rows that are the same in all steps, as [steps · rows, channels]."""
        return rows.expand(len(self.steps), *rows.shape).flatten(0, 1)

    def _frames(self, ref: Ref, x: Tensor) -> Sequence[Tensor]:
        """A value step by step. (Unbind, since the gradient of x[t] would be as large as x for every t.)"""
        if self._is_fixed(ref):
            return [x] * len(self.steps)
        return x.view(len(self.steps), -1, x.shape[-1]).unbind()

    def _frames_tensor(self, ref: Ref, x: Tensor) -> Tensor:
        """A value as [steps, rows, channels]."""
        if self._is_fixed(ref):
            return x.expand(len(self.steps), *x.shape)
        return x.view(len(self.steps), -1, x.shape[-1])

    def _aggregated(self) -> Tensor:
        """Â·x of the first layer, as it is kept: [steps, rows, features]."""
        kept = self.stage.shard.aggregated(self.steps)
        if kept is None:
            raise RuntimeError("internal error: the plan keeps the first aggregation and the shard has none")
        return kept if self.count == kept.shape[1] else kept[:, self.rows]

    def _identities(self) -> list[Adjacency]:
        return [_identity(self.count, self.stage.device)] * len(self.steps)

    def _contexts(self, number: int, shared: Mapping[str, Tensor], *, columns: bool = False) -> list[Context]:
        """What a layer may read besides its input, at each step."""
        steps = len(self.steps)
        if steps == 1:
            per_step = [shared]
        else:
            frames = {name: rows.view(steps, self.count, -1).unbind() for name, rows in shared.items()}
            per_step = [{name: rows[t] for name, rows in frames.items()} for t in range(steps)]
        if self.noise is None:
            return [Context(None, values) for values in per_step]
        contexts = []
        for t, step in enumerate(self.steps):
            noise = self.noise.at(layer=number, step=step)
            ids = self._column_ids(t) if columns else None
            contexts.append(Context(noise, per_step[t], None if ids is None else noise.at(vertices=ids)))
        return contexts

    def _column_ids(self, step: int) -> Tensor | None:
        """The user's ids of what a piece reads at a step; None where only the own rows' are known."""
        ids = self.stage.shard.column_ids(self.steps[step])
        reads = self.cell_rows.reads[step]
        return ids if ids is None or reads is None else ids[reads]


@lru_cache(maxsize=4)
def _identity(rows: int, device: torch.device) -> Adjacency:
    """A matrix whose sums are the rows themselves."""
    index = torch.arange(rows + 1, device=device)
    return Adjacency(index[:-1], index[1:], index[:-1].to(torch.int32), None, rows)
