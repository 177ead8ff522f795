"""`Along`: how the recurrent modules of a view read other steps; `Alone`: one process has all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from trisect.views.turn import State
from trisect.views.verbs import Asked


class BlockEndedError(Exception):
    """All that a first pass over a block wants is made: the states behind it."""


class Along(ABC):
    """The temporal side of a view: it outlives cells, since states are handed on between them."""

    @abstractmethod
    def recur(
        self, call: Asked, token: Tensor, module: Any, frames: Sequence[Tensor], *, ends: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return what a recurrent module makes of frames [own steps, rows, channels], and the next token."""


class Alone(Along):
    """Some consecutive steps of a timeline, in one graph of autograd.

    Args:
        before: by call, the state before the first of them; absent: the module's own initial state.
        first_step: where in the timeline the first of them stands.

    Attributes:
        after: by call, the state after the last of them.
    """

    def __init__(self, before: Mapping[Asked, State] | None = None, first_step: int = 0) -> None:
        self._before, self._first_step = before or {}, first_step
        self.after: dict[Asked, State] = {}

    def recur(
        self, call: Asked, token: Tensor, module: Any, frames: Sequence[Tensor], *, ends: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return what a recurrent module makes of frames [steps, rows, channels], and the token as it is."""
        state, like = self._before.get(call), frames[0]
        if state is None:
            state = module.initial_state(like.shape[1], dtype=like.dtype, device=like.device)
        out, self.after[call] = module(list(frames), state, self._first_step)
        return out, token
