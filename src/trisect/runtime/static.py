"""A static graph under any cut by vertex and layer: the handlers that do a rank's actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from trisect.nn.base import Layer
from trisect.noise import Noise
from trisect.partition.halo import Share
from trisect.runtime.exchange import Exchange, Incoming
from trisect.runtime.executor import Handler
from trisect.runtime.stage import Stage
from trisect.schedule.action import Action, Kind, Phase

Loss = Callable[[Tensor, slice], Tensor]


def shared_across(layers: Sequence[Layer], boundary: int) -> tuple[str, ...]:
    """The shared inputs that cross the boundary before layer `boundary`: written before it, read at or after it."""
    written = {layer.writes for layer in layers[:boundary] if layer.writes is not None}
    read = {name for layer in layers[boundary:] for name in layer.reads}
    return tuple(sorted(written & read))


def shared_widths(layers: Sequence[Layer]) -> dict[str, int]:
    """How wide each shared input is."""
    return {layer.writes: layer.out_channels for layer in layers if layer.writes is not None}


class StaticRank:
    """One rank's tensors, and what it does with them for each kind of action.

    Args:
        layers: of the whole model; `bounds` says where stages begin: stage s has layers bounds[s] .. bounds[s+1]-1.
        share: this rank's part.
        features: [rows, features] of the part, needed by stage 0 alone.
        vertices: the user's ids of the part's rows.
        loss: of the last stage's output rows; their sum over chunks and parts is the run's loss.
        scale, fixed: of history (see `Stage`).
        extra: further parameters of the last stage (the task's decoder), reduced with the others.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        bounds: Sequence[int],
        share: Share,
        features: Tensor | None,
        vertices: Tensor,
        exchange: Exchange,
        loss: Loss,
        *,
        scale: float = 1.0,
        fixed: bool = False,
        dtype: torch.dtype = torch.float32,
        extra: Sequence[Parameter] = (),
    ) -> None:
        self.exchange, self.mesh = exchange, exchange.mesh
        stage = self.mesh.stage
        first, last = bounds[stage], bounds[stage + 1]
        self.stage = Stage(layers[first:last], first, share, vertices, scale=scale, fixed=fixed)
        self.share, self.features, self.loss, self.dtype = share, features, loss, dtype
        self._extra = list(extra)
        self.is_first, self.is_last = stage == 0, stage == self.mesh.layout.layer - 1
        widths = shared_widths(layers)
        self._enters = () if self.is_first else shared_across(layers, first)
        self._leaves = () if self.is_last else shared_across(layers, last)
        self._in_widths = [layers[first].in_channels, *(widths[name] for name in self._enters)]
        self._out_widths = [layers[last - 1].out_channels, *(widths[name] for name in self._leaves)]
        self.losses: list[Tensor] = []
        self._gradient: dict[int, Tensor | None] = {}
        self._posted: dict[tuple[Phase, int], Incoming] = {}
        self.train = True

    def handlers(self) -> Mapping[Kind, Handler]:
        """For the executor. (Steps belong to whoever holds the optimiser.)"""
        return {
            Kind.FORWARD: self._forward,
            Kind.BACKWARD: self._backward,
            Kind.SEND: self._send,
            Kind.RECEIVE: self._receive,
            Kind.HALO: self._halo,
            Kind.REDUCE: self._reduce,
        }

    def begin(self, noise: Noise | None, actions: Sequence[Action], *, whole: bool, train: bool) -> None:
        """Begin an epoch: post every receive at once, since their shapes are known."""
        self.train = train
        self.losses.clear()
        self.stage.begin(noise, whole=whole, aside=not train)
        for action in actions:
            if action.kind is Kind.RECEIVE and action.phase is not None and action.peer is not None:
                rows = self.stage.rows_of(action.chunk)
                width = sum(self._in_widths if action.phase is Phase.FORWARD else self._out_widths)
                tag = self._tag(action)
                incoming = self.exchange.receive(rows.stop - rows.start, width, self.dtype, action.peer, tag)
                self._posted[action.phase, action.chunk] = incoming

    def finish(self) -> Tensor:
        """End an epoch: all messages have left. Gives this rank's part of the loss."""
        self.exchange.flush()
        return torch.stack(self.losses).sum() if self.losses else torch.zeros((), dtype=self.dtype)

    def _tag(self, action: Action) -> int:
        return action.chunk * 2 + (0 if action.phase is Phase.FORWARD else 1)

    def _segments(self, action: Action) -> range:
        if action.layer is not None:
            return range(action.layer, action.layer + 1)
        return range(len(self.stage.segments))

    def _forward(self, action: Action) -> None:
        with torch.set_grad_enabled(self.train):
            for segment in self._segments(action):
                if segment == 0 and self.is_first:
                    if self.features is None:
                        raise RuntimeError("the first stage has no features")
                    rows = self.stage.rows_of(action.chunk)
                    self.stage.enter(action.chunk, self.features[rows], {}, trained=False)
                self.stage.forward(action.chunk, segment)

    def _backward(self, action: Action) -> None:
        for segment in reversed(self._segments(action)):
            loss, gradient = None, None
            if segment == len(self.stage.segments) - 1:
                if self.is_last:
                    output, _ = self.stage.output(action.chunk)
                    loss = self.loss(output, self.stage.rows_of(action.chunk))
                    self.losses.append(loss.detach())
                else:
                    gradient = self._gradient.pop(action.chunk)
            self.stage.backward(action.chunk, segment, gradient, loss)
        if self.is_first and 0 in self._segments(action):
            self.stage.leave(action.chunk)

    def _send(self, action: Action) -> None:
        if action.peer is None:
            raise RuntimeError(f"{action} names no peer")
        if action.phase is Phase.FORWARD:
            output, shared = self.stage.output(action.chunk)
            tensors = [output.detach(), *(shared[name].detach() for name in self._leaves)]
        else:
            gradient, of_shared = self.stage.leave(action.chunk)
            rows = self.stage.rows_of(action.chunk)
            given = [gradient, *(of_shared[name] for name in self._enters)]
            tensors = [
                torch.zeros(rows.stop - rows.start, width, dtype=self.dtype) if g is None else g
                for g, width in zip(given, self._in_widths, strict=True)
            ]
        message = tensors[0] if len(tensors) == 1 else torch.cat(tensors, 1)
        key = 0 if self.stage.noise is None else self.stage.noise.at(layer=action.chunk).key(str(action))
        kind = "activations" if action.phase is Phase.FORWARD else "gradients"
        self.exchange.send(message, action.peer, self._tag(action), "layer", kind, key)

    def _receive(self, action: Action) -> None:
        if action.phase is None:
            raise RuntimeError(f"{action} has no phase")
        rows = self._posted.pop((action.phase, action.chunk)).wait()
        if action.phase is Phase.FORWARD:
            x, *shared = torch.split(rows, self._in_widths, 1)
            named = dict(zip(self._enters, shared, strict=True))
            self.stage.enter(action.chunk, x.contiguous(), named, trained=self.train)
            return
        gradient, *of_shared = torch.split(rows, self._out_widths, 1)
        self._gradient[action.chunk] = gradient.contiguous()
        shared_inputs = self.stage.visits[action.chunk].shared
        for name, value in zip(self._leaves, of_shared, strict=True):
            leaf = shared_inputs[name]
            leaf.grad = value.contiguous() if leaf.grad is None else leaf.grad + value

    def _halo(self, action: Action) -> None:
        if action.layer is None:
            raise RuntimeError(f"{action} names no layer")
        chunks = range(len(self.share.chunk_rows) - 1) if self.stage.whole else (action.chunk,)
        sends = [_join([rows[c] for c in chunks]) for rows in self.share.send]
        bounds = [(chunks_of[chunks[0]][0], chunks_of[chunks[-1]][1]) for chunks_of in self.share.receive]
        forward = action.phase is Phase.FORWARD
        tensors = self.stage.buffers if forward else self.stage.gradients
        rows = tensors[action.layer]
        if rows is None:
            raise RuntimeError(f"{action} has nothing to exchange")
        key = 0 if self.stage.noise is None else self.stage.noise.at(layer=action.layer).key(str(action))
        own, width = self.share.rows, rows.shape[1]
        if forward:
            outgoing = [rows.index_select(0, send) for send in sends]
            counts = [high - low for low, high in bounds]
            for (low, high), received in zip(
                bounds, self.exchange.swap(outgoing, counts, width, rows.dtype, "halo", key), strict=True
            ):
                if high > low:
                    rows[own + low : own + high] = received
            return
        outgoing = [rows[own + low : own + high] for low, high in bounds]
        counts = [send.numel() for send in sends]
        for send, received in zip(
            sends, self.exchange.swap(outgoing, counts, width, rows.dtype, "halo-gradients", key), strict=True
        ):
            if send.numel():
                rows.index_add_(0, send, received)

    def _reduce(self, action: Action) -> None:
        parameters = [p for layer in self.stage.layers for p in layer.parameters() if p.requires_grad]
        parameters += self._extra if self.is_last else []
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.exchange.reduce_gradients([p.grad for p in parameters if p.grad is not None])


def _join(pieces: Sequence[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))
