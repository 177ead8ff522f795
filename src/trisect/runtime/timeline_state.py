"""The temporal half of a layer, piece by piece: the state before each is kept, gradients are handed on by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trisect.nn.base import State
from trisect.nn.dynamic import DynamicLayer, SpatialTemporal
from trisect.ops.recurrent import Places


class Packing:
    """A state as one matrix for the wire, and back.

    A `vertex` state is [rows, its tensors side by side]; a `window` [frames · rows, channels]; a `weight` is a matrix
    already.
    """

    def __init__(self, layer: DynamicLayer) -> None:
        self.kind = layer.state_kind
        sample = layer.initial_state(1, dtype=torch.float32, device=torch.device("cpu"))
        self._widths = [tensor.shape[-1] for tensor in sample]
        self._frames = sample[0].shape[0]

    def shape(self, rows: int) -> tuple[int, int]:
        """(rows, width) of the matrix for the state of that many vertices."""
        if self.kind == "vertex":
            return rows, sum(self._widths)
        return (self._frames if self.kind == "weight" else self._frames * rows), self._widths[0]

    def pack(self, state: State) -> Tensor:
        """The matrix."""
        if self.kind == "vertex":
            return state[0] if len(state) == 1 else torch.cat(state, 1)
        return state[0].reshape(-1, self._widths[0])

    def unpack(self, matrix: Tensor, rows: int) -> State:
        """The state of `rows` vertices."""
        if self.kind == "vertex":
            return tuple(piece.contiguous() for piece in torch.split(matrix, self._widths, 1))
        return (matrix if self.kind == "weight" else matrix.view(self._frames, rows, self._widths[0]),)


@dataclass
class _Piece:
    """What backward needs of a piece."""

    frames: list[Tensor]
    state: list[Tensor]
    out: Tensor
    after: State
    initial: State | None
    places: Places | None


class Recurrence:
    """A layer's temporal half over the pieces of one rank: (block, vertex chunk).

    Whoever moves states puts what came from another rank into `before[block, chunk]` and takes what another rank is to
    get from `after`; the same with `wanted` for gradients. What nobody takes is for the next block of this rank.

    Attributes:
        keeps: whether a backward will follow.
        before: the state that a piece begins with; kept until its backward.
        after: of each chunk, the state after the last piece.
        wanted: of each chunk, the gradient of the state: before backward, of the one after the piece (absent: zero);
            afterwards, of the one before it.
    """

    def __init__(self, layer: DynamicLayer, dtype: torch.dtype, device: torch.device) -> None:
        self.layer, self.dtype, self.device = layer, dtype, device
        self.packing = Packing(layer)
        self.keeps = True
        self.before: dict[tuple[int, int], State] = {}
        self.after: dict[int, State] = {}
        self.wanted: dict[int, State] = {}
        self._initial: dict[tuple[int, int], State] = {}
        self._pieces: dict[int, _Piece] = {}

    def clear(self) -> None:
        """Forget everything: an epoch begins."""
        for kept in (self.before, self.after, self.wanted, self._initial, self._pieces):
            kept.clear()

    def forward(
        self,
        block: int,
        chunk: int,
        frames: Sequence[Tensor],
        needed: Sequence[bool],
        rows: int,
        first_step: int,
        place: Tensor | None = None,
    ) -> Tensor:
        """One piece.

        Args:
            frames: as `DynamicLayer.recur` reads them, of the chunk's rows.
            needed: which of them get a gradient.
            rows: of the chunk.
            place: where the output is to be, [steps, rows, channels]; it is also returned.
        """
        key = (block, chunk)
        state = self.before.get(key)
        if state is None:
            state = self.after.pop(chunk, None)
        if state is None:
            state = self.layer.initial_state(rows, dtype=self.dtype, device=self.device)
            self._initial[key] = state
        if self.keeps:
            self.before[key] = tuple(tensor.detach() for tensor in state)
        else:
            self.before.pop(key, None)
        grad = torch.is_grad_enabled()
        initial = self._initial.get(key)
        leaves = [
            tensor.detach().requires_grad_(grad and (initial is None or initial[i].requires_grad))
            for i, tensor in enumerate(state)
        ]
        inputs = [frame.detach() for frame in frames]
        placed, places = None, None if place is None else Places(place)
        if places is not None and isinstance(self.layer, SpatialTemporal):
            placed = self.layer.temporal.forward_into(places, inputs, tuple(leaves))
        if placed is not None:
            out, after = placed
        else:
            places = None
            for frame, need in zip(inputs, needed, strict=True):
                frame.requires_grad_(grad and need)
            out, after = self.layer.recur(inputs, tuple(leaves), first_step)
            if place is not None:
                place.copy_(out.detach())
        self.after[chunk] = tuple(_own(tensor) for tensor in after)
        if grad:
            self._pieces[chunk] = _Piece(inputs, leaves, out, after, initial, places)
        return out.detach() if place is None else place

    def backward(
        self, block: int, chunk: int, d_out: Tensor | None, places: Sequence[Tensor | None] | None = None
    ) -> list[Tensor | None]:
        """Gradients of the piece's frames, from that of its output and what is `wanted` of the state after it.

        Args:
            places: where they are to be, where the output had a place of its own; None for a frame without gradient.
        """
        piece = self._pieces.pop(chunk)
        if piece.places is not None and places is not None:
            piece.places.gradients = places
        self.before.pop((block, chunk), None)
        self.after.pop(chunk, None)
        d_after = self.wanted.pop(chunk, None)
        roots: list[Tensor] = []
        gradients: list[Tensor] = []
        if d_out is not None and piece.out.requires_grad:
            roots.append(piece.out)
            gradients.append(d_out)
        if d_after is not None:
            for root, gradient in zip(piece.after, d_after, strict=True):
                if root.requires_grad:
                    roots.append(root)
                    gradients.append(gradient)
        if roots:
            torch.autograd.backward(roots, gradients)
        found = [leaf.grad for leaf in piece.state]
        if piece.initial is None:
            self.wanted[chunk] = tuple(
                torch.zeros_like(leaf) if g is None else g for leaf, g in zip(piece.state, found, strict=True)
            )
        else:
            for tensor, d_tensor in zip(piece.initial, found, strict=True):
                if d_tensor is not None:
                    torch.autograd.backward([tensor], [d_tensor])
        if places is None:
            return [leaf.grad for leaf in piece.frames]
        if piece.places is None or not roots:
            for place, leaf in zip(places, piece.frames, strict=True):
                if place is not None:
                    place.zero_() if leaf.grad is None else place.copy_(leaf.grad)
        return list(places)


def _own(tensor: Tensor) -> Tensor:
    """Without its graph, and without the larger tensor that it may be a view of: a block must not outlive its end."""
    tensor = tensor.detach()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
