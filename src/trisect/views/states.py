"""`States`: those of one recurrent module along time, kept before each block and handed on, as their gradients are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from trisect.ops.backward import run_backward
from trisect.ops.recurrent import OutputBuffers
from trisect.views.leaves import leaves_of
from trisect.views.turn import Piece, State, Turn


@dataclass(frozen=True)
class Form:
    """A state as one matrix for the wire, and back.

    A `vertex` state is [rows, its tensors side by side]; a `window` [frames · rows, channels]; a `weight` is a matrix
    already.

    Attributes:
        widths: of the tensors of the state; `frames`: rows that a vertex (a window) or the state (a weight) has.
    """

    kind: str
    widths: tuple[int, ...]
    frames: int

    @classmethod
    def of(cls, module: Any, dtype: torch.dtype, device: torch.device) -> Form:
        """Return the form of a module's states."""
        with torch.no_grad():
            sample = module.initial_state(1, dtype=dtype, device=device)
        return cls(module.state_kind, tuple(tensor.shape[-1] for tensor in sample), sample[0].shape[0])

    def shape(self, rows: int) -> tuple[int, int]:
        """Return (rows, width) of the matrix for the state of that many vertices."""
        if self.kind == "vertex":
            return rows, sum(self.widths)
        return (self.frames if self.kind == "weight" else self.frames * rows), self.widths[0]

    def pack(self, state: State) -> Tensor:
        """Return the matrix of a state."""
        if self.kind == "vertex":
            return state[0] if len(state) == 1 else torch.cat(state, 1)
        return state[0].reshape(-1, self.widths[0])

    def unpack(self, matrix: Tensor, rows: int) -> State:
        """Return the state of `rows` vertices."""
        if self.kind == "vertex":
            return tuple(tensor.contiguous() for tensor in torch.split(matrix, list(self.widths), 1))
        if self.kind == "weight":
            return (matrix,)
        return (matrix.view(self.frames, rows, self.widths[0]),)


class States:
    """The states of one module on one rank, by chunk of rows.

    Attributes:
        keeps: whether a backward will follow the pass.
        before: by (block, chunk), the state that it begins with, where it is not the initial one; kept until backward.
        after: by chunk, the state after the latest block, with which the next one begins.
        wanted: by chunk, the gradient of the state before the block that went back last, which is after the next one.
        seen: the state before the block that was watched.
    """

    def __init__(self) -> None:
        self.before: dict[tuple[int, int], State] = {}
        self.after: dict[int, State] = {}
        self.wanted: dict[int, State] = {}
        self.clear(keeps=False)

    def clear(self, *, keeps: bool) -> None:
        """Forget all states, since another pass begins or one has ended."""
        for kept in (self.before, self.after, self.wanted):
            kept.clear()
        self.keeps = keeps
        self.seen: State | None = None

    def _begin(self, turn: Turn, chunk: int, rows: int) -> tuple[State, bool]:
        """Return the state before a block, and whether it is an earlier one's."""
        key = turn.block, chunk
        state = self.before.pop(key, None)
        if state is None and not turn.again:
            state = self.after.pop(chunk, turn.resumed)
        known = state is not None
        if state is None:
            # made anew each time, so that what it depends on is trained
            state = turn.module.initial_state(rows, dtype=turn.dtype, device=turn.device)
        elif self.keeps:
            self.before[key] = state
        if turn.watched:
            self.seen = tuple(tensor.detach() for tensor in state)
        return state, known

    def forward(
        self,
        turn: Turn,
        frames: Sequence[Tensor],
        first_step: int,
        *,
        hands_on: bool,
        needs: Sequence[bool] | None = None,
        chunk: int = 0,
        out: Tensor | None = None,
        run: Callable[..., tuple[Tensor, State]] | None = None,
    ) -> Tensor:
        """Run the module over a block, or over one chunk of its rows.

        Args:
            frames: [steps, rows, channels] each, of the chunk.
            hands_on: whether the state after the block is wanted.
            needs: of which frames a gradient is wanted; None: as the turn says.
            out: where the output is to be; it is also returned.
            run: in place of the module.
        """
        module, found = turn.module, dict[Any, Tensor]()
        with torch.set_grad_enabled(turn.trained):
            state, known = self._begin(turn, chunk, frames[0].shape[1])
            if known and turn.trained:
                state = tuple(leaves_of({("state", k): tensor for k, tensor in enumerate(state)}, found).values())
            inputs, buffers = [frame.detach() for frame in frames], None if out is None else OutputBuffers(out)
            written = None if buffers is None else module.forward_into(buffers, inputs, state)
            if written is None:
                buffers = None
                wanted = (turn.needs if needs is None else needs) if turn.trained else ()
                begun = leaves_of({k: inputs[k] for k, need in enumerate(wanted) if need}, found)
                inputs = [begun.get(k, frame) for k, frame in enumerate(inputs)]
                written = (module if run is None else run)(inputs, state, first_step)
        result, after = written
        if out is not None and buffers is None:
            out.copy_(result.detach())
        if hands_on and not turn.again:
            self.after[chunk] = tuple(_own(tensor) for tensor in after)
        if turn.trained:
            # where backward begins, and not the tensors: a state may be a view of the frames of all steps
            roots = [_root(tensor) for tensor in after]
            turn.pieces.append(
                Piece(chunk, roots, _root(result), len(inputs), found, buffers, state if known else None)
            )
        return result.detach() if out is None else out

    def backward(self, turn: Turn, d_out: Tensor, into: Sequence[Tensor | None] | None = None) -> list[Tensor | None]:
        """Return the gradients of the frames of the last piece that has not gone back; they are not to be written to.

        It begins with the gradient of the output and with what is `wanted` of the state after it.

        Args:
            into: where they are to be, where the output was written to `out`; None for a frame without gradient.
        """
        piece = turn.pieces.pop()
        if piece.buffers is not None and into is not None:
            piece.buffers.gradients = into
        roots: list[tuple[GradientEdge | Tensor, Tensor]] = []
        if piece.out is not None:
            roots.append((piece.out, d_out))
        wanted = self.wanted.pop(piece.chunk, ())
        roots += [(root, gradient) for root, gradient in zip(piece.after, wanted, strict=False) if root is not None]
        if roots:
            run_backward(roots)
        self.before.pop((turn.block, piece.chunk), None)
        gradients = piece.gradients
        if piece.state is not None:
            pairs = [(tensor, gradients.get(("state", k))) for k, tensor in enumerate(piece.state)]
            self.wanted[piece.chunk] = tuple(torch.zeros_like(own) if g is None else g for own, g in pairs)
        found = [gradients.get(k) for k in range(piece.frames)]
        if into is None:
            return found
        if piece.buffers is None or not roots:
            for target, gradient in zip(into, found, strict=True):
                if target is not None:
                    target.zero_() if gradient is None else target.copy_(gradient)
        return list(into)


def _root(tensor: Tensor) -> GradientEdge | None:
    return get_gradient_edge(tensor) if tensor.requires_grad else None


def _own(tensor: Tensor) -> Tensor:
    """Return it without its graph and without the larger tensor that it may be a view of, which must not outlive it."""
    tensor = tensor.detach()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
