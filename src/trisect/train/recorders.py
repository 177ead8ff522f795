"""Objects that keep what a run tells: epochs, actions, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor


class Recorder(Protocol):
    """An object that keeps what a run tells."""

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Keep an epoch's `epoch` (1, 2, …), `loss`, `lr`, `seconds`, `sent_bytes` of all ranks together and
        `peak_rss_bytes` of the rank that holds most, and where evaluated `train`, `val`, `test`.
        """

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        """Keep an action that ran."""

    def checkpoint(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, best: bool) -> None:
        """Keep the state after meta["epoch"] epochs; `best` where that epoch is the best so far."""


class Offer(Protocol):
    """A function that takes a state, as `Recorder.checkpoint` does, and copies it before it returns."""

    def __call__(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, best: bool) -> None:
        """Take the state after meta["epoch"] epochs."""


class NoRecorder:
    """A recorder that keeps nothing."""

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Do nothing with an epoch's record."""

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        """Do nothing with an action that ran."""

    def checkpoint(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, best: bool) -> None:
        """Do nothing with the state after an epoch."""


class EpochsOnly(NoRecorder):
    """A recorder that hands epochs on and keeps nothing."""

    def __init__(self, on_epoch: Callable[[Mapping[str, Any]], None]) -> None:
        self._on_epoch = on_epoch

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Hand the record of the epoch on."""
        self._on_epoch(record)


class WithCopies(NoRecorder):
    """Hands everything on to a recorder, and tensors of a checkpoint as copies that it may keep."""

    def __init__(self, recorder: Recorder) -> None:
        self.epoch, self.event = recorder.epoch, recorder.event  # type: ignore[method-assign]
        self._recorder = recorder

    def checkpoint(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, best: bool) -> None:
        """Hand copies of the state after an epoch on."""
        self._recorder.checkpoint({name: value.clone() for name, value in tensors.items()}, meta, best=best)


class Several:
    """Tells several recorders, one after the other."""

    def __init__(self, *recorders: Recorder) -> None:
        self._recorders = recorders

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Hand an epoch's record to every recorder."""
        for recorder in self._recorders:
            recorder.epoch(record)

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        """Hand an action that ran to every recorder."""
        for recorder in self._recorders:
            recorder.event(name, start, seconds, **fields)

    def checkpoint(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, best: bool) -> None:
        """Hand the state after an epoch to every recorder."""
        for recorder in self._recorders:
            recorder.checkpoint(tensors, meta, best=best)
