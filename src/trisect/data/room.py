"""What a file may unpack to: no more than the memory that is free, asked before anything is allocated."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator

from trisect.errors import TRANSIENT, DataError, TrisectError

_GUESS = 4 << 30


def free_host_bytes() -> int:
    """Tell how much memory of this host is free; a guess of 4 GiB where the system does not tell."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return _GUESS


def require_room(wanted: float, what: str) -> None:
    """Refuse what would take more bytes than are free."""
    free = free_host_bytes()
    if not wanted <= free:
        raise DataError(
            f"{what} would take {wanted / 2**30:,.1f} GiB, and {free / 2**30:,.1f} GiB of memory are free; make it"
            " smaller, or read it on a larger machine."
        )


@contextlib.contextmanager
def reading(what: str, remedy: str = "give another file") -> Iterator[None]:
    """Turn whatever a library raises over a file's bytes into one of our sentences.

    Readers of numpy, zip, gzip and Arrow raise exceptions of many kinds over damaged bytes; our own sentences pass.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy warns of casts that checks afterwards refuse
            yield
    except TrisectError:
        raise
    except OSError as error:
        if error.errno in TRANSIENT:  # which say nothing of the file
            raise
        raise DataError(f"{what} cannot be read ({_first_line(error)}); {remedy}.") from error
    except MemoryError as error:
        raise DataError(f"{what} needs more memory than is free; read it on a larger machine.") from error
    except Exception as error:
        raise DataError(f"{what} cannot be read ({_first_line(error)}); {remedy}.") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
