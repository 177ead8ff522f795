"""A static graph under any cut by vertex and layer: the handlers that do a rank's actions."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import Parameter

from trisect.nn.base import Layer
from trisect.noise import Noise
from trisect.ops.aggregate import aggregate
from trisect.ops.collect import add_rows
from trisect.partition.halo import Share
from trisect.runtime.exchange import Exchange, Incoming, Rows, Shape, Swap
from trisect.runtime.executor import Handler
from trisect.runtime.ledger import Ledger
from trisect.runtime.stage import Loss, Stage
from trisect.runtime.staleness import DriftMeter
from trisect.runtime.visit import segments_of
from trisect.schedule.action import Action, Kind, Phase, Side
from trisect.schedule.simulate import exchange_of

# So many messages of a rank may be on their way in each direction; their buffers are held.
AHEAD = 8
# So many may lie in mapped memory that the next stage has not done with.
UNREAD = 4


def shared_across(layers: Sequence[Layer], boundary: int) -> tuple[str, ...]:
    """The shared inputs that cross the boundary before layer `boundary`: written before it, read at or after it."""
    written = {layer.writes for layer in layers[:boundary] if layer.writes is not None}
    read = {name for layer in layers[boundary:] for name in layer.reads}
    return tuple(sorted(written & read))


def shared_widths(layers: Sequence[Layer]) -> dict[str, int]:
    """How wide each shared input is."""
    return {layer.writes: layer.out_channels for layer in layers if layer.writes is not None}


def is_known(layer: Layer) -> bool:
    """Whether a model's first layer needs no exchange: Â·x of the features is computed once, before the first epoch."""
    return layer.spatial and layer.preaggregates


def exchanges_of(layers: Sequence[Layer], bounds: Sequence[int]) -> list[int]:
    """How many times in a pass the rows of each stage read neighbours."""
    known = is_known(layers[0])
    return [len(segments_of(layers[a:b], known=known and a == 0)) - 1 for a, b in pairwise(bounds)]


