"""Start the local ranks of a run, watch them, and end all when one ends badly, naming the first that did."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch

from trisect.comm.cores import usable_cores
from trisect.comm.interface import loopback
from trisect.comm.world import FAILURES, FOLDERS, LAUNCHER, LISTENER
from trisect.errors import FaultError, LayoutError, RunError, StoppedError, TrisectError
from trisect.ops.memory import free_bytes
from trisect.settings.writing import to_json
from trisect.train.processes.faults import ASKED, Phase
from trisect.train.processes.folders import temporary_folder
from trisect.train.processes.stopping import StopRequest, deaf_to_ctrl_c, heeding_requests, undisturbed

_POLL = 0.05
_GRACE = 5.0
_SETTLE = 3.0
_LEAST = 150 << 20  # what a rank takes before it has any data: the interpreter and torch


def launch(
    command: Sequence[str],
    world: int,
    *,
    threads: int | None = None,
    environment: Mapping[str, str] | None = None,
    handed: bytes = b"",
    folders: Sequence[str | Path] = (),
    on_poll: Callable[[], None] = lambda: None,
    startup: float | None = None,
    grace: float | None = None,
) -> None:
    """Run `command` once a rank on this machine, with the variables that torchrun would set.

    Rank 0 keeps the terminal; what the others print on standard error is shown if they fail. Whatever ends this call
    (an exception, Ctrl-C) ends the ranks.

    Args:
        threads: for each rank; cores / ranks by default.
        handed: what each rank reads from its standard input.
        folders: temporary ones of the caller, which the ranks remove if this process is killed; their names are
            among `faults.OURS`.
        on_poll: called now and then while the ranks run.
        startup: seconds after the last rank that came further, when those that are behind count as stalled; until all
            have said that they are ready (`faults.show_phase`). None: they may take any time.
        grace: seconds that ranks have to end by themselves when this process gets SIGTERM, which is handed on to them.
            None: they end at once.

    Raises:
        RunError: names the first rank that ended badly, and why; with that rank's exit code where it is the user's
            mistake. A FaultError where the run may go on when it is started again.
        StoppedError: this process, or a rank, was asked to end.
        LayoutError: there is no room for so many processes.
    """
    require_room(world)
    each = {"OMP_NUM_THREADS": str(max(1, usable_cores() // world) if threads is None else threads)}
    if world == 1 and threads is None:
        each = {}  # as without a launcher
    with (
        temporary_folder("trisect-ranks-") as folder,
        nullcontext() if grace is None else heeding_requests(2 * grace + _GRACE) as stop,
    ):
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            # handed over as it is: a port that was probed and closed could be another's by the time it is used
            with socket.create_server(("127.0.0.1", 0), backlog=max(128, world)) as listener:
                local = loopback()
                for rank in range(world):
                    variables = {
                        **os.environ,
                        **each,
                        **(environment or {}),
                        "RANK": str(rank),
                        "LOCAL_RANK": str(rank),
                        "WORLD_SIZE": str(world),
                        "LOCAL_WORLD_SIZE": str(world),
                        "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": str(listener.getsockname()[1]),
                        **local,
                        LAUNCHER: str(os.getpid()),
                        FAILURES: str(folder),
                        FOLDERS: to_json([os.path.abspath(name) for name in (folder, *folders)]),
                    }
                    if rank == 0:
                        variables[LISTENER] = str(listener.fileno())
                    with (
                        open(Path(folder, f"rank-{rank}.err"), "wb") as errors,
                        tempfile.TemporaryFile() as stdin,
                        undisturbed(),  # a process that was started is among the ranks, which are ended
                        deaf_to_ctrl_c(),
                    ):
                        stdin.write(handed)
                        stdin.seek(0)
                        ranks.append(
                            subprocess.Popen(  # noqa: S603
                                list(command),
                                env=variables,
                                stdin=stdin,
                                stdout=None if rank == 0 else subprocess.DEVNULL,
                                stderr=None if rank == 0 else errors,
                                pass_fds=(listener.fileno(),) if rank == 0 else (),
                                start_new_session=True,  # signals of the terminal reach this process alone
                            )
                        )
            # only rank 0 has the socket now, so that the meeting ends with it
            start = None if startup is None else Start(folder, world, startup)
            failure: TrisectError | None
            first = _watch(ranks, on_poll, start, stop)
            if stop is not None and stop.asked:
                failure = _ask(ranks, on_poll, grace or 0.0)
            else:
                failure = None if first is None else _failure(folder, ranks, first)
                if isinstance(failure, FaultError) and _was_asked(folder, ranks):
                    failure = StoppedError("Stopped, as asked (SIGTERM).")
        finally:
            with undisturbed():
                _end(ranks)
        on_poll()
        if failure is not None:
            raise failure


def require_room(world: int) -> None:
    """Raise a LayoutError where this machine cannot hold so many ranks, whatever they are to do."""
    free = free_bytes(torch.device("cpu"), bounded=False)
    if world * _LEAST > free:
        room = free // _LEAST
        remedy = f"use at most {room} ranks" if room > 1 else "use one rank" if room == 1 else "end other programs"
        raise LayoutError(
            f"The layout needs {world} rank{'s' if world > 1 else ''}, and this machine has {free >> 20} MiB of free "
            f"memory, where each takes at least {_LEAST >> 20}; {remedy}, or use several hosts with torchrun."
        )


class Start:
    """Watches how far ranks come before the first epoch."""

    def __init__(self, folder: Path, world: int, patience: float) -> None:
        self._folder, self._patience = folder, patience
        self._phases = [0] * world
        self._last = time.monotonic()

    def look(self) -> None:
        """Read how far each rank is.

        Raises:
            RunError: names those that are behind others, and have been since the patience ended.
        """
        if min(self._phases) >= Phase.READY:
            return
        phases = [self._phase(rank) for rank in range(len(self._phases))]
        if phases != self._phases:
            self._phases, self._last = phases, time.monotonic()
        behind = [rank for rank, phase in enumerate(phases) if phase < max(phases)]
        if not behind and phases[0] == Phase.MEETS:
            behind = [0]  # where ranks meet, all wait for the first, and for nothing else
        if behind and time.monotonic() - self._last > self._patience:
            which = f"rank {behind[0]} has" if len(behind) == 1 else f"ranks {', '.join(map(str, behind))} have"
            raise FaultError(
                f"{which} stalled before the first epoch, {self._patience:g} s behind the others; the run is stopped"
                " (train.startup_timeout)."
            )

    def _phase(self, rank: int) -> int:
        with suppress(OSError, ValueError):
            return int(Path(self._folder, f"rank-{rank}.phase").read_text())
        return self._phases[rank]


def _watch(
    ranks: Sequence[subprocess.Popen[bytes]],
    on_poll: Callable[[], None],
    start: Start | None = None,
    stop: StopRequest | None = None,
) -> int | None:
    """Wait for all ranks, or until this process is asked to end; give the first that ends badly, or None."""
    running = set(range(len(ranks)))
    while running and not (stop is not None and stop.asked):
        for rank in sorted(running):
            code = ranks[rank].poll()
            if code is not None:
                running.discard(rank)
                if code != 0:
                    return rank
        on_poll()
        if start is not None and running:
            start.look()
        time.sleep(_POLL)
    return None


def _ask(ranks: Sequence[subprocess.Popen[bytes]], on_poll: Callable[[], None], grace: float) -> StoppedError | None:
    """Let ranks end by themselves, when their state is kept; give None where they had done all their work."""
    for rank in ranks:
        if rank.poll() is None:
            rank.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + grace + _GRACE
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
        on_poll()
        time.sleep(_POLL)
    return None if all(rank.poll() == 0 for rank in ranks) else StoppedError("Stopped, as asked (SIGTERM).")


def _was_asked(folder: Path, ranks: Sequence[subprocess.Popen[bytes]]) -> bool:
    """Say whether a rank got SIGTERM: it left word, or ended by it, since it was not yet ready to heed it."""
    return any(folder.glob(f"rank-*.{ASKED}")) or any(rank.poll() == -signal.SIGTERM for rank in ranks)


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """End those that still run; to ask them (SIGTERM) would be to let them go on until an epoch ends."""
    alive = [rank for rank in ranks if rank.poll() is None]
    for rank in alive:
        rank.kill()
    for rank in alive:
        rank.wait()
    if alive and sys.stdout.isatty():
        sys.stdout.write("\x1b[?25h")  # a rank that drew a bar had hidden the cursor
        sys.stdout.flush()


def _failure(folder: Path, ranks: Sequence[subprocess.Popen[bytes]], first: int) -> TrisectError:
    """Give what to tell: the earliest word that a rank left about itself, else who was killed, else who was silent."""
    notes = _notes(folder)
    noticed = first in notes and notes[first]["of_peer"]
    # the rank that ended first only noticed; see which of the others have something to say, and which are silent
    deadline = time.monotonic() + (_SETTLE if noticed or ranks[first].returncode == -signal.SIGABRT else 0.0)
    while time.monotonic() < deadline and any(rank.poll() is None for rank in ranks):
        time.sleep(_POLL)
    notes = _notes(folder)
    own = sorted((note for note in notes.values() if not note["of_peer"]), key=lambda note: note["time"])
    if own:
        if own[0].get("unexpected"):
            _show(folder, own[0]["rank"])
        return _told(own[0])
    codes = {rank: process.returncode for rank, process in enumerate(ranks)}
    killed = [rank for rank, code in codes.items() if code is not None and code < 0]
    killed.sort(key=lambda rank: (codes[rank] == -signal.SIGABRT, rank != first))
    if killed:
        _show(folder, killed[0])
        code = -codes[killed[0]]
        name = signal.Signals(code).name if code in set(signal.Signals) else "unknown"
        return FaultError(f"rank {killed[0]} was ended by signal {code} ({name}); the run is stopped.")
    if noticed:
        silent = [rank for rank, code in codes.items() if code is None and rank not in notes]
        silent = [rank for rank in silent if _is_stopped(ranks[rank].pid)] or silent
        if silent:
            which = f"rank {silent[0]} is" if len(silent) == 1 else f"ranks {', '.join(map(str, silent))} are"
            said = f"{which} silent, and the others waited for longer than train.timeout; the run is stopped."
            return FaultError(said)
        return FaultError(f"rank {first} {notes[first]['message']}")
    _show(folder, first)
    return FaultError(f"rank {first} ended with exit code {codes[first]}; the run is stopped.")


def _told(note: Mapping[str, Any]) -> TrisectError:
    """Give the error that a rank has left word of."""
    code = int(note.get("exit_code", 1))
    if code == StoppedError.exit_code:
        return StoppedError(str(note["message"]))
    error = (FaultError if note.get("fault") else RunError)(f"rank {note['rank']}: {note['message']}")
    error.exit_code = code
    if isinstance(error, FaultError):
        error.unexpected = bool(note.get("unexpected"))
    return error


def _notes(folder: Path) -> dict[int, dict[str, Any]]:
    notes = {}
    for path in folder.glob("rank-*.json"):
        with suppress(OSError, ValueError):
            note = json.loads(path.read_text())
            notes[int(note["rank"])] = note
    return notes


def _show(folder: Path, rank: int) -> None:
    """Print the last lines of a rank's standard error (rank 0's have been seen)."""
    errors = folder / f"rank-{rank}.err"
    lines = errors.read_text(errors="replace").strip().splitlines() if errors.exists() else []
    if lines:
        sys.stderr.write("\n".join(lines[-30:]) + "\n")


def _is_stopped(pid: int) -> bool:
    """Say whether the system says that a process is stopped (SIGSTOP, a debugger); False where it does not tell."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in ("T", "t")
    return False
