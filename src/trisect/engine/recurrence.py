"""The states of a layer along time: kept before each block, handed on between blocks, their gradients handed back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from trisect.engine.values import root_of
from trisect.exchanges.facts import LayerFacts
from trisect.nn.base import State
from trisect.nn.temporal.dynamic import DynamicLayer, SpatialTemporal
from trisect.ops.backward import run_backward
from trisect.ops.recurrent import OutputBuffers


class Packing:
    """A state as one matrix for the wire, and back.

    A `vertex` state is [rows, its tensors side by side]; a `window` [frames · rows, channels]; a `weight` is a matrix
    already.
    """

    def __init__(self, facts: LayerFacts) -> None:
        self._facts = facts

    def shape(self, rows: int) -> tuple[int, int]:
        """Give (rows, width) of the matrix for the state of that many vertices."""
        return self._facts.state_shape(rows)

    def pack(self, state: State) -> Tensor:
        """Give the matrix of a state."""
        if self._facts.state == "vertex":
            return state[0] if len(state) == 1 else torch.cat(state, 1)
        return state[0].reshape(-1, self._facts.state_widths[0])

    def unpack(self, matrix: Tensor, rows: int) -> State:
        """Give the state of `rows` vertices."""
        if self._facts.state == "vertex":
            return tuple(tensor.contiguous() for tensor in torch.split(matrix, list(self._facts.state_widths), 1))
        if self._facts.state == "weight":
            return (matrix,)
        return (matrix.view(self._facts.state_frames, rows, self._facts.state_widths[0]),)


@dataclass
class _Open:
    """What backward needs of a block and chunk that has gone forward."""

    leaves: list[Tensor]
    initial: State | None
    after: list[GradientEdge | None]
    frames: list[Tensor]
    out: Tensor | None = None
    buffers: OutputBuffers | None = None


@dataclass
class Resumption:
    """Where passes forward begin instead of step 0, and what they keep for those that come later.

    It is for ranks that go through all steps themselves; states are those of the own rows.

    Attributes:
        first: the step that passes begin with.
        states: by layer, the state before that step; empty where it is step 0.
        keep: the step before which states are to be kept; None: nothing is.
        kept: by layer, those that the latest pass kept.
    """

    first: int = 0
    states: dict[int, State] = field(default_factory=dict)
    keep: int | None = None
    kept: dict[int, State] = field(default_factory=dict)


class Recurrence:
    """The temporal half of one layer over the blocks and vertex chunks of one rank.

    An exchange takes outgoing states from `after` (`hand_over`) and puts received ones into `before` (`take_over`); the
    same with `wanted` for gradients. What stays in `after` starts this rank's next block.

    Attributes:
        keeps: whether a backward will follow.
        before: by (block, chunk), the state that it begins with; kept until its backward.
        after: by chunk, the state after the last block.
        wanted: by chunk, the gradient of a state: before backward, of the one after the block (absent: zero);
            afterwards, of the one before it.
        resumed: the state of all own rows that the pass begins with, where it does not begin at step 0.
        watched: the block whose beginning is to be kept, in `seen` by chunk; None: nothing is.
    """

    def __init__(self, layer: DynamicLayer, facts: LayerFacts, dtype: torch.dtype, device: torch.device) -> None:
        self.layer, self.facts, self.dtype, self.device = layer, facts, dtype, device
        self.packing = Packing(facts)
        self.before: dict[tuple[int, int], State] = {}
        self.after: dict[int, State] = {}
        self.wanted: dict[int, State] = {}
        self._initial: dict[tuple[int, int], State] = {}
        self._open: dict[int, _Open] = {}
        self.clear(keeps=True)

    def clear(self, *, keeps: bool) -> None:
        """Forget all states, since another pass begins or one has ended."""
        for kept in (self.before, self.after, self.wanted, self._initial, self._open):
            kept.clear()
        self.keeps = keeps
        self.resumed: State | None = None
        self.watched: int | None = None
        self.seen: dict[int, State] = {}

    def kept(self) -> State:
        """Give the state of all own rows before the block that was watched."""
        chunks = [self.seen[chunk] for chunk in sorted(self.seen)]
        if len(chunks) == 1 or self.facts.state == "weight":
            return chunks[0]
        return tuple(torch.cat(tensors) for tensors in zip(*chunks, strict=True))

    def enter(self, block: int, chunk: int, rows: int) -> list[Tensor]:
        """Give the state that a block begins with, as leaves of autograd where gradients are on."""
        key = (block, chunk)
        state = self.before.get(key)
        if state is None:
            state = self.after.pop(chunk, None)
        if state is None and self.resumed is not None:
            state = self.resumed
            if self.facts.state != "weight":  # of the two sides of a part the boundary comes first
                state = tuple(tensor[:rows] if chunk == 0 else tensor[-rows:] for tensor in state)
        if state is None:
            state = self.layer.initial_state(rows, dtype=self.dtype, device=self.device)
            self._initial[key] = state
        if block == self.watched:
            self.seen[chunk] = tuple(tensor.detach() for tensor in state)
        if self.keeps:
            self.before[key] = tuple(tensor.detach() for tensor in state)
        else:
            self.before.pop(key, None)
        grad, initial = torch.is_grad_enabled(), self._initial.get(key)
        leaves = [
            tensor.detach().requires_grad_(grad and (initial is None or initial[i].requires_grad))
            for i, tensor in enumerate(state)
        ]
        if grad:
            self._open[chunk] = _Open(leaves, initial, [], [])
        return leaves

    def leave(self, chunk: int, after: State) -> None:
        """Note the state after a block; the next one begins with it."""
        self.after[chunk] = tuple(_own(tensor) for tensor in after)
        if torch.is_grad_enabled():
            # where backward begins, and not the tensors: a state may be a view of the frames of all steps
            self._open[chunk].after = [root_of(tensor) for tensor in after]

    def hand_over(self, chunk: int, *, back: bool) -> Tensor:
        """Give the state after the last block (or the gradient of the one before it) as a matrix, and forget it."""
        return self.packing.pack((self.wanted if back else self.after).pop(chunk))

    def take_over(self, block: int, chunk: int, rows: int, message: Tensor, *, back: bool) -> None:
        """Begin a block with a state (or its backward with the gradient of the state after it)."""
        state = self.packing.unpack(message, rows)
        if back:
            self.wanted[chunk] = state
        else:
            self.before[block, chunk] = state

    def roots(self, chunk: int) -> list[tuple[GradientEdge | Tensor, Tensor]]:
        """Give the states after a block with their gradients, as far as these are wanted."""
        wanted = self.wanted.pop(chunk, None)
        if wanted is None:
            return []
        return [
            (root, gradient) for root, gradient in zip(self._open[chunk].after, wanted, strict=True) if root is not None
        ]

    def finish(self, block: int, chunk: int) -> None:
        """Backward through a block is done: hand the gradients of the state before it on."""
        opened = self._open.pop(chunk)
        self.before.pop((block, chunk), None)
        self.after.pop(chunk, None)
        gradients = [leaf.grad for leaf in opened.leaves]
        if opened.initial is None:
            self.wanted[chunk] = tuple(
                torch.zeros_like(leaf) if g is None else g for leaf, g in zip(opened.leaves, gradients, strict=True)
            )
            return
        for tensor, gradient in zip(opened.initial, gradients, strict=True):
            if gradient is not None:
                run_backward([(tensor, gradient)])

    def forward(
        self,
        block: int,
        chunk: int,
        frames: Sequence[Tensor],
        needed: Sequence[bool],
        rows: int,
        first_step: int,
        out: Tensor | None = None,
    ) -> Tensor:
        """Do one block and chunk apart from everything else.

        Args:
            frames: as `DynamicLayer.recur` reads them, of the chunk's rows.
            needed: which of them get a gradient.
            out: where the output is to be, [steps, rows, channels]; it is also returned.
        """
        leaves = self.enter(block, chunk, rows)
        grad = torch.is_grad_enabled()
        inputs = [frame.detach() for frame in frames]
        written, buffers = None, None if out is None else OutputBuffers(out)
        if buffers is not None and isinstance(self.layer, SpatialTemporal):
            written = self.layer.temporal.forward_into(buffers, inputs, tuple(leaves))
        if written is not None:
            result, after = written
        else:
            buffers = None
            for frame, need in zip(inputs, needed, strict=True):
                frame.requires_grad_(grad and need)
            result, after = self.layer.recur(inputs, tuple(leaves), first_step)
            if out is not None:
                out.copy_(result.detach())
        self.leave(chunk, after)
        if grad:
            opened = self._open[chunk]
            opened.frames, opened.out, opened.buffers = inputs, result, buffers
        return result.detach() if out is None else out

    def backward(
        self, block: int, chunk: int, d_out: Tensor | None, into: Sequence[Tensor | None] | None = None
    ) -> list[Tensor | None]:
        """Give the gradients of the frames, from that of the output and what is `wanted` of the state after it.

        Args:
            into: where they are to be, where the output was written to `out`; None for a frame without gradient.
        """
        opened = self._open[chunk]
        if opened.buffers is not None and into is not None:
            opened.buffers.gradients = into
        roots = self.roots(chunk)
        if d_out is not None and opened.out is not None and opened.out.requires_grad:
            roots.insert(0, (opened.out, d_out))
        if roots:
            run_backward(roots)
        self.finish(block, chunk)
        if into is None:
            return [leaf.grad for leaf in opened.frames]
        if opened.buffers is None or not roots:
            for target, leaf in zip(into, opened.frames, strict=True):
                if target is not None:
                    target.zero_() if leaf.grad is None else target.copy_(leaf.grad)
        return list(into)


def _own(tensor: Tensor) -> Tensor:
    """Without its graph, and without the larger tensor that it may be a view of: a block must not outlive its end."""
    tensor = tensor.detach()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
