"""`Turn`: one use of a recurrent module, on one block of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from trisect.ops.recurrent import OutputBuffers
from trisect.views.timecut import TimeCut
from trisect.views.verbs import Asked

State = tuple[Tensor, ...]


@dataclass(eq=False)
class Piece:
    """Some rows over a block that went forward with all that their backward needs.

    Attributes:
        after, out: where backward begins, in the states after the block and in the output; None: nowhere.
        frames: how many were read.
        gradients: of the state before the block and of some frames, once backward has found them, where `buffers` have
            no room for these.
        state: before the block, where it is an earlier one's; None: the initial one.
    """

    chunk: int
    after: list[GradientEdge | None]
    out: GradientEdge | None
    frames: int
    gradients: dict[Any, Tensor]
    buffers: OutputBuffers | None
    state: State | None


@dataclass(eq=False)
class Turn:
    """What an exchange is told of one use, and what it keeps of it until backward.

    Attributes:
        call: which verb of the cell it is, the same on all ranks.
        module: module(frames, state, first step) → (output, state after).
        frames: [own steps, rows, channels] each, outside of autograd.
        needs: of which frames a gradient is wanted.
        fixed: for each frame that is the same in all steps, [rows, channels] of it, which every rank has; else None.
        trained: whether a backward follows; `again`: whether the block was gone through before.
        mark: of messages; see `Transport.send`.
        resumed: what the pass begins with, where that is not the module's own initial state.
        watched: whether the state before the block is to be kept.
        ends: whether only the states are wanted.
        truncated: whether no gradient goes from a block to the one before, since each is a step.
        pieces: chunk by chunk.
    """

    cut: TimeCut
    block: int
    call: Asked
    module: Any
    frames: Sequence[Tensor]
    needs: Sequence[bool] = ()
    fixed: Sequence[Tensor | None] = ()
    trained: bool = False
    again: bool = False
    mark: int = 0
    resumed: State | None = None
    watched: bool = False
    ends: bool = False
    truncated: bool = False
    pieces: list[Piece] = field(default_factory=list)

    def __post_init__(self) -> None:
        like = self.frames[0]
        self.rows, self.dtype, self.device = like.shape[1], like.dtype, like.device
        self.widths = [frame.shape[2] for frame in self.frames]

    @property
    def run(self) -> int:
        """The place of the rank along time."""
        return self.cut.run

    @property
    def steps(self) -> range:
        """The own steps of the block."""
        return self.cut.runs[self.block][self.run]

    @property
    def is_last(self) -> bool:
        """Whether no block comes after."""
        return self.block == self.cut.blocks - 1

    def zeros(self, *shape: int) -> Tensor:
        """Return zeros of the type of the frames."""
        return torch.zeros(shape, dtype=self.dtype, device=self.device)
