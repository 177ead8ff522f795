"""`Watch`: what ranks of different hosts know of each other's exchanges, in the store where they met.

Exchanges of the network are matched by a tag that is made from their number, so that a message is never taken for
another; where ranks differ, they wait. A thread of each rank notices that the rank waits and does not go on, leaves the
rank's log in the store, and compares it with the logs of others that wait. Where logs differ it raises the alarm, and
completes the messages that other ranks wait for with a byte each, so that they go on and raise it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress

import torch
import torch.distributed as dist

from trisect.comm.calls import LEFT, Calls, Numbers, Pending
from trisect.comm.world import Store
from trisect.settings.writing import to_json

_FIRST, _RARE = 0.25, 4.0  # seconds between two looks: the first, and at most
_PATIENCE = 20.0  # seconds in which a rank that an alarm reached ends by itself

_watches: list[Watch] = []


class Watch:
    """The logs and the alarm of ranks of other hosts, and the thread that looks after a rank that waits.

    Args:
        calls: of this rank.
        store: where all ranks of the world read and write.
        frees: whether messages that others wait for can be completed from here (gloo).
    """

    def __init__(self, calls: Calls, store: Store, *, frees: bool) -> None:
        self._calls, self._store, self._frees = calls, store, frees
        self._logs: dict[int, Mapping[str, Numbers]] = {}
        self._pending: dict[int, list[Pending]] = {}
        self._freed: set[Pending] = set()
        self._sent: list[object] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="trisect-watch")
        calls.notes = self
        _watches.append(self)
        self._thread.start()

    # What `Calls` asks

    def tell(self, sentence: str) -> None:
        """Let all ranks know of an alarm."""
        with suppress(Exception):
            self._store.set("alarm", to_json(sentence))

    def told(self) -> str | None:
        """Return the alarm of another rank, or None."""
        with suppress(Exception):
            if self._store.check(["alarm"]):
                return str(json.loads(self._store.get("alarm")))
        return None

    def logs(self, rank: int) -> Mapping[str, Numbers]:
        """Return the logs that a rank has left, by axis."""
        with suppress(Exception):
            if self._store.check([f"calls/{rank}"]):
                left = json.loads(self._store.get(f"calls/{rank}"))
                self._logs[rank] = {axis: dict(numbers) for axis, numbers in left["logs"].items()}
                self._pending[rank] = [(peer, tag, size, bool(sends)) for peer, tag, size, sends in left["pending"]]
        return self._logs.get(rank, {})

    # The thread

    def close(self, *, ended: bool) -> None:
        """End the thread; `ended`: this rank has done all that it was to do."""
        self._closed.set()
        self._thread.join(2.0)
        if ended:
            self._calls.note_all(LEFT)
            self._leave([])

    def _leave(self, pending: list[Pending]) -> None:
        self._calls.seen = bool(pending)
        logs = {axis: list(log.items()) for axis, log in self._calls.read().items()}
        with suppress(Exception):
            self._store.set(f"calls/{self._calls.rank}", to_json({"logs": logs, "pending": pending}))

    def _run(self) -> None:
        calls, pause, before, alarmed = self._calls, _FIRST, None, 0.0
        while not self._closed.wait(pause):
            waits, counts = calls.pending, calls.counts()
            if waits is None or counts != before:
                before, pause = (None if waits is None else counts), _FIRST
                continue
            if pause == _FIRST:
                self._leave(waits())
            pause = min(_RARE, 1.5 * pause)
            sentence = calls.find()
            if sentence is None:
                continue
            calls.raise_alarm(sentence)
            self._leave(waits())
            self._free()
            alarmed, pause = alarmed + _FIRST, 1.01 * _FIRST
            if alarmed > _PATIENCE:
                print(f"trisect: {sentence}", file=sys.stderr, flush=True)
                os._exit(1)

    def _free(self) -> None:
        """Complete the messages that other ranks wait for, with as little as they take."""
        if not self._frees:
            return
        for peers in self._calls.axes.values():
            for rank in peers:
                self.logs(rank)
        for rank, pending in self._pending.items():
            for message in pending:
                peer, tag, size, sends = message
                if peer != self._calls.rank or (rank, *message[1:]) in self._freed:
                    continue
                self._freed.add((rank, *message[1:]))
                with suppress(Exception):
                    move = dist.irecv if sends else dist.isend
                    room = torch.zeros(size if sends else 1, dtype=torch.uint8)
                    self._sent.append((room, move(room, rank, tag=tag)))


def end_watches(*, ended: bool = False) -> None:
    """End the threads of this process; see `Watch.close`."""
    for watch in _watches:
        watch.close(ended=ended)
    _watches.clear()
