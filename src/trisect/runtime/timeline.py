"""A timeline under any cut by time, blocks, vertex and layer: the handlers that do a rank's actions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import Parameter

from trisect.nn.base import Layer
from trisect.nn.dynamic import DynamicLayer, SpatialTemporal
from trisect.nn.evolving import Evolving
from trisect.noise import Noise
from trisect.runtime.exchange import Exchange, Incoming
from trisect.runtime.executor import Executor, Handler
from trisect.runtime.timeline_evolving import EvolvingWork
from trisect.runtime.timeline_layer import LayerWork, SpatialTemporalWork
from trisect.runtime.timeline_output import Loss, OutputWork, Readers
from trisect.runtime.timeline_part import TimelinePart
from trisect.runtime.timeline_visit import Visit, known
from trisect.schedule.action import Action, Half, Kind, Phase
from trisect.schedule.timeline import TimelinePlan, timeline_schedule


class TimelineRank:
    """One rank's tensors, and what it does with them for each kind of action.

    Args:
        layers: of the whole model; those of other stages may lie on the meta device.
        head: of the last stage (see `DynamicModel`).
        bounds: stage s has the layers bounds[s] .. bounds[s+1]-1.
        part: this rank's rows and steps.
        plan: from `plan_of`.
        loss: loss(frames [steps, rows, channels], first step) of own steps and rows; their sum over runs and ways is
            the run's loss. With `readers` frames is a list, a tensor [rows + fetched, channels] a step.
        readers: readers(step, noise)[reader][owner] are the positions among the owner way's rows that the reader way
            wants of that step's output, int64, the same on all ways. They stand after the own rows, in the order of
            owners. Only asked where the plan `fetches`.
        extra: further parameters of the last stage (the task's decoder), reduced with the others.
    """

    def __init__(
        self,
        layers: Sequence[DynamicLayer],
        head: Layer | None,
        bounds: Sequence[int],
        part: TimelinePart,
        plan: TimelinePlan,
        exchange: Exchange,
        loss: Loss,
        *,
        dtype: torch.dtype = torch.float32,
        readers: Readers | None = None,
        extra: Sequence[Parameter] = (),
    ) -> None:
        self.exchange, self.mesh, self.part, self.plan, self.dtype = exchange, exchange.mesh, part, plan, dtype
        layout, stage = self.mesh.layout, self.mesh.stage
        self.is_first, self.is_last = stage == 0, stage == layout.layer - 1
        self.top = OutputWork(head, loss, readers, exchange, part.rows)
        self.works: list[LayerWork] = []
        for number in range(bounds[stage], bounds[stage + 1]):
            reads = layout.vertex > 1 and not (number == 0 and plan.aggregated)
            work = _work_of(layers[number])(layers[number], number, plan, part, exchange, dtype, reads=reads)
            if isinstance(work, EvolvingWork):
                work.candidates_of = [min(rows, work.layer.out_channels) for rows in plan.rows]
            self.works.append(work)
        self._in_width, self._out_width = self.works[0].layer.in_channels, self.works[-1].layer.out_channels
        trained = [p for work in self.works for p in work.layer.parameters()]
        if self.is_last:
            trained += ([] if head is None else list(head.parameters())) + list(extra)
        self._parameters = [p for p in trained if p.requires_grad]
        self._training = plan
        self._begun(None, (), train=False)

    def begin(self, noise: Noise | None, actions: Sequence[Action], *, train: bool) -> None:
        """Begin an epoch of `timeline_schedule(layout, plan).ranks[rank]`."""
        self._begun(noise, actions, train=train)
        self._reach(0)

    def _begun(self, noise: Noise | None, actions: Sequence[Action], *, train: bool) -> None:
        self.noise = None if noise is None else replace(noise, vertices=self.part.vertices)
        self.train, self.losses = train, list[Tensor]()
        self._visit: Visit | None = None
        self._inputs: dict[int, Tensor] = {}
        self._posted: dict[Action, Incoming] = {}
        self._reached = -1
        self._coming: dict[int, list[Action]] = {}
        for action in actions:
            if action.incoming:
                self._coming.setdefault(self._turn(action), []).append(action)
        self._given: dict[int, list[tuple[tuple[int, ...], Tensor]]] = {}
        self._hidden = False
        self.top.drop()
        for work in self.works:
            work.clear(keeps=train)

    def handlers(self) -> dict[Kind, Handler]:
        """For the executor. (Steps belong to whoever holds the optimiser.)"""
        return {
            Kind.FORWARD: self._forward,
            Kind.RECOMPUTE: self._forward,
            Kind.BACKWARD: self._backward,
            Kind.SEND: self._send,
            Kind.RECEIVE: self._receive,
            Kind.HALO: self._halo,
            Kind.CARRY: self._carry,
            Kind.REDISTRIBUTE: self._redistribute,
            Kind.REDUCE: self._reduce,
        }

    def finish(self) -> Tensor:
        """End an epoch: all messages have left. Gives this rank's part of the loss."""
        self.exchange.flush()
        found = torch.stack(self.losses).sum() if self.losses else torch.zeros((), dtype=self.dtype)
        self._begun(None, (), train=False)
        return found

    def outputs(self, steps: range, *, hidden: bool = False) -> Iterator[tuple[int, Tensor]]:
        """Exact outputs of this rank's own steps and rows, a run at a time: (first step, [steps, rows, channels]).

        The timeline is run from its first step on, since state is carried. All ranks must go through to the end; only
        those of the last stage yield anything. With `hidden`, what the head reads instead.
        """
        self.plan = replace(self._training, runs=self.part.runs_until(steps.stop), fetches=False)
        try:
            actions = timeline_schedule(self.mesh.layout, self.plan, train=False).ranks[self.mesh.rank]
            self.begin(None, actions, train=False)
            self._hidden = hidden
            executor = Executor(self.handlers())
            for _, group in groupby(actions, key=self._own_block):
                executor.run(list(group))
                if self.top.result is not None:
                    first, frames = known(self._visit).run.start, self.top.result
                    self.top.drop()
                    skip = max(0, steps.start - first)
                    if skip < len(frames):
                        yield first + skip, frames[skip:]
            self.finish()
        finally:
            self.plan = self._training

    def _own_block(self, action: Action) -> int:
        """The block in which this rank does an action of a pass forward (a state handed on bears the receiver's)."""
        if action.kind is Kind.CARRY and not action.incoming and self._works(action).along == "carry":
            return known(self.plan.before(known(action.block), self._moment_of(action)))[0]
        return known(action.block)

    def _moment_of(self, action: Action) -> int:
        """The moment of an action's peer."""
        return known(action.peer) // (self.mesh.layout.layer * self.mesh.layout.vertex)

    # When what is done

    def _turn(self, action: Action) -> int:
        """Blocks in the order in which they are gone through: forward 0, 1, …, then backward in reverse."""
        block = known(action.block)
        back = action.phase is Phase.BACKWARD or action.kind in (Kind.BACKWARD, Kind.RECOMPUTE)
        return 2 * self.plan.blocks - 1 - block if back else block

    def _reach(self, turn: int) -> None:
        """A turn begins: receives of the next one are posted, and what left two turns ago need not be held."""
        if turn <= self._reached:
            return
        for soon in range(self._reached + 1, turn + 2):
            for action in self._coming.pop(soon, []):
                self._posted[action] = self._post(action)
        self._reached = turn
        self.exchange.flush(turn - 2)

    def _post(self, action: Action) -> Incoming:
        back = action.phase is Phase.BACKWARD
        steps, rows = len(self.plan.runs[known(action.block)][self.mesh.moment]), self.part.rows
        peer, tag = known(action.peer), self._tag(action)
        if action.kind is Kind.RECEIVE:
            return self.exchange.receive(
                steps * rows, self._out_width if back else self._in_width, self.dtype, peer, tag
            )
        work = self._works(action)
        if work.along == "halo":
            count, width = len(self._window_steps(action)), work.recurrence.packing.shape(0)[1]
            return self.exchange.receive(count * rows, width, self.dtype, peer, tag)
        size, width = work.recurrence.packing.shape(self._chunk_rows(work, action))
        return self.exchange.receive(size, width, self.dtype, peer, tag, wire="float32")

    def _tag(self, action: Action) -> int:
        """A number that only this message has between its two ranks; 0 is for exchanges at once."""
        number = (0 if action.kind is Kind.CARRY else 2) + (1 if action.phase is Phase.BACKWARD else 0)
        for value, size in (
            (known(action.block), self.plan.blocks),
            (action.layer or 0, len(self.plan.layers)),
            (action.chunk, max(1, self.plan.chunks)),
        ):
            number = number * size + value
        return number + 1

    def _works(self, action: Action) -> LayerWork:
        return self.works[known(action.layer)]

    @staticmethod
    def _chunk_rows(work: LayerWork, action: Action) -> int:
        return work.bounds[action.chunk + 1] - work.bounds[action.chunk]

    def _enter(self, action: Action) -> Visit:
        """The block of a forward pass, or of its recomputation: all that goes forward once backward has begun."""
        block = known(action.block)
        again = action.kind is Kind.RECOMPUTE or self._reached >= self.plan.blocks
        self._reach(2 * self.plan.blocks - 1 - block if again else block)
        visit = self._visit
        if visit is None or visit.block != block or (again and not visit.grad):
            grad = self.train and (again or block == self.plan.blocks - 1)
            for work in self.works:
                work.drop()
            visit = self._visit = Visit(self.plan, self.part, block, self.mesh.moment, grad, self.noise)
        return visit

    def _begin_layer(self, action: Action) -> LayerWork:
        """The layer of an action of a forward pass, with its input."""
        visit, work, k = self._enter(action), self._works(action), known(action.layer)
        if work.visit is not visit:
            if k > 0:
                x = self.works[k - 1].out
                if not visit.grad:
                    self.works[k - 1].drop()
            elif not visit.run and not self.plan.fixed:
                x = None
            else:
                x = self.part.features(visit.run) if self.is_first else self._inputs.get(visit.block)
            if x is None:
                x = torch.empty(0, self.part.rows, work.layer.in_channels, dtype=self.dtype, device=self.mesh.device)
            work.begin(visit, x)
        return work

    # Halves

    def _forward(self, action: Action) -> None:
        visit = self._enter(action)
        with torch.set_grad_enabled(visit.grad):
            if action.half is Half.OUTPUT:
                self.top.forward(visit, known(self.works[-1].out), hidden=self._hidden)
            if action.half is Half.LOSS or (action.half is Half.OUTPUT and self.train and not self._fetches):
                self.top.lose(visit)
            elif action.half is not Half.OUTPUT:
                work = self._begin_layer(action)
                if action.half is Half.PREPARE:
                    work.prepare()
                elif action.half is Half.SPATIAL:
                    work.spatial()
                elif action.half is Half.SUMMARY and isinstance(work, EvolvingWork):
                    work.summary()
                else:
                    self._temporal(work, action)

    def _temporal(self, work: LayerWork, action: Action) -> None:
        if work.along == "halo" and action.kind is Kind.FORWARD and isinstance(work, SpatialTemporalWork):
            work.window(self._given.pop(known(action.layer), []))
            work.temporal(action.chunk)
            work.remember()
        else:
            work.temporal(action.chunk)

    @property
    def _fetches(self) -> bool:
        return self.plan.fetches and self.mesh.layout.vertex > 1

    def _backward(self, action: Action) -> None:
        self._reach(self._turn(action))
        if action.half is Half.LOSS or (action.half is Half.OUTPUT and not self._fetches):
            self.losses.append(self.top.loss_back())
        if action.half is Half.OUTPUT:
            self.works[-1].d_out = self.top.back()
        elif action.half is not Half.LOSS:
            work = self._gradient_of(action)
            if action.half is Half.PREPARE:
                work.prepare_back()
            elif action.half is Half.SPATIAL:
                work.spatial_back()
            elif action.half is Half.SUMMARY and isinstance(work, EvolvingWork):
                work.summary_back()
            else:
                work.temporal_back(action.chunk)

    def _gradient_of(self, action: Action) -> LayerWork:
        """The layer of an action of a backward pass; the gradient of its output is that of the next one's input."""
        k = known(action.layer)
        work = self.works[k]
        if k + 1 < len(self.works) and self.works[k + 1].visit is not None:
            work.d_out = self.works[k + 1].take_gradient()
        return work

    # Transfers

    def _send(self, action: Action) -> None:
        if action.phase is Phase.FORWARD:
            x, kind = known(self.works[-1].out), "activations"
        else:
            work = self.works[0]
            gradient, kind = work.take_gradient(), "gradients"
            x = known(gradient)
            self._inputs.pop(known(action.block), None)
        self.exchange.send(
            x.flatten(0, 1),
            known(action.peer),
            self._tag(action),
            "layer",
            kind,
            self._key(action),
            mark=self._turn(action),
        )

    def _receive(self, action: Action) -> None:
        self._reach(self._turn(action))
        steps = len(self.plan.runs[known(action.block)][self.mesh.moment])
        x = self._posted.pop(action).wait().view(steps, self.part.rows, -1)
        if action.phase is Phase.FORWARD:
            if not self.train:
                self._inputs.clear()
            self._inputs[known(action.block)] = x
        else:
            self.works[-1].d_out = x

    def _key(self, action: Action) -> int:
        return 0 if self.noise is None else self.noise.at(step=known(action.block)).key(str(action))

    def _halo(self, action: Action) -> None:
        forward = action.phase is Phase.FORWARD
        if action.half is Half.OUTPUT and forward:
            self.top.fetch(known(self._visit), self._key(action))
            return
        if action.half is Half.OUTPUT:
            self.top.return_rows(self._key(action))
            return
        work = self._works(action)
        if action.half is Half.SUMMARY and isinstance(work, EvolvingWork):
            (work.share_candidates if forward else work.return_candidates)()
        elif forward:
            work.share_rows()
        else:
            work.return_rows()

    def _carry(self, action: Action) -> None:
        work = self._works(action)
        if work.along == "halo" and isinstance(work, SpatialTemporalWork):
            self._carry_frames(work, action)
            return
        recurrence, chunk, block = work.recurrence, action.chunk, known(action.block)
        states = recurrence.after if action.phase is Phase.FORWARD else recurrence.wanted
        if action.incoming:
            self._reach(self._turn(action))
            state = recurrence.packing.unpack(self._posted.pop(action).wait(), self._chunk_rows(work, action))
            if action.phase is Phase.FORWARD:
                recurrence.before[block, chunk] = state
            else:
                recurrence.wanted[chunk] = state
            return
        self.exchange.send(
            recurrence.packing.pack(states.pop(chunk)),
            known(action.peer),
            self._tag(action),
            "time",
            "carry",
            wire="float32",
            mark=self._turn(action),
        )

    def _window_steps(self, action: Action) -> tuple[int, ...]:
        """Of a message along a window, the steps whose frames (or their gradients) it has."""
        reads = action.incoming == (action.phase is Phase.FORWARD)
        reader, owner = self._moment_of(action), self.mesh.moment
        if reads:
            reader, owner = owner, reader
        window = self.plan.layers[self._works(action).number].window
        return self.plan.read_before(known(action.block), reader, owner, window)

    def _carry_frames(self, work: SpatialTemporalWork, action: Action) -> None:
        steps, k = self._window_steps(action), known(action.layer)
        if action.phase is Phase.FORWARD:
            self._begin_layer(action)
            if action.incoming:
                self._given.setdefault(k, []).append((steps, self._posted.pop(action).wait()))
                return
            message = work.frames_for(steps)
        elif action.incoming:
            self._reach(self._turn(action))
            for step, gradient in zip(steps, self._posted.pop(action).wait().chunk(len(steps)), strict=True):
                work.owe(step, gradient)
            return
        else:
            gradient = known(work.d_window)
            first = work.at.run.start - gradient.shape[0]
            message = torch.cat([gradient[step - first] for step in steps])
        self.exchange.send(
            message,
            known(action.peer),
            self._tag(action),
            "time",
            "halo",
            self._key(action),
            mark=self._turn(action),
        )

    def _redistribute(self, action: Action) -> None:
        if action.phase is Phase.FORWARD:
            work = self._begin_layer(action)
        else:
            self._reach(self._turn(action))
            work = self._gradient_of(action)
        if not isinstance(work, SpatialTemporalWork):
            raise RuntimeError(f"{action}: the layer's state is a weight, which is not redistributed")
        if action.phase is Phase.FORWARD:
            (work.to_share if action.half is Half.SPATIAL else work.from_share)()
        else:
            (work.gradient_from_share if action.half is Half.SPATIAL else work.gradient_to_share)()

    def _reduce(self, action: Action) -> None:
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.exchange.reduce_gradients([p.grad for p in self._parameters if p.grad is not None])


def _work_of(layer: DynamicLayer) -> type[LayerWork]:
    if isinstance(layer, SpatialTemporal):
        return SpatialTemporalWork
    if isinstance(layer, Evolving):
        return EvolvingWork
    raise TypeError(f"{layer} is neither a SpatialTemporal nor an Evolving layer; a timeline is cut through these")
