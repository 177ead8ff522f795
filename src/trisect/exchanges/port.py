"""`Port`: what an exchange sees of the rank that it works for. `trisect.engine.port` implements it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import Parameter

from trisect.comm.mesh import Mesh
from trisect.comm.transport import Transport
from trisect.exchanges.facts import Facts
from trisect.schedule.action import Action


@dataclass(frozen=True)
class Crossing:
    """Which rows of a board cross between parts.

    Attributes:
        sends: for each part, the positions of the own rows on the board that it reads, int64.
        receives: for each part, how many rows come from it.
    """

    sends: list[Tensor]
    receives: list[int]


class MessageBoards(Protocol):
    """The rows that other parts read of a stage's layers, and their gradients; see `trisect.engine.boards`."""

    rows: int

    @property
    def steps(self) -> int:
        """How many steps the block has."""

    @property
    def in_place(self) -> bool:
        """Whether halo rows may be read where they came to lie."""

    @property
    def pulls(self) -> bool:
        """Whether gradients cross through the lists of the rows themselves, since every matrix is symmetric."""

    @property
    def blends(self) -> bool:
        """Whether rows are to be brought by `write_halo`, since what they replace still counts."""

    def crossing(self, chunk: int) -> Crossing:
        """Say which rows cross for a chunk."""

    def halo_slices(self, chunk: int) -> list[slice] | None:
        """Give, for each part, where its rows stand on the board; None where they are not side by side."""

    def buffer(self, layer: int) -> Tensor:
        """Give the rows that readers of a layer see: own rows of all steps, then the halo of all steps."""

    def gradient_buffer(self, layer: int) -> Tensor:
        """Give the gradients of a layer's rows in the same order."""

    def write_halo(self, layer: int, rows: slice, received: Tensor) -> None:
        """Let received rows take the place of what stands on the board."""

    def scatter(self, halo: Tensor, received: Sequence[Tensor]) -> None:
        """Put the halo rows of several steps that came from each part, step by step, where they belong."""

    def extend(self, layer: int, halo: Tensor) -> None:
        """Say that halo rows of a layer are here, and lie elsewhere than on the board."""

    def extend_gradients(self, layer: int, halo: Tensor) -> None:
        """Say where the gradients are that other parts' rows were given: [halo rows of all steps, width]."""

    def halo_gradients(self, layer: int, chunk: int) -> list[Tensor]:
        """Give, for each part, the gradients of its rows that own rows read."""

    def add_gradients(self, layer: int, chunk: int, received: Sequence[Tensor]) -> None:
        """Add the gradients of own rows that other parts found."""


class EarlierRows(Protocol):
    """The rows of an earlier epoch that chunks read; see `trisect.views.history_rows`."""

    def begin(self, *, chunked: bool, keep: float | None) -> None:
        """Begin a pass, chunk by chunk or over all rows at once.

        Args:
            keep: the rows become history, in which what it was before has this weight; None: they do not.
        """

    def turn(self) -> None:
        """All chunks have gone forward: from here on nothing is read, and history is complete."""

    def end(self) -> None:
        """Let go of everything but history."""


class States(Protocol):
    """The states of one layer along time; see `trisect.engine.recurrence`."""

    def hand_over(self, chunk: int, *, back: bool) -> Tensor:
        """Give the state after the last block (or the gradient of the one before it) as a matrix, and forget it."""

    def take_over(self, block: int, chunk: int, rows: int, message: Tensor, *, back: bool) -> None:
        """Begin a block with a state (or its backward with the gradient of the state after it)."""


class FrameWindow(Protocol):
    """The frames that a temporal half with a window reads; see `trisect.engine.temporal`."""

    def frames_for(self, steps: Sequence[int]) -> list[Tensor]:
        """Give own frames that another run reads, [rows, channels] each."""

    def window_gradients(self, steps: Sequence[int]) -> list[Tensor]:
        """Give the gradients of frames of another run that the own one read."""

    def add_frame(self, step: int, frame: Tensor) -> None:
        """Take a frame of another run that the own one reads."""

    def add_frame_gradient(self, step: int, gradient: Tensor) -> None:
        """Take the gradient of an own frame that another run read."""


class Port(Protocol):
    """One rank in one pass, as exchanges see it.

    Attributes:
        sent_to_neighbours: counts the messages to other stages.
    """

    sent_to_neighbours: int

    @property
    def turn(self) -> int:
        """How many blocks were entered, so that buffers of long ago need not be held."""

    @property
    def facts(self) -> Facts:
        """What all ranks know of the pass."""

    @property
    def mesh(self) -> Mesh:
        """Where the rank stands among the others."""

    @property
    def transport(self) -> Transport:
        """The door through which bytes leave."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of the numbers in rows."""

    @property
    def device(self) -> torch.device:
        """The device that rows live on."""

    @property
    def rare(self) -> bool:
        """Whether messages of this size come seldom, so that no memory is to be kept for them."""

    @property
    def chunked(self) -> bool:
        """Whether rows go through chunk by chunk and read history; otherwise all at once."""

    @property
    def keep(self) -> float | None:
        """The weight of earlier epochs where the pass becomes history; None: it does not."""

    @property
    def parameters(self) -> Sequence[Parameter]:
        """The parameters that the rank trains."""

    @property
    def history(self) -> EarlierRows | None:
        """The rows of an earlier epoch; None where no rows of a static graph are read across cells."""

    @property
    def boards(self) -> MessageBoards:
        """The boards of the stage; an error where no rows are read across cells."""

    @property
    def states(self) -> Mapping[int, States]:
        """The states along time, by layer."""

    def steps_of(self, action: Action) -> range:
        """Give the own steps of an action's block."""

    def window_of(self, action: Action) -> FrameWindow:
        """Give the frames of the temporal half that a transfer belongs to."""

    def key(self, action: Action) -> int:
        """Give where random rounding on the wire begins."""

    def tag(self, action: Action) -> int:
        """Give a number that only this message has between its two ranks; 0 is for exchanges along a whole axis."""

    def readers(self, step: int) -> Sequence[Sequence[Tensor]]:
        """Give the rows of each part that each part's loss reads at a step: [reader][owner], int64."""

    def note_fetched(self, action: Action, lengths: Sequence[int]) -> None:
        """Note how many rows, own and fetched, the loss reads of each step."""

    def crossed(self, action: Action) -> list[Tensor | None]:
        """Give the rows that cross before the action's half; back, the gradients of what its cell read."""

    def deliver(self, action: Action, rows: Sequence[Tensor]) -> None:
        """Hand the rows to the cell that reads them; back, add the gradients to those that made them."""

    def leaving(self, action: Action) -> Tensor | None:
        """Give what goes to the next stage, or the gradients of what came from the one before, side by side."""

    def enter(self, action: Action, message: Tensor | None) -> None:
        """Take what the stage before sent, or the gradients of what went to the one after."""
