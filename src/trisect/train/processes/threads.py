"""How many threads torch takes in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def limited_threads(threads: int | None) -> Iterator[None]:
    """Let torch use so many threads inside, and as many as before afterwards; None changes nothing."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if threads is not None:
            torch.set_num_threads(before)
