"""`Along`: how the recurrent modules of a view read other steps. One subclass an exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

from torch import Tensor


class BlockEndedError(Exception):
    """All that a first pass over a block wants is made: the states behind it."""


class Along(ABC):
    """The temporal side of a view: it outlives cells, since states are handed on between them."""

    @abstractmethod
    def recur(
        self, call: Hashable, token: Tensor, module: Any, frames: Sequence[Tensor], *, ends: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return what a recurrent module makes of frames [own steps, rows, channels], and the next token."""


def layer_of(call: Hashable) -> int:
    """Return the layer that a call is of."""
    if isinstance(call, tuple):
        return int(call[0])
    raise RuntimeError(f"internal error: {call!r} does not say which layer it is of")
