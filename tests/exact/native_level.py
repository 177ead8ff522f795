"""The kernels of a process that lives on: `native_level` takes other ones for a time."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from trisect.comm.local.words import words
from trisect.native import library


@contextmanager
def native_level(level: str) -> Iterator[None]:
    """Run the kernels of this instruction set, as TRISECT_NATIVE names it; 0: torch alone; empty: what is chosen."""
    if not level:
        yield
        return
    try:
        with patch.dict(os.environ, TRISECT_NATIVE=level):
            _forget()
            yield
    finally:
        _forget()


def _forget() -> None:
    """Let the library be looked for again, and every kernel in it."""
    for remembered in (library.kernels, library.level, words):
        remembered.cache_clear()
    for kernel in gc.get_objects():
        if type(kernel) is library.Kernel:
            kernel._call = None
