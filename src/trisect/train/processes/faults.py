"""How a rank that ends badly says so: to our launcher, to torchrun, and to the ranks that are left."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from fnmatch import fnmatchcase
from pathlib import Path

from trisect.comm.world import FAILURES, FOLDERS, LAUNCHER, Store, World, agent_store, restart_count
from trisect.errors import FaultError, RunError, StoppedError, TrisectError
from trisect.settings.writing import to_json

OURS = ("trisect-*", ".*.rows")  # how temporary folders are named; no other is removed
ASKED = "asked"  # how the file is named that a rank leaves for its launcher when it gets SIGTERM
_SETTLE = 2.0  # seconds in which ranks that fail at about the same time leave word of it
_LATEST = 20.0  # seconds in which the others notice that a rank is silent, on a machine that has much else to do
_TIDYING = 30.0  # seconds, at most, in which what a launcher left is removed
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux
_LOST = (
    "Connection closed",
    "Connection reset",
    "Broken pipe",
    "Timed out",
    "timed out",
    "Connection refused",
    "wait timeout",
)


class Phase(IntEnum):
    """How far a rank has come before its first epoch."""

    STARTED = 1
    MEETS = 2
    MET = 3
    JOINED = 4
    READY = 5


class LostRankError(FaultError):
    """Another rank is gone, or was silent for too long."""


def follow_launcher() -> None:
    """As a rank that our launcher started: leave when it is gone, and take its temporary folders along."""
    launcher = os.environ.get(LAUNCHER)
    if launcher is None:
        return
    _wake_when_alone()
    threading.Thread(target=_leave_when_alone, args=(int(launcher),), daemon=True).start()


def _wake_when_alone() -> None:
    """Let the system continue this process, should it be stopped, when the launcher is gone: it can then leave."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, int(signal.SIGCONT), 0, 0, 0)


def _is_alone() -> bool:
    """Say whether our launcher started this rank and is gone."""
    launcher = os.environ.get(LAUNCHER)
    return launcher is not None and os.getppid() != int(launcher)


