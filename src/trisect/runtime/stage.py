"""One rank's work on a static graph: a stage of layers over a part of the vertices, chunk by chunk.

Between two spatial layers lies a *segment*: what follows reading neighbours in one, up to what the neighbours of the
next one read. Gradients stop at segment ends and are handed on by hand, since what a row sends to its readers is used
by several chunks: its gradient is complete only when the last of them is done. (Backward runs in exactly the reverse
order, so it is complete when it is needed.)

Rows of chunks that are not done yet in this epoch hold *history*, values of an earlier epoch, which are constants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.nn.base import Context, Layer
from trisect.noise import Noise
from trisect.partition.halo import Share
from trisect.partition.reach import Reach, reach_of


@dataclass(frozen=True)
class Segment:
    """Layers between two readings of neighbours: `combine` reads, `local` work on single rows, `prepare` sends."""

    combine: int | None
    local: tuple[int, ...]
    prepare: int | None


def segments_of(layers: Sequence[Layer]) -> tuple[Segment, ...]:
    """The segments of a stage; their layers are counted from the stage's first."""
    result = []
    combine: int | None = None
    local: list[int] = []
    for number, layer in enumerate(layers):
        if layer.spatial:
            result.append(Segment(combine, tuple(local), number))
            combine, local = number, []
        else:
            local.append(number)
    result.append(Segment(combine, tuple(local), None))
    return tuple(result)


@dataclass
class Visit:
    """A chunk on its way through the stage in one epoch."""

    rows: slice
    x: Tensor
    shared: dict[str, Tensor]
    inputs: Tensor
    shared_inputs: dict[str, Tensor]
    outputs: list[Tensor] = field(default_factory=list)
    messages: list[Tensor] = field(default_factory=list)
    leaves: list[Tensor] = field(default_factory=list)
    read: list[Tensor] = field(default_factory=list)
    written: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


