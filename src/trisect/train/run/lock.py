"""Who may write to a run directory: one process at a time, which holds a lock on a file in it."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from trisect.errors import TRANSIENT, CheckpointError

LOCK = ".lock"


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep other processes out of a run directory; the lock ends with this process, however that ends.

    The file is removed by its holder, while it holds it. A process that waited at the door with a file that is removed
    by now notices, and makes a new one; otherwise two of them could each hold a file of their own.

    Raises:
        CheckpointError: another process holds it, or the directory cannot be written.
        OSError: one of `TRANSIENT`.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    path = directory / LOCK
    while True:
        handle = _open(path, directory)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise CheckpointError(
                    f"Another process is writing to {directory}; wait until it has ended, or choose another --out."
                ) from None
            raise CheckpointError(
                f"{path} cannot be locked ({error.strerror}); put the run on a file system with locks."
            ) from None
        if _is_same(path, handle):
            break
        os.close(handle)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(handle)


def _open(path: Path, directory: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno in TRANSIENT:
            raise
        reason = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise CheckpointError(f"{path} cannot be opened ({reason}); remove it, or make {directory} writable.") from None


def _is_same(path: Path, handle: int) -> bool:
    """Say whether the path still leads to the file that is open."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(handle))
    except FileNotFoundError:
        return False
