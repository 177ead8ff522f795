"""What a machine runs out of, as a sentence with a remedy in place of a traceback."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trisect.errors import FaultError
from trisect.train.run.run_directory import RunDirectory

_REMEDIES = {
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "make room in your quota",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f)",
    errno.EIO: "look at that disk",
    errno.EROFS: "make it writable, or choose another --out",
    errno.EACCES: "make it readable and writable for this user, or choose another --out",
    errno.EPERM: "make it readable and writable for this user, or choose another --out",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close other programs: the system has too many files open",
    errno.ENOMEM: "use a layout of more parts, stages or blocks, or train.precision: bfloat16",
}
# of files of a run directory that somebody else has changed
_CHANGED = {
    errno.ENOENT: "it was removed while the run needed it",
    errno.EEXIST: "remove what is in its place",
    errno.EISDIR: "remove what is in its place",
    errno.ENOTDIR: "remove what is in its place",
    errno.ENOTEMPTY: "remove what is in its place",
}
_CUT_SHORT = re.compile(r"\d+ requested and \d+ written")  # how numpy says that a disk is full
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
    whole = (
        "" if run is None or not RunDirectory.is_begun(run) else f"; then go on with trisect train --resume --out {run}"
    )
    if isinstance(error, OSError) and error.errno in _REMEDIES:
        where = error.filename if error.filename is not None else run
        at = "" if where is None else f" ({where})"
        return f"{error.strerror}{at}; {_REMEDIES[error.errno]}{whole}."
    if isinstance(error, OSError) and error.errno is None and _CUT_SHORT.fullmatch(str(error)):
        return f"A file could not be written whole ({error}); make room on its disk, or raise ulimit -f{whole}."
    if isinstance(error, OSError) and error.errno in _CHANGED and run is not None and _is_in(error.filename, run):
        return f"{error.strerror} ({error.filename}); {_CHANGED[error.errno]}."
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in _NO_MEMORY)
    ):
        said = str(error).splitlines()[0][:160] if str(error) else "no more could be allocated"
        return f"The memory is used up ({said}); {_REMEDIES[errno.ENOMEM]}{whole}."
    return None


def _is_in(name: object, run: Path) -> bool:
    """Say whether the system speaks of a file of the run directory."""
    return isinstance(name, (str, bytes)) and Path(os.fsdecode(name)).absolute().is_relative_to(run.absolute())
