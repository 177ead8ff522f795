"""Writes checkpoints beside the training: the state is copied between two epochs, and a thread hashes and writes it.

Ranks write their shards each, at their own pace. They agree by notes and by no exchange of the training: rank 0 opens
the draft, every rank says what its shard is, and rank 0 commits when it knows all of them (and has fetched those of
ranks that do not see the draft). A checkpoint is therefore whole, or not there.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trisect.comm.notes import Notes, OwnNotes, wait_for
from trisect.ops.memory import free_bytes
from trisect.train.run.apart import Apart
from trisect.train.run.checkpoint import Checkpoints, Shard, write_shard
from trisect.train.run.replicas import replica_digest, require_equal_replicas

_POLL = 0.01  # seconds
_LONGEST_POLL = 0.2
_NICE = 10
_SHARE = 0.5  # of the free memory that copies may take
_LARGE = 64 << 20  # bytes of history, which would take as much again
# the trainer replaces these tensors as a whole and never writes into them, so that they need no copy
_NEVER_CHANGED = ("best.", "good.")
HISTORY = "program."


class CheckpointWriter:
    """Writes one checkpoint at a time; the next one waits for it.

    Args:
        rank, world: this rank, and how many write together.
        notes: of these ranks.
        compare: whether ranks that hold the same parameters are compared before a checkpoint is whole.
        asynchronous: False: each checkpoint is waited for, without a copy.
        timeout: seconds that a rank waits for the shards of others when its own is written.
        before_commit: called in the thread of rank 0 when all shards are on the disk.
        apart: of the ranks that hand their files to rank 0, where there are any.

    Attributes:
        seconds: that the latest checkpoint took to be whole, its copies apart.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        *,
        rank: int = 0,
        world: int = 1,
        notes: Notes | None = None,
        compare: bool = False,
        asynchronous: bool = True,
        timeout: float = 300.0,
        before_commit: Callable[[], None] = lambda: None,
        apart: Apart | None = None,
    ) -> None:
        self._checkpoints, self._rank, self._world = checkpoints, rank, world
        self._notes = OwnNotes() if notes is None else notes
        self._compare, self._asynchronous, self._before_commit = compare and world > 1, asynchronous, before_commit
        self._timeout, self._apart = timeout, apart
        self._buffers: dict[str, Tensor] = {}
        # of the checkpoint that is being written; an event, since a thread whose `join` is interrupted counts as ended
        self._written: threading.Event | None = None
        self._failure: BaseException | None = None
        self._given_up, self._offered = threading.Event(), False
        self._waits_since: float | None = None
        self.seconds = 0.0

    def begin(
        self,
        tensors: Mapping[str, Tensor],
        own: Callable[[str], bool],
        meta: Mapping[str, Any],
        *,
        best: bool,
        offered: bool = False,
        last: bool = False,
    ) -> None:
        """Copy the state after meta["epoch"] epochs, and begin to write it.

        Args:
            tensors: all that this rank holds.
            own: whether this rank writes the tensor of a name.
            offered: this state is good to have and nobody relies on it: other ranks may not write theirs, and the next
                checkpoint does not wait for them.
            last: nothing is computed beside it, and nothing is copied.
        """
        if self._offered:
            self._given_up.set()
        self.wait()
        self._waits_since = None
        self._given_up.clear()
        self._offered = offered
        copied = self._asynchronous and not last and self._has_room(tensors)
        if offered and not copied:
            return
        kept = self._copied(tensors) if copied else dict(tensors)
        arguments = (f"checkpoint-{meta['epoch']}", kept, own, dict(meta), best)
        self._written = threading.Event()
        threading.Thread(target=self._attempt, args=(self._written, *arguments), name="checkpoint", daemon=True).start()
        if not copied:
            self.wait()

    @property
    def writing(self) -> bool:
        """Say whether a checkpoint is being written."""
        return self._written is not None and not self._written.is_set()

    def check(self) -> None:
        """Raise what went wrong in the thread, if anything did."""
        if self._failure is not None:
            raise self._failure

    def wait(self, patience: float | None = None) -> None:
        """Wait until the checkpoint that is being written is whole on all ranks, and raise what went wrong.

        Args:
            patience: seconds; None: as long as it takes.
        """
        end = None if patience is None else time.monotonic() + patience
        while self._written is not None:
            if self._written.wait(_LONGEST_POLL):
                self._written = None
            elif end is not None and time.monotonic() > end:
                break
            elif self._waits_since is not None and time.monotonic() - self._waits_since > self._timeout:
                # the store may be that of a rank which does not answer
                raise RuntimeError(f"Timed out: other ranks did not write a checkpoint within {self._timeout:g} s")
        self.check()

    def abandon(self) -> None:
        """Abandon the checkpoint that is being written, if any; rank 0 removes its draft."""
        if not self.writing or self._written is None:
            return
        self._given_up.set()
        for _ in range(2):  # the thread may just have been about to make it
            if self._rank == 0:
                with suppress(OSError):
                    self._checkpoints.remove_drafts()
            self._written.wait(_LONGEST_POLL)

    def _has_room(self, tensors: Mapping[str, Tensor]) -> bool:
        """Say whether the memory has room for the copies. Large history has none: it may fill half of the memory."""
        if sum(value.nbytes for name, value in tensors.items() if name.startswith(HISTORY)) > _LARGE:
            return False
        copied = {name: value for name, value in tensors.items() if _is_copied(name, value)}
        more = sum(value.nbytes for name, value in copied.items() if not self._fits(name, value))
        return more <= _SHARE * free_bytes(torch.device("cpu")) / self._world

    def _fits(self, name: str, value: Tensor) -> bool:
        buffer = self._buffers.get(name)
        return buffer is not None and buffer.shape == value.shape and buffer.dtype == value.dtype

    def _copied(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Give the tensors as they are now, in memory that is used again by the next checkpoint."""
        copies: dict[str, Tensor] = {}
        for name, value in tensors.items():
            if not _is_copied(name, value):
                copies[name] = value.detach()
                continue
            if not self._fits(name, value):
                pinned = value.device.type == "cuda"
                self._buffers[name] = torch.empty(value.shape, dtype=value.dtype, device="cpu", pin_memory=pinned)
            copies[name] = self._buffers[name].copy_(value.detach(), non_blocking=value.device.type == "cuda")
        for name in self._buffers.keys() - tensors.keys():
            del self._buffers[name]
        if any(value.device.type == "cuda" for value in tensors.values()):
            torch.cuda.synchronize()
        return copies

    def _attempt(self, written: threading.Event, *arguments: Any) -> None:
        # hashing and writing give way to the epoch that goes on beside them; on Linux a thread has its own priority
        if self._asynchronous and sys.platform == "linux":
            with suppress(OSError):
                own = threading.get_native_id()
                os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + _NICE)
        begin = time.perf_counter()
        try:
            self._write(*arguments)
            self.seconds = time.perf_counter() - begin
        except BaseException as error:
            if not self._offered:
                self._failure = error
            with suppress(Exception):  # the others need not wait; this rank says why
                self._leave(f"{arguments[0]}/failed", self._rank)
        finally:
            written.set()

    def _write(
        self,
        key: str,
        tensors: Mapping[str, Tensor],
        own: Callable[[str], bool],
        meta: Mapping[str, Any],
        best: bool,
    ) -> None:
        epoch = int(meta["epoch"])
        if self._given_up.is_set():
            return
        if self._rank == 0:
            draft = self._checkpoints.draft(epoch)
            self._leave(f"{key}/draft", str(draft))
        else:
            path = self._found(key, "draft")
            if path is None:
                return
            draft = Path(path) if self._apart is None or not self._apart.here else self._apart.directory
        shard = write_shard(draft, self._rank, {name: value for name, value in tensors.items() if own(name)})
        digest = replica_digest(tensors) if self._compare else None
        self._leave(f"{key}/shard-{self._rank}", {"shard": shard.plain(), "digest": digest})
        if self._rank > 0:
            if self._apart is not None and self._apart.here:
                self._apart.give(key, shard.file, self._goes_on(key), events=not self._offered)
            self._found(key, "whole")
            return
        written: list[dict[str, Any]] = []
        for rank in range(self._world):
            one = self._found(key, f"shard-{rank}")
            if one is None or not self._taken(key, rank, draft, one["shard"]):
                if self._offered:  # otherwise the run ends, and others may still write into it
                    shutil.rmtree(draft, ignore_errors=True)
                return
            written.append(one)
        if self._compare:
            require_equal_replicas([one["digest"] for one in written], epoch)
        self._before_commit()
        shards = [Shard.from_plain(one["shard"]) for one in written]
        self._checkpoints.commit(draft, shards, meta, epoch=epoch, best=best)
        self._leave(f"{key}/whole", epoch)

    def _leave(self, name: str, value: Any) -> None:
        self._waits_since = time.monotonic()
        self._notes.leave(name, value)
        self._waits_since = None

    def _found(self, key: str, name: str) -> Any | None:
        """Wait for a note; None where a rank could not write its shard, or this checkpoint is given up."""
        self._waits_since = time.monotonic()
        missing = f"the {name} of {key} was not there"
        value = wait_for(lambda: self._notes.find(f"{key}/{name}"), self._goes_on(key), self._timeout, missing, _POLL)
        self._waits_since = None
        return value

    def _taken(self, key: str, rank: int, draft: Path, shard: Mapping[str, Any]) -> bool:
        """Fetch the shard of a rank that cannot write into the draft; False where this checkpoint is given up."""
        if self._apart is None:
            return True
        made, events = Shard.from_plain(shard), not self._offered
        taken = self._apart.take(key, rank, draft, made, self._goes_on(key), events=events)
        self._waits_since = None
        return taken

    def _goes_on(self, key: str) -> Callable[[], bool]:
        """Give what says, each time that the store has answered, whether this checkpoint is still wanted by all."""

        def ask() -> bool:
            self._waits_since = time.monotonic()
            return not self._given_up.is_set() and self._notes.find(f"{key}/failed") is None

        return ask


def _is_copied(name: str, value: Tensor) -> bool:
    return value.device.type != "cpu" or not name.startswith(_NEVER_CHANGED)