class StaticRank:
    """One rank's tensors, and what it does with them for each kind of action.

    Args:
        layers: of the whole model; `bounds` says where stages begin: stage s has layers bounds[s] .. bounds[s+1]-1.
        share: this rank's part.
        features: [rows, features] of the part, needed by stage 0 alone.
        vertices: the user's ids of the part's rows.
        loss: of the last stage's output rows; their sum over chunks and parts is the run's loss.
        scale, stale, apart, drift: of history (see `Stage`).
        extra: further parameters of the last stage (the task's decoder), reduced with the others.
        halo_vertices: the user's ids of the share's halo rows, where a layer draws numbers for pairs of vertices.
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
        stale: bool = True,
        apart: bool = False,
        dtype: torch.dtype = torch.float32,
        extra: Sequence[Parameter] = (),
        halo_vertices: Tensor | None = None,
        drift: DriftMeter | None = None,
    ) -> None:
        self.exchange, self.mesh = exchange, exchange.mesh
        stage = self.mesh.stage
        first, last = bounds[stage], bounds[stage + 1]
        self.share, self.features, self.loss, self.dtype = share, features, loss, dtype
        self._send_rows: dict[range, list[Tensor]] = {}
        self._swaps: dict[tuple[object, ...], Swap] = {}
        aggregated = None
        if stage == 0 and features is not None and is_known(layers[0]):
            aggregated = self._aggregate_features(features)
        ids = vertices if halo_vertices is None else torch.cat([vertices, halo_vertices])
        self.stage = Stage(
            *(layers[first:last], first, share, ids),
            scale=scale,
            stale=stale,
            apart=apart,
            dtype=dtype,
            aggregated=aggregated,
            drift=drift,
        )
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
        self._to_post: deque[Action] = deque()
        self._sent = 0
        self.train = True

    def handlers(self) -> Mapping[Kind, Handler]:
        """For the executor. (Steps belong to whoever holds the optimiser.)"""
        return {
            Kind.FORWARD: self._forward,
            Kind.BACKWARD: self._backward,
            Kind.SEND: self._send,
            Kind.RECEIVE: self._receive,
            Kind.POST: self._post,
            Kind.HALO: self._halo,
            Kind.REDUCE: self._reduce,
        }

    def begin(
        self,
        noise: Noise | None,
        actions: Sequence[Action],
        *,
        whole: bool,
        train: bool,
        aside: bool | None = None,
        keep: float | None = 0.0,
    ) -> None:
        """Begin an epoch, or a pass: the first receives are posted at once, since their shapes are known.

        Args:
            aside, keep: what becomes of history (see `Stage.begin`); by default only training changes it.
        """
        self.train = train
        self.losses.clear()
        self.stage.begin(noise, whole=whole, aside=not train if aside is None else aside, keep=keep)
        self._to_post = deque(action for action in actions if action.kind is Kind.RECEIVE)
        for _ in range(AHEAD):
            self._post_receive()

    def _post_receive(self) -> None:
        """Post the next receive of the epoch that has rows."""
        while self._to_post:
            action = self._to_post.popleft()
            rows = self.stage.rows_of(action.chunk)
            if rows.stop == rows.start or action.phase is None or action.peer is None:
                continue
            width = sum(self._in_widths if action.phase is Phase.FORWARD else self._out_widths)
            incoming = self.exchange.receive(rows.stop - rows.start, width, self.dtype, action.peer, self._tag(action))
            self._posted[action.phase, action.chunk] = incoming
            return

    def finish(self) -> Tensor:
        """End an epoch: all messages have left. Gives this rank's part of the loss."""
        self.exchange.flush()
        self.stage.end()
        return torch.stack(self.losses).sum() if self.losses else torch.zeros((), dtype=self.dtype)

    @property
    def _rare(self) -> bool:
        """Whether messages are of a kind that does not come in every epoch: of all rows, where chunks are the rule."""
        return self.stage.whole and self.stage.stale

    @property
    def _reads_in_place(self) -> bool:
        """Whether halo rows are read where they came to lie: where one rank gives them all, and nothing is history."""
        return self.mesh.layout.vertex == 2 and self.stage.whole and not self.stage.stale and self.stage.collects

    def _tag(self, action: Action) -> int:
        return action.chunk * 2 + (0 if action.phase is Phase.FORWARD else 1)

    def _segments(self, action: Action) -> range:
        if action.layer is not None:
            return range(action.layer, action.layer + 1)
        return range(len(self.stage.segments))

    def _forward(self, action: Action) -> None:
        with torch.set_grad_enabled(self.train):
            for segment in self._segments(action):
                if segment == 0 and self.is_first and action.side is not Side.INTERIOR:
                    if self.features is None:
                        raise RuntimeError("the first stage has no features")
                    rows = self.stage.rows_of(action.chunk)
                    self.stage.enter(action.chunk, self.features[rows], {}, trained=False)
                self.stage.forward(action.chunk, segment, action.side)
                if self.is_last and segment == len(self.stage.segments) - 1:
                    self.stage.release_shared(action.chunk, action.side)

    def _backward(self, action: Action) -> None:
        last = len(self.stage.segments) - 1
        for segment in reversed(self._segments(action)):
            if segment < last:
                self.stage.backward(action.chunk, segment, action.side)
            elif self.is_last:
                self.losses += self.stage.backward(action.chunk, segment, action.side, loss=self.loss)
            else:
                gradient = self._gradient.get(action.chunk)
                self.stage.backward(action.chunk, segment, action.side, gradient=gradient)
                if action.side is not Side.BOUNDARY:
                    self._gradient.pop(action.chunk, None)
        if self.is_first and 0 in self._segments(action) and action.side is not Side.BOUNDARY:
            self.stage.leave(action.chunk)

    def _send(self, action: Action) -> None:
        if action.peer is None:
            raise RuntimeError(f"{action} names no peer")
        rows = self.stage.rows_of(action.chunk)
        if rows.stop == rows.start:
            if action.phase is Phase.BACKWARD:
                self.stage.visits.pop(action.chunk)
            return
        if action.phase is Phase.FORWARD:
            output, shared = self.stage.output(action.chunk)
            tensors = [output.detach(), *(shared[name].detach() for name in self._leaves)]
        else:
            gradient, of_shared = self.stage.leave(action.chunk)
            given = [gradient, *(of_shared[name] for name in self._enters)]
            tensors = [
                torch.zeros(rows.stop - rows.start, width, dtype=self.dtype) if g is None else g
                for g, width in zip(given, self._in_widths, strict=True)
            ]
        message = tensors[0] if len(tensors) == 1 else torch.cat(tensors, 1)
        key = 0 if self.stage.noise is None else self.stage.noise.at(layer=action.chunk).key(str(action))
        kind = "activations" if action.phase is Phase.FORWARD else "gradients"
        # where the peer falls behind, its pages are not what grows
        once = self._rare or self.exchange.unread(action.peer) >= UNREAD
        self.exchange.send(message, action.peer, self._tag(action), "layer", kind, key, mark=self._sent, once=once)
        if action.phase is Phase.FORWARD:
            self.stage.release(action.chunk)
        self._sent += 1
        self.exchange.flush(self._sent - AHEAD)

    def _receive(self, action: Action) -> None:
        if action.phase is None:
            raise RuntimeError(f"{action} has no phase")
        if (action.phase, action.chunk) not in self._posted:
            # a chunk without rows
            if action.phase is Phase.FORWARD:
                self.stage.visits[action.chunk] = {}
            return
        rows = self._posted.pop((action.phase, action.chunk)).wait()
        self._post_receive()
        if action.phase is Phase.FORWARD:
            x, *shared = torch.split(rows, self._in_widths, 1)
            named = dict(zip(self._enters, shared, strict=True))
            self.stage.enter(action.chunk, x.contiguous(), named, trained=self.train)
            return
        gradient, *of_shared = torch.split(rows, self._out_widths, 1)
        self._gradient[action.chunk] = gradient.contiguous()
        for name, value in zip(self._leaves, of_shared, strict=True):
            self.stage.add_shared_gradient(action.chunk, name, value.contiguous())

    def _post(self, action: Action) -> None:
        """Let halo rows, or their gradients, go; they are waited for by `_halo`."""
        if action.layer is None:
            raise RuntimeError(f"{action} names no layer")
        sends, bounds = self._crossing(action.chunk)
        own = self.share.rows
        forward = action.phase is Phase.FORWARD
        rows = self.stage.message_rows(action.layer) if forward else self.stage.gradient_rows(action.layer)
        halo = [rows[own + low : own + high] for low, high in bounds]
        key = 0 if self.stage.noise is None else self.stage.noise.at(layer=action.layer).key(str(action))
        if forward or self.stage.gradients.pulls:
            outgoing = [Rows(rows, send) for send in sends]
            places: list[Tensor | Shape] = list(halo)
            if forward and self.stage.messages.blends:
                places = [Shape(place.shape[0], place.shape[1], place.dtype) for place in halo]
            kind = "halo" if forward else "halo-gradients"
            swap = self.exchange.begin_swap(outgoing, places, kind, key, once=self._rare, stay=self._reads_in_place)
        else:
            places = [Shape(send.numel(), rows.shape[1], rows.dtype) for send in sends]
            swap = self.exchange.begin_swap(halo, places, "halo-gradients", key, once=self._rare)
        self._swaps[exchange_of(action)] = swap

    def _halo(self, action: Action) -> None:
        exchange = exchange_of(action)
        if exchange not in self._swaps:
            self._post(action)
        received = self._swaps.pop(exchange).wait()
        forward = action.phase is Phase.FORWARD
        if action.layer is not None and self._reads_in_place and (forward or self.stage.gradients.pulls):
            self.stage.extend(action.layer, received[1 - self.mesh.way], backward=not forward)
        if forward and action.layer is not None and self.stage.messages.blends:
            own = self.share.rows
            for (low, high), rows in zip(self._crossing(action.chunk)[1], received, strict=True):
                self.stage.messages.write(action.layer, own + low, own + high, rows)
        if not forward and action.layer is not None and not self.stage.gradients.pulls:
            rows = self.stage.gradient_rows(action.layer)
            for send, gradient in zip(self._crossing(action.chunk)[0], received, strict=True):
                add_rows(rows, send, gradient)

    def _crossing(self, chunk: int) -> tuple[list[Tensor], list[tuple[int, int]]]:
        """For each way, the own rows of a chunk that it reads, and where in the halo those are that it owns."""
        chunks = range(len(self.share.chunk_rows) - 1) if self.stage.whole else range(chunk, chunk + 1)
        sends = self._send_rows.get(chunks)
        if sends is None:
            sends = self._send_rows[chunks] = [torch.cat([rows[c] for c in chunks]) for rows in self.share.send]
        return sends, [(owned[chunks[0]][0], owned[chunks[-1]][1]) for owned in self.share.receive]

    def _aggregate_features(self, features: Tensor) -> Tensor:
        """Â·x of the own rows. The features of the halo cross once, as they are, and are not kept."""
        rows = features.new_empty(self.share.adjacency.columns, features.shape[1])
        rows[: self.share.rows] = features
        halo = rows[self.share.rows :]
        places = [halo[chunks[0][0] : chunks[-1][1]] for chunks in self.share.receive]
        outgoing = [features.index_select(0, torch.cat(chunks)) for chunks in self.share.send]
        Exchange(self.mesh, Ledger()).begin_swap(outgoing, places, "features", 0, once=True).wait()
        return aggregate(rows, self.share.adjacency)

    def _reduce(self, action: Action) -> None:
        parameters = [p for layer in self.stage.layers for p in layer.parameters() if p.requires_grad]
        parameters += self._extra if self.is_last else []
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.exchange.reduce_gradients([p.grad for p in parameters if p.grad is not None])
