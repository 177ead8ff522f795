"""`RunRecorder` writes what the trainer of one rank tells: a line an epoch, what it did when, and checkpoints."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from trisect.comm.notes import Notes
from trisect.settings.writing import to_json
from trisect.train.run.apart import Apart
from trisect.train.run.run_directory import METRICS, RESTART, RunDirectory
from trisect.train.run.trackers import Trackers
from trisect.train.run.writer import HISTORY, CheckpointWriter


class RunRecorder:
    """Writes what the trainer of one rank tells to the run directory.

    Rank 0 writes metrics, hands them to trackers, and writes the manifest of a checkpoint; every rank its events and
    its shard.

    Args:
        on_epoch: called with each epoch's record, for progress.
        world, notes: how many ranks write together, and where they leave word for each other.
        holds_parameters: whether this rank writes the parameters of its stage, which all its parts and runs hold.
        compare: whether ranks that hold the same parameters are compared before a checkpoint is whole.
        timeout: seconds that a checkpoint waits for the shards of others.
        meta: what each checkpoint says besides the trainer's state.
        apart: of the ranks that hand their files to rank 0, where there are any.
    """

    def __init__(
        self,
        directory: RunDirectory,
        *,
        rank: int = 0,
        on_epoch: Callable[[Mapping[str, Any]], None] = lambda record: None,
        world: int = 1,
        notes: Notes | None = None,
        holds_parameters: bool = True,
        compare: bool = False,
        timeout: float = 300.0,
        meta: Mapping[str, Any] | None = None,
        apart: Apart | None = None,
    ) -> None:
        self._on_epoch, self._holds_parameters = on_epoch, holds_parameters
        self._meta, self._epochs = dict(meta or {}), directory.config.train.epochs
        (directory.path / "events").mkdir(exist_ok=True)
        self._metrics = (directory.path / METRICS).open("a", encoding="utf-8") if rank == 0 else None
        self._events = (directory.path / "events" / f"rank-{rank}.jsonl").open("a", encoding="utf-8")
        name = directory.checkpoints.run
        self._trackers = Trackers(directory.path, directory.config, name) if rank == 0 else None
        self._fields: dict[str, Any] = {}
        self._ending = ""
        self._writer = CheckpointWriter(
            directory.checkpoints,
            rank=rank,
            world=world,
            notes=notes,
            compare=compare,
            timeout=timeout,
            before_commit=self._sync_metrics,
            apart=apart,
        )

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Write one line of metrics.jsonl; raises what went wrong with the checkpoint that was being written."""
        self._writer.check()
        if self._metrics is not None:
            self._metrics.write(to_json(dict(record)) + "\n")
            self._metrics.flush()
        self._events.flush()
        if self._trackers is not None:
            self._trackers.epoch(record)
        self._on_epoch(record)

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        """Write what a rank did; `start` is in seconds since 1970."""
        # actions are many: what they have in common is made once, and the rest without a dictionary
        if fields != self._fields:
            self._fields = fields
            self._ending = "".join(f", {to_json(key)}: {to_json(value)}" for key, value in fields.items())
        self._events.write(f'{{"name": {_quoted(name)}, "start": {start!r}, "seconds": {seconds!r}{self._ending}}}\n')

    def restarted(self, count: int, command: str = "") -> None:
        """Write that the run was started again by itself; `count`: how often since the command of this name began."""
        self.event(RESTART, time.time(), 0.0, count=count, command=command)
        self._events.flush()

    def checkpoint(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, best: bool) -> None:
        """Copy the state after meta["epoch"] epochs, and begin to write it; waits for the checkpoint before it."""
        last = int(meta["epoch"]) >= self._epochs
        self._writer.begin(tensors, self._writes, {**meta, **self._meta}, best=best, last=last)

    def offer(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, best: bool) -> None:
        """As `checkpoint`, of a state that other ranks may not have any more; it is then not written."""
        self._writer.begin(tensors, self._writes, {**meta, **self._meta}, best=best, offered=True)

    def _writes(self, name: str) -> bool:
        return self._holds_parameters or name.startswith(HISTORY)

    def _sync_metrics(self) -> None:
        if self._metrics is not None:
            os.fsync(self._metrics.fileno())  # a checkpoint must not know epochs that metrics.jsonl forgot

    def finish(self, patience: float | None = None) -> None:
        """Wait until the last checkpoint is whole, for so many seconds at most; raises what went wrong with it."""
        self._writer.wait(patience)

    def abandon(self) -> None:
        """Abandon a checkpoint that is still being written, and remove its draft."""
        self._writer.abandon()

    def close(self, *, wait: bool = True) -> None:
        """Wait for the last checkpoint, and close the files of metrics, events and trackers."""
        try:
            if wait:
                self.finish()
        finally:
            self._close()

    def _close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
        self._events.close()
        if self._trackers is not None:
            self._trackers.close()


@functools.lru_cache(maxsize=1 << 14)
def _quoted(name: str) -> str:
    return to_json(name)
