"""What a machine runs out of, as a sentence with a remedy in place of a traceback."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trisect.errors import FaultError

_REMEDIES = {
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "make room in your quota",
    errno.EIO: "look at that disk",
    errno.EROFS: "make it writable, or choose another --out",
    errno.EACCES: "make it readable and writable for this user, or choose another --out",
    errno.EPERM: "make it readable and writable for this user, or choose another --out",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close other programs: the system has too many files open",
    errno.ENOMEM: "use a layout of more parts, stages or blocks, or train.precision: bfloat16",
}
_NO_MEMORY = ("out of memory", "can't allocate memory", "Cannot allocate memory", "no memory")


@contextmanager
def explaining_limits(run: Path | None = None) -> Iterator[None]:
    """Turn errors of disks, memory and open files into a FaultError that says what to do.

    Args:
        run: the run directory, which is named where the system does not say which file it was.
    """
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        sentence = explain(error, run)
        if sentence is None:
            raise
        raise FaultError(sentence) from error


def explain(error: BaseException, run: Path | None = None) -> str | None:
    """Say what ran out and what to do; None where this is another kind of error."""
    whole = "" if run is None else f"; then go on with trisect train --resume --out {run}"
    if isinstance(error, OSError) and error.errno in _REMEDIES:
        where = error.filename if error.filename is not None else run
        at = "" if where is None else f" ({where})"
        return f"{error.strerror}{at}; {_REMEDIES[error.errno]}{whole}."
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in _NO_MEMORY)
    ):
        said = str(error).splitlines()[0][:160] if str(error) else "no more could be allocated"
        return f"The memory is used up ({said}); {_REMEDIES[errno.ENOMEM]}{whole}."
    return None
