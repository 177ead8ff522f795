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
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned() -> list[Path]:
    """Remove the folders of this user whose owners are gone; give those that were removed."""
    removed = []
    for folder in Path(tempfile.gettempdir()).glob("trisect-*"):
        with suppress(OSError, CheckpointError):
            if _is_ours(folder):
                with locked(folder):  # raises where the owner lives
                    shutil.rmtree(folder)
                removed.append(folder)
    return removed


def _is_ours(folder: Path) -> bool:
    if not folder.name.startswith(PREFIXES) or folder.is_symlink() or not (folder / LOCK).exists():
        return False
    status = folder.stat()
    if time.time() - status.st_mtime < _YOUNGEST:
        return False
    return not hasattr(os, "getuid") or status.st_uid == os.getuid()
