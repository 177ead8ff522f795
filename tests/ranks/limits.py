"""The sizes at which the library takes another path, and values that send small cases along the paths of large ones.

Kernels and exchanges are chosen by size. A case of some dozen rows takes the paths of small work alone, so each limit
is also set to a value that sends it along the others; `tests/pipeline/test_limits.py` compares both with one process.

Limits that cannot be set are crossed by the widths 4, 18 or 19, and 66 or 67, which the same test varies: `_VECTOR` in
ops/spmm/sums.py (64 numbers of a halo are read where they lie), the 8, 16, 32 and 64 numbers of a row that native
kernels take at once, and `BUFFER` in comm/local/hub.py (16 KiB of gradients are summed in one page). Kernels that
divide more than a thousand rows into groups are reached by the drawn cases of `tests/exact`, as are limits of single
tasks, of packed activations, of steps that are summed in one pass, and of torch's own paths.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from noted import noted

NEVER = 1 << 50
# module and name: the value with which every case takes the path of small work, and that of large work
LIMITS: dict[str, tuple[float, float]] = {
    "ops.memory.SMALLEST": (NEVER, 0),  # bytes from which on a tensor lies on a buffer of the pool
    "ops.memory.HUGE": (NEVER, 0),  # bytes from which on that is of huge pages
    "partition.halo._WORTH_IT": (0, NEVER),  # one in so many rows is interior before they are done apart
    "shards.timeline_part._WORTH_IT": (0, NEVER),
    "partition.halo._AT_ONCE": (NEVER, 1),  # bytes of features that parts exchange at once before the first sum
    "partition.halo._LANES": (NEVER, 4),  # features are cut into blocks of a multiple of these
    "plan.build.AHEAD": (NEVER, 1),  # messages that are received ahead, as planned and as done
    "views.boundary.AHEAD": (NEVER, 1),
    "views.boundary.UNREAD": (NEVER, 1),  # messages that wait for their reader
    "views.door.AHEAD": (NEVER, 1),
    "views.recur._BLOCKS": (NEVER, 1),  # blocks whose messages are on their way
    "comm.local.mailbox.SMALLEST": (NEVER, 1),  # bytes from which on a message has a slot of its own
    "comm.local.board.LARGEST": (NEVER, 0),  # bytes of gradients up to which ranks of a host sum in shared memory
    "comm.sums._SHORT": (NEVER, 0),  # bytes up to which every rank sends its whole vector to the others
}


def _home(name: str) -> tuple[Any, str]:
    """Return the module of a limit, and its name there."""
    module, _, constant = name.rpartition(".")
    return importlib.import_module(f"trisect.{module}"), constant


_OWN = {name: getattr(*_home(name)) for name in LIMITS}


@contextmanager
def limits(path: str | None) -> Iterator[None]:
    """Send everything along the paths of `small` or of `large` work; None: limits are what they are."""
    with ExitStack() as stack:
        for name, values in LIMITS.items() if path is not None else ():
            value = noted(name, values[("small", "large").index(path or "")])
            stack.enter_context(patch.object(*_home(name), value))
        yield


@contextmanager
def library_limits() -> Iterator[None]:
    """Take the library's own limits, for what ranks are compared with: a fault that both have could not be seen."""
    with ExitStack() as stack:
        for name, value in _OWN.items():
            stack.enter_context(patch.object(*_home(name), value))
        yield
