"""The sizes at which the library takes another path, and values that send small cases along the paths of large ones.

Kernels and exchanges are chosen by size. A case of some dozen rows takes the paths of small work alone, so each limit
is also set to a value that sends it along the others; `tests/engine/test_limits.py` compares both with one process.

Limits that cannot be set are crossed by widths and rows, which the same test varies: `_VECTOR` in ops/spmm/sums.py (64
numbers of a halo are read where they lie), widths around 8, 16, 32 and 64 and groups of 32 and 64 rows in the native
kernels, `BUFFER` in comm/local/hub.py (16 KiB of gradients are summed in one page).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

NEVER = 1 << 50
# module and name: the value with which every case takes the path of small work, and that of large work
LIMITS: dict[str, tuple[float, float]] = {
    "ops.memory.SMALLEST": (NEVER, 0),  # bytes from which on a tensor lies on a buffer of the pool
    "ops.memory.HUGE": (NEVER, 0),  # bytes from which on that is of huge pages
    "engine.rank.SMALLEST": (NEVER, 0),  # bytes from which on an activation is kept without its zeros
    "ops.packing._DENSEST": (0.0, 1.0),  # share of elements that are not zero up to which it is
    "ops.spmm.grouping._AFTER": (NEVER, 0),  # times that steps come together before they are summed in one pass
    "ops.band._STEPS": (NEVER, 2),  # steps of a window that one pass does
    "ops.edges._CHUNK": (NEVER, 7),  # elements of messages along edges that are made at a time
    "partition.halo._WORTH_IT": (0, NEVER),  # one in so many rows is interior before they are done apart
    "shards.timeline_part._WORTH_IT": (0, NEVER),
    "partition.halo._AT_ONCE": (NEVER, 1),  # bytes of features that parts exchange at once before the first sum
    "partition.halo._LANES": (NEVER, 4),  # features are cut into blocks of a multiple of these
    "tasks.link_prediction._KEPT": (NEVER, 0),  # remembered pairs that are kept
    "plan.build.AHEAD": (NEVER, 1),  # messages that are received ahead
    "exchanges.boundary.AHEAD": (NEVER, 1),
    "exchanges.boundary.UNREAD": (NEVER, 1),  # messages that wait for their reader
    "comm.local.mailbox.SMALLEST": (NEVER, 1),  # bytes from which on a message has a slot of its own
    "comm.local.board.LARGEST": (NEVER, 0),  # bytes of gradients up to which ranks of a host sum in shared memory
    "comm.sums._SHORT": (NEVER, 0),  # bytes up to which every rank sends its whole vector to the others
}


@contextmanager
def limits(path: str | None) -> Iterator[None]:
    """Send everything along the paths of `small` or of `large` work; None: limits are what they are."""
    with ExitStack() as stack:
        for name, values in LIMITS.items() if path is not None else ():
            module, _, constant = name.rpartition(".")
            value = values[("small", "large").index(path or "")]
            stack.enter_context(patch.object(importlib.import_module(f"trisect.{module}"), constant, value))
        yield
