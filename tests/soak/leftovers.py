"""What a run that has ended may have left: processes, temporary files, drafts in its directory, shared memory."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import psutil

MARK = "TRISECT_TEST_SOAK"  # an environment variable, which processes hand on to those that they start
_SHARED = Path("/dev/shm")
_PATIENCE = 20.0  # seconds; ranks look every half second whether their launcher lives


def marked(mark: str) -> list[psutil.Process]:
    """Give the processes that live and carry the mark."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except (psutil.Error, OSError):
            continue  # of another user, or gone by now
    return processes


def end_orphans(mark: str, patience: float = _PATIENCE) -> list[str]:
    """Wait until no process with the mark is left; end those that stay, and give their command lines."""
    deadline = time.monotonic() + patience
    while (alive := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    orphans = []
    for process in alive:
        try:
            orphans.append(f"process {process.pid} ({process.status()}): {' '.join(process.cmdline())[:120]}")
            process.kill()
        except psutil.Error:
            continue
    return orphans


def clear(folder: Path) -> list[str]:
    """Empty a temporary folder; give what was in it."""
    left = sorted(folder.iterdir())
    for path in left:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    return [str(path) for path in left]


def drafts(run: Path) -> list[str]:
    """Give the hidden files of a run directory: locks and drafts, which no run that has ended needs."""
    return sorted(str(path) for path in run.rglob(".*"))


def shared_memory() -> set[str]:
    """Give the names in /dev/shm that we or torch make."""
    names = os.listdir(_SHARED) if _SHARED.is_dir() else []
    return {name for name in names if "trisect" in name or name.startswith(("torch_", "gloo"))}