class Stage:
    """The forward and backward of one stage over one part, by chunk and segment.

    Args:
        layers: the stage's layers, `first` the number of its first layer in the model.
        share: the part (one part: the whole graph), its columns own rows and then halo.
        vertices: the user's ids of the own rows.
        scale: by how much the gradient of rows read fresh by other chunks is multiplied (technique 3; 1: not at all).
        fixed: history stays as `keep` found it, zero before (technique 2); otherwise it is what the last epoch left.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        first: int,
        share: Share,
        vertices: Tensor,
        *,
        scale: float = 1.0,
        fixed: bool = False,
    ) -> None:
        self.layers, self.first, self.share, self.vertices, self.scale = list(layers), first, share, vertices, scale
        self.fixed = fixed
        self.segments = segments_of(self.layers)
        self.rows, self.columns = share.adjacency.rows, share.adjacency.columns
        self._history: list[Tensor | None] = [None] * (len(self.segments) - 1)
        self._kept: list[Tensor | None] = [None] * (len(self.segments) - 1)
        self.buffers = self._history
        self.gradients: list[Tensor | None] = [None] * (len(self.segments) - 1)
        self.visits: dict[int, Visit] = {}
        self.noise: Noise | None = None
        self.whole = True
        bounds = share.chunk_rows
        self._reaches: list[Reach] = []
        if len(bounds) > 2:
            self._reaches = [reach_of(share.adjacency, a, b) for a, b in pairwise(bounds)]

    def begin(self, noise: Noise | None, *, whole: bool, aside: bool = False) -> None:
        """Begin a pass over all rows at once (`whole`, exact) or chunk by chunk.

        A pass `aside` (evaluation) leaves the history as it is.
        """
        self.noise, self.whole = noise, whole
        self.visits.clear()
        self.buffers = [None] * len(self._history) if aside else self._history
        if self.fixed and not whole and not aside:
            for buffer, kept in zip(self._history, self._kept, strict=True):
                if buffer is not None and kept is None:
                    buffer.zero_()
                elif buffer is not None and kept is not None:
                    buffer.copy_(kept)
        for segment, gradient in enumerate(self.gradients):
            if whole:
                self.gradients[segment] = None
            elif gradient is not None:
                gradient.zero_()

    def keep(self) -> None:
        """From now on, history is what the buffers hold at this moment, until the next call."""
        self._kept = [None if buffer is None else buffer.clone() for buffer in self._history]

    def history(self) -> dict[str, Tensor]:
        """All that a resumed run needs, by name."""
        named = {}
        for kind, tensors in (("last", self._history), ("kept", self._kept)):
            for segment, tensor in enumerate(tensors):
                if tensor is not None:
                    named[f"{kind}.{segment}"] = tensor
        return named

    def restore(self, named: Mapping[str, Tensor]) -> None:
        """Put back what `history` gave."""
        for name, tensor in named.items():
            kind, segment = name.split(".")
            (self._history if kind == "last" else self._kept)[int(segment)] = tensor.clone()

    def rows_of(self, chunk: int) -> slice:
        """The own rows of a chunk; all rows where the epoch is whole."""
        if self.whole:
            return slice(0, self.rows)
        return slice(self.share.chunk_rows[chunk], self.share.chunk_rows[chunk + 1])

    def enter(self, chunk: int, x: Tensor, shared: dict[str, Tensor], *, trained: bool) -> None:
        """A chunk arrives with its input rows and the shared inputs that later layers read."""
        x = x.detach().requires_grad_(trained)
        leaves = {name: value.detach().requires_grad_(trained) for name, value in shared.items()}
        self.visits[chunk] = Visit(self.rows_of(chunk), x, dict(leaves), x, leaves)

    def forward(self, chunk: int, segment: int) -> None:
        """Run a segment of a chunk. Its message rows are then in the buffer of the segment."""
        visit = self.visits[chunk]
        part = self.segments[segment]
        block = self._block(chunk)
        x = visit.x
        if part.combine is not None:
            message = self._gather(chunk, segment - 1)
            message = message.detach().requires_grad_(torch.is_grad_enabled())
            visit.read.append(message)
            layer = self.layers[part.combine]
            x = layer.combine(message, x, block, self._context(part.combine, visit))
            x = self._write(part.combine, x, visit)
        for number in part.local:
            x = self.layers[number](x, block, self._context(number, visit))
            x = self._write(number, x, visit)
        visit.outputs.append(x)
        if part.prepare is None:
            visit.x = x
            return
        leaf = x.detach().requires_grad_(torch.is_grad_enabled())
        message = self.layers[part.prepare].prepare(leaf, self._context(part.prepare, visit))
        visit.leaves.append(leaf)
        visit.messages.append(message)
        visit.x = leaf
        buffer = self._buffer(segment, message)
        buffer[visit.rows] = message.detach()

    def backward(self, chunk: int, segment: int, gradient: Tensor | None, loss: Tensor | None = None) -> None:
        """Back through a segment. `gradient` is that of the stage's output, for the last segment alone; or its loss."""
        visit = self.visits[chunk]
        part = self.segments[segment]
        roots: list[Tensor] = []
        grads: list[Tensor | None] = []
        if part.prepare is not None:
            gradient = self._message_gradient(segment, visit)
        if loss is not None:
            roots.append(loss)
            grads.append(None)
        elif gradient is not None:
            roots.append(visit.outputs[segment])
            grads.append(gradient)
        for number in ((part.combine,) if part.combine is not None else ()) + part.local:
            if number in visit.written:
                output, leaf = visit.written[number]
                if leaf.grad is not None:
                    roots.append(output)
                    grads.append(leaf.grad)
        if part.combine is not None:
            self._scale_fresh(chunk, segment - 1)
        alive = [(r, g) for r, g in zip(roots, grads, strict=True) if r.requires_grad]
        if alive:
            torch.autograd.backward([r for r, _ in alive], [g for _, g in alive])
        if part.combine is not None:
            self._scatter(chunk, segment - 1, visit.read[segment - 1].grad)

    def leave(self, chunk: int) -> tuple[Tensor | None, dict[str, Tensor | None]]:
        """The gradients of what the chunk entered with; the chunk is forgotten."""
        visit = self.visits.pop(chunk)
        return visit.inputs.grad, {name: leaf.grad for name, leaf in visit.shared_inputs.items()}

    def output(self, chunk: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The rows of the stage's output, and all shared inputs known by then."""
        visit = self.visits[chunk]
        return visit.outputs[-1], visit.shared

    def _context(self, number: int, visit: Visit) -> Context:
        if self.noise is None:
            return Context(None, visit.shared)
        noise = self.noise.at(layer=self.first + number)
        noise = Noise(noise.seed, noise.epoch, noise.layer, noise.step, self.vertices[visit.rows])
        return Context(noise, visit.shared)

    def _write(self, number: int, x: Tensor, visit: Visit) -> Tensor:
        name = self.layers[number].writes
        if name is not None:
            leaf = x.detach().requires_grad_(torch.is_grad_enabled())
            visit.shared[name] = leaf
            visit.written[number] = (x, leaf)
        return x

    def _block(self, chunk: int) -> Adjacency:
        return self.share.adjacency if self.whole else self._reaches[chunk].adjacency

    def _buffer(self, segment: int, like: Tensor) -> Tensor:
        buffer = self.buffers[segment]
        if buffer is None or buffer.shape[1] != like.shape[1] or buffer.dtype != like.dtype:
            buffer = torch.zeros(self.columns, like.shape[1], dtype=like.dtype, device=like.device)
            self.buffers[segment] = buffer
        return buffer

    def _gather(self, chunk: int, segment: int) -> Tensor:
        """The message rows that a chunk reads, own rows first: fresh where done in this epoch, history elsewhere."""
        buffer = self.buffers[segment]
        if buffer is None:
            raise RuntimeError(f"segment {segment} has no message yet")
        if self.whole:
            return buffer
        reach = self._reaches[chunk]
        return torch.cat([buffer[self.rows_of(chunk)], buffer.index_select(0, reach.others)])

    def _scatter(self, chunk: int, segment: int, gradient: Tensor | None) -> None:
        """Add the gradient of the rows that a chunk read to that of their owners."""
        buffer, total = self.buffers[segment], self.gradients[segment]
        if self.whole and gradient is not None:
            self.gradients[segment] = gradient
            return
        if total is None and buffer is not None:
            total = self.gradients[segment] = torch.zeros_like(buffer)
        if gradient is None or total is None:
            return
        rows = self.rows_of(chunk)
        own = rows.stop - rows.start
        total[rows] += gradient[:own]
        total.index_add_(0, self._reaches[chunk].others, gradient[own:])

    def _scale_fresh(self, chunk: int, segment: int) -> None:
        """Technique 3: what later chunks asked of these rows stands in for what earlier ones, with history, did not."""
        total = self.gradients[segment]
        if self.whole or self.scale == 1.0 or total is None:
            return
        total[self.rows_of(chunk)] *= self.scale
        for owner in self.share.receive:
            low, high = owner[chunk]
            total[self.rows + low : self.rows + high] *= self.scale

    def _message_gradient(self, segment: int, visit: Visit) -> Tensor | None:
        """Through `prepare`: from the gradient of the message rows and of the rows' own use to that of the output."""
        total = self.gradients[segment]
        leaf, message = visit.leaves[segment], visit.messages[segment]
        if total is not None:
            if message is leaf:
                leaf.grad = total[visit.rows] if leaf.grad is None else leaf.grad.add_(total[visit.rows])
            elif message.requires_grad:
                torch.autograd.backward([message], [total[visit.rows]])
        return leaf.grad
