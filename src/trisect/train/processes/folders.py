"""Temporary folders of a run, which outlive nobody: what a killed process left is removed by the next that starts."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trisect.errors import CheckpointError
from trisect.train.processes.stopping import undisturbed
from trisect.train.run.lock import LOCK, locked

PREFIXES = ("trisect-job-", "trisect-ranks-", "trisect-shards-")
_YOUNGEST = 60.0  # seconds; the owner of a younger one may be about to lock it


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Make a folder that only this user may read, and remove it afterwards.

    A lock in it says that its owner lives; the system drops it with the process, however that ends.

    Args:
        prefix: one of `PREFIXES`.
    """
    remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        with locked(folder):
            yield folder
    finally:
        with undisturbed():
            shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned() -> list[Path]:
    """Remove the folders of this user whose owners are gone; give those that were removed."""
    folders = Path(tempfile.gettempdir()).glob("trisect-*")
    return [folder for folder in folders if remove_folder(folder, youngest=_YOUNGEST)]


def remove_folder(folder: Path, *, youngest: float = 0.0) -> bool:
    """Remove a folder that `temporary_folder` made and whose owner is gone; say whether it was done.

    Args:
        youngest: seconds; what was changed more recently stays.
    """
    with suppress(OSError, CheckpointError):
        if _is_ours(folder, youngest):
            with locked(folder):  # raises where the owner lives
                shutil.rmtree(folder)
            return True
    return False


def _is_ours(folder: Path, youngest: float) -> bool:
    if not folder.name.startswith(PREFIXES) or folder.is_symlink() or not (folder / LOCK).exists():
        return False
    status = folder.stat()
    if time.time() - status.st_mtime < youngest:
        return False
    return not hasattr(os, "getuid") or status.st_uid == os.getuid()
