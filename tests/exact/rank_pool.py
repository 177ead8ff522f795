"""Processes that train many cases with one import: eight ranks and one process alone, as forks of this one.

A group of ranks that hangs, dies or fails is ended and forked again. This process itself computes nothing, so that a
fork inherits no threads.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from compared_runs import HUNG
from exact_case import ExactCase
from rank_work import Outcome, Place, train

RANKS = 8
_FORK = multiprocessing.get_context("fork")
_SETTLE = 3.0
"""Seconds in which the others answer after a rank has failed."""


class _Member:
    """One process and the pipe to it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.log = folder / f"{name}.log"
        self._name = name
        self.start()

    def start(self) -> None:
        self.pipe, far = _FORK.Pipe()
        self.process = _FORK.Process(target=_serve, args=(far, self.log, os.getpid()), name=self._name, daemon=True)
        self.process.start()
        far.close()

    def restart(self) -> None:
        self.end()
        self.start()

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Connection, log: Path, parent: int) -> None:
    """Train what comes through the pipe, until the process that started this one is gone."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    while True:
        while not pipe.poll(1.0):
            if os.getppid() != parent:
                os._exit(0)
        case, place = pipe.recv()
        pipe.send(train(case, place))


def _keep_store(pipe: Connection, parent: int) -> None:
    """Keep the store where ranks meet."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    while os.getppid() == parent:
        time.sleep(1.0)


class RankPool:
    """The processes; `run` trains one case on as many of them as its layout needs, and in one alone.

    Args:
        folder: for what processes print.
        seconds: that a case may take, and after which it is ended.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self._seconds = seconds
        near, far = _FORK.Pipe()
        self._store = _FORK.Process(target=_keep_store, args=(far, os.getpid()), daemon=True)
        self._store.start()
        self._port: int = near.recv()
        self._ranks = [_Member(f"rank-{rank}", folder) for rank in range(RANKS)]
        self._alone = _Member("alone", folder)
        self._number = 0
        self.restarts = 0

    def __enter__(self) -> RankPool:
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes."""
        for member in (*self._ranks, self._alone):
            member.end()
        self._store.kill()
        self._store.join()

    def run(self, case: ExactCase) -> tuple[Outcome, list[Outcome]]:
        """What one process found, and what each rank did."""
        self._number += 2  # a meeting of the ranks, and one of the process alone
        ranks = self._ranks[: case.ranks]
        for rank, member in enumerate(ranks):
            member.pipe.send((case, Place(rank, case.ranks, False, self._number, self._port)))
        self._alone.pipe.send((case, Place(0, int(bool(case.reference)), True, self._number + 1, self._port)))
        outcomes = self._answers([*ranks, self._alone])
        alone = outcomes.pop()
        if any(outcome.failed or outcome.dirty for outcome in outcomes):
            for member in ranks:
                member.restart()
            self.restarts += 1
        if alone.failed or alone.dirty:
            self._alone.restart()
        return alone, outcomes

    def _answers(self, members: list[_Member]) -> list[Outcome]:
        """Wait for all answers; a rank that gives none has hung or died."""
        found: dict[int, Outcome] = {}
        deadline = time.monotonic() + self._seconds
        while len(found) < len(members):
            waited: list[Any] = []
            for number, member in enumerate(members):
                if number not in found:
                    waited += [member.pipe, member.process.sentinel]
            if not wait(waited, max(0.0, deadline - time.monotonic())):
                break
            for number, member in enumerate(members):
                if number in found:
                    continue
                try:
                    if member.pipe.poll():
                        found[number] = member.pipe.recv()
                    elif not member.process.is_alive():
                        found[number] = Outcome(failed=f"the process died ({member.process.exitcode}): {_tail(member)}")
                except EOFError:
                    found[number] = Outcome(failed=f"the process died: {_tail(member)}")
            if any(outcome.failed for outcome in found.values()):
                deadline = min(deadline, time.monotonic() + _SETTLE)
        for number, member in enumerate(members):
            if number not in found:
                os.kill(member.process.pid or 0, signal.SIGUSR1)
                time.sleep(0.2)
                found[number] = Outcome(failed=f"{HUNG}\n{_tail(member)}")
        return [found[number] for number in range(len(members))]


def _tail(member: _Member, lines: int = 20) -> str:
    """The end of what a process printed; of a stack, the frames where it was."""
    text = member.log.read_text(errors="replace") if member.log.exists() else ""
    _, _, stack = text.rpartition("Current thread")
    return "\n".join(stack.splitlines()[:lines])