def _leave_when_alone(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(0.5)
    try:
        # killed, it could not; every rank does, since any of them may be killed as well
        remove_folders(os.environ.get(FOLDERS, "[]"))
    finally:
        os._exit(1)


def remove_folders(names: str) -> None:
    """Remove the temporary folders that a launcher names: a JSON list, of which absolute paths named as ours count."""
    for folder in map(Path, json.loads(names)):
        if folder.is_absolute() and any(fnmatchcase(folder.name, pattern) for pattern in OURS):
            _remove_folder(folder)


def _remove_folder(folder: Path) -> None:
    """Remove a folder into which others still write by its name: it is taken away first, so that nothing new comes in
    while it is emptied."""
    with suppress(OSError):
        away = tempfile.mkdtemp(prefix="trisect-", dir=folder.parent)
        try:
            folder.rename(Path(away, folder.name))  # fails where another rank was faster
        finally:
            shutil.rmtree(away, ignore_errors=True)


def show_phase(rank: int, phase: Phase) -> None:
    """Let our launcher know how far this rank has come."""
    folder = os.environ.get(FAILURES)
    if folder is not None:
        with suppress(OSError):
            Path(folder, f"rank-{rank}.phase").write_text(str(int(phase)))


def tell_request(rank: int) -> None:
    """Let our launcher know that this rank was asked to end: another one may be lost before all have stopped."""
    folder = os.environ.get(FAILURES)
    if folder is not None:
        with suppress(OSError):
            Path(folder, f"rank-{rank}.{ASKED}").touch()


def tell_failure(
    rank: int, message: str, *, of_peer: bool, exit_code: int = 1, fault: bool = False, unexpected: bool = False
) -> None:
    """Leave word for the launcher, ours or torchrun, of why this rank ends.

    Args:
        of_peer: it only lost another one.
        fault: the run may go on when it is started again.
        unexpected: what it printed on standard error helps to understand it.
    """
    folder = os.environ.get(FAILURES)
    if folder is not None:
        note = {
            "rank": rank,
            "time": time.time(),
            "message": message,
            "of_peer": of_peer,
            "exit_code": exit_code,
            "fault": fault or unexpected,
            "unexpected": unexpected,
        }
        draft = Path(folder, f".rank-{rank}.json")
        with suppress(OSError):
            draft.write_text(to_json(note))
            draft.replace(Path(folder, f"rank-{rank}.json"))
    elif not of_peer:
        tell_torchrun(message)


def tell_torchrun(message: str) -> None:
    """Leave a sentence with torchrun, which prints that of the first rank that failed at the very end."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if file is not None:
        # without a call stack, torchrun shows the message
        extra = {"timestamp": str(int(time.time()))}
        with suppress(OSError):
            Path(file).write_text(to_json({"message": {"message": message, "extraInfo": extra}}))


@contextmanager
def reporting_failures(world: World) -> Iterator[None]:
    """Tell whoever started this rank why it ends badly."""
    follow_launcher()
    show_phase(world.rank, Phase.STARTED)
    try:
        yield
    except TrisectError as error:
        tell_failure(
            world.rank,
            str(error),
            of_peer=isinstance(error, LostRankError),
            exit_code=error.exit_code,
            fault=isinstance(error, FaultError),
        )
        if FAILURES in os.environ:
            leave(error.exit_code)  # the launcher says it
        raise
    except SystemExit as error:  # a model, a task or a library that ends the process: the others would wait for it
        message = f"something in it ended the process (SystemExit: {error.code})."
        tell_failure(world.rank, message, of_peer=False, unexpected=True)
        traceback.print_exc()
        leave(1)
    except Exception as error:
        if _is_alone():
            leave(1)  # whatever went wrong: another rank has noticed it too, and removed what this one was reading
        tell_failure(world.rank, f"{type(error).__name__}: {error}", of_peer=False, unexpected=True)
        raise


@contextmanager
def be_rank(world: World) -> Iterator[None]:
    """As `reporting_failures`; a rank that lost another says so and leaves at once."""
    try:
        with reporting_failures(world):
            yield
    except LostRankError as error:
        print(f"trisect: {error}", file=sys.stderr)
        leave(error.exit_code)


@contextmanager
def refusing_again(world: World | None) -> Iterator[None]:
    """Under torchrun, which starts ranks again after any error: let those end at once that would come again.

    An error that is no fault is left with torchrun's agent, whose store outlives the ranks; ranks of a later attempt
    (and of the same number) raise it before they do anything.
    """
    store = None if world is None else agent_store(world)
    if world is None or store is None:
        yield
        return
    key = f"refused/{world.size}"
    if restart_count() > 0 and store.check([key]):
        said = json.loads(store.get(key))
        error = RunError(str(said["message"]))
        error.exit_code = int(said["exit_code"])
        raise error
    try:
        yield
    except TrisectError as error:
        if not isinstance(error, FaultError | StoppedError):
            said = {"message": str(error), "exit_code": error.exit_code}
            _ask(lambda: store.set(key, to_json(said)))
        raise


def leave(code: int) -> None:
    """End at once: with ranks gone and messages under way, an orderly end could wait for them or abort."""
    if _is_alone():
        time.sleep(_TIDYING)  # the thread that watches the launcher removes its folders, and ends the process
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def naming_lost_ranks(store: Store, world: World) -> Iterator[None]:
    """Turn torch's complaint about an address into a sentence that names the rank which ended or was silent.

    A rank that fails leaves its reason in the store. One that only notices asks there who has left none.

    Raises:
        LostRankError: in place of the RuntimeError that torch.distributed raises for a lost peer.
    """
    try:
        yield
    except Exception as error:
        if is_lost(error):
            raise LostRankError(_name(store, world, error)) from error
        reason = str(error) if isinstance(error, TrisectError) else f"{type(error).__name__}: {error}"
        if FAILURES not in os.environ:
            _ask(lambda: store.set(f"failed/{world.rank}", reason))
        raise


def is_lost(error: BaseException) -> bool:
    """Say whether torch.distributed raised this because another rank is gone or silent."""
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _LOST)


def _name(store: Store, world: World, error: BaseException) -> str:
    said = str(error).splitlines()[0].split("] ", 1)[-1]
    if FAILURES in os.environ:  # the launcher sees all ranks, and names it
        return f"lost another rank ({said})."
    if not _ask(lambda: store.set(f"lost/{world.rank}", "1")):  # the store was that of the rank which is lost
        return f"rank {world.rank} lost another rank ({said})."
    reasons: dict[str, str] = {}

    def ask() -> None:
        time.sleep(_SETTLE)
        # ranks begin to wait for a silent one at different times: one that has not noticed yet need not be silent
        _until(lambda: len(_without(store, world, "lost")) <= 1 or bool(_failures(store, world)), _LATEST)
        reasons.update(_failures(store, world))
        silent = [rank for rank in _without(store, world, "lost") if not store.check([f"failed/{rank}"])]
        if silent:
            reasons["silent"] = f"rank {', '.join(map(str, silent))} is gone or silent; the run is stopped."
        store.set(f"named/{world.rank}", "1")
        if world.rank == 0:  # the store may be ours, and others may still ask
            unaware = set(_without(store, world, "lost"))
            _until(lambda: unaware.issuperset(_without(store, world, "named")), _LATEST)

    _ask(ask, 3 * _LATEST)
    return reasons.get("failed") or reasons.get("silent") or f"rank {world.rank} lost another rank ({said})."


def _without(store: Store, world: World, word: str) -> list[int]:
    """Give the ranks that have not left this word."""
    return [rank for rank in range(world.size) if not store.check([f"{word}/{rank}"])]


def _failures(store: Store, world: World) -> dict[str, str]:
    """Give why a rank failed, where one has left word of it."""
    failed = sorted(set(range(world.size)) - set(_without(store, world, "failed")))
    return {"failed": f"rank {failed[0]}: {store.get(f'failed/{failed[0]}').decode()}"} if failed else {}


def _until(ready: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not ready() and time.monotonic() < deadline:
        time.sleep(0.05)


def _ask(question: Callable[[], object], seconds: float = _SETTLE + 3.0) -> bool:
    """Ask the store, which may be gone as well, for some seconds; say whether it answered."""
    answered: list[bool] = []

    def attempt() -> None:
        with suppress(Exception):
            question()
            answered.append(True)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(answered)
