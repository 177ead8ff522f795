"""Callbacks: objects of the user that are told when splits were measured, an epoch ends, a checkpoint is taken.

They are called on every rank, in the process where the rank is, between epochs, when no message is under way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trisect.errors import CheckpointError, ConfigError, RunError, TrisectError
from trisect.settings.plain_state import from_plain, to_plain
from trisect.train.program import Program


@dataclass(frozen=True, eq=False)
class TrainState:
    """The state of training, as callbacks are told of it; see docs/own.md for what they may change.

    Attributes:
        epoch: 1, 2, …; `loss` of all ranks together, `lr` that was used.
        metrics: split → measure → value of the newest evaluation; empty before it.
        best: whether it was the best so far.
        modules: `model` and `decoder` of this rank: the layers of its stage.
        optimizer: torch's, over the parameters of this rank.
        rank, world: of this process.
    """

    epoch: int
    loss: float
    lr: float
    metrics: Mapping[str, Mapping[str, Any]]
    best: bool
    modules: nn.ModuleDict
    optimizer: torch.optim.Optimizer
    rank: int
    world: int
    _asked: list[bool] = field(default_factory=list, repr=False)

    def stop(self) -> None:
        """End training after this epoch, on all ranks; one that asks is enough."""
        self._asked.append(True)


class Callbacks:
    """The callbacks of a run, in the order in which they are called."""

    def __init__(self, callbacks: Sequence[Any], program: Program) -> None:
        self._callbacks, self._program = callbacks, program
        self._asked: list[bool] = []

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def tell(self, method: str, **state: Any) -> None:
        """Call a method of all callbacks that have it."""
        mesh = self._program.mesh
        for callback in self._callbacks:
            called = getattr(callback, method, None)
            if called is None:
                continue
            try:
                called(TrainState(**state, rank=mesh.rank, world=mesh.layout.world, _asked=self._asked))
            except TrisectError:
                raise
            except Exception as error:
                name = f"{type(callback).__name__}.{method}"
                raise RunError(
                    f"callback {name} failed after epoch {state['epoch']}: {type(error).__name__}: {error}."
                ) from error

    def stops(self) -> bool:
        """Whether a callback of any rank has asked to stop; all ranks call it together."""
        return bool(self._callbacks) and self._program.total(float(len(self._asked))) > 0

    def plain(self) -> list[Any]:
        """Return the state of those that have a `state_dict`, as JSON has it."""
        return [
            to_plain(callback.state_dict(), f"callback {type(callback).__name__}")
            if hasattr(callback, "state_dict")
            else None
            for callback in self._callbacks
        ]

    def load(self, plain: Any) -> None:
        """Take up what `plain` gave."""
        if not isinstance(plain, list) or len(plain) != len(self._callbacks):
            raise CheckpointError(
                f"train.callbacks has {len(self._callbacks)}, and the checkpoint was made with another number of them;"
                " give the same callbacks."
            )
        try:
            states = [from_plain(state) for state in plain]
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint's state of callbacks cannot be read ({error}).") from None
        for callback, state in zip(self._callbacks, states, strict=True):
            if state is not None:
                if not hasattr(callback, "load_state_dict"):
                    raise ConfigError(f"callback {type(callback).__name__} has a state_dict and no load_state_dict.")
                callback.load_state_dict(state)
