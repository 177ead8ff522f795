"""Constants of the library at which it takes another path, so that small graphs reach what large ones take.

Each is a global of its module that is read when it is used. `lowered` sets some of them for one case.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

# module and name → values besides the library's own
THRESHOLDS: dict[str, tuple[Any, ...]] = {
    "plan.segments.OVERLAP_ROWS": (
        1,
        1,
        20,
    ),  # rows from which on a halo is waited for beside the interior
    "partition.halo._WORTH_IT": (1 << 20,),  # one in so many rows is interior before they are done apart
    "shards.timeline_part._WORTH_IT": (1 << 20,),
    "partition.halo._AT_ONCE": (1, 256),  # bytes of features that parts exchange at once before the first sum
    "partition.halo._LANES": (1, 4),  # features are cut into blocks of a multiple of these
    "tasks.link_prediction._KEPT": (0,),  # remembered pairs that are kept
    "comm.local.mailbox.SMALLEST": (1, 1, 512),  # bytes from which on a message has a slot of its own
    "comm.local.board.LARGEST": (0, 256),  # bytes of gradients up to which ranks of a host sum in shared memory
    "comm.sums._SHORT": (0, 1024),  # bytes up to which every rank sends its whole vector to the others
    "plan.build.AHEAD": (1,),  # messages that are received ahead
    "exchanges.boundary.AHEAD": (1,),
    "exchanges.boundary.UNREAD": (1,),  # messages that wait for their reader
    "ops.memory.SMALLEST": (0, 0, 1 << 10),  # bytes from which on a tensor lies on a buffer of the pool
    "ops.memory.HUGE": (1 << 12,),  # bytes from which on that is of huge pages
    "ops.spmm.grouping._AFTER": (1, 2),  # times that steps come together before they are summed in one pass
    "ops.spmm.grouping._LARGEST_RATIO": ({2: 1.0, 4: 1.0},),
    "ops.spmm.grouping._WIDEST": ({2: 1 << 12, 4: 1 << 12},),
    "ops.band._STEPS": (1, 3),  # steps of a window that one pass does
    "ops.edges._CHUNK": (64,),  # elements of messages along edges that are made at a time
    "engine.rank.SMALLEST": (0,),  # bytes from which on an activation is kept without its zeros
    "ops.packing._SLAB": (1 << 8,),
    "ops.packing._DENSEST": (1.0,),  # share of elements that are not zero up to which it is
    "tasks.all_pairs._KEPT": (16,),  # scores of all pairs that are kept for the second pass
    "partition.order.CACHE_BYTES": (256,),  # bytes of features from which on vertices are put in another order
    "partition.cut.CACHE_BYTES": (4096,),
}


@contextmanager
def lowered(values: Mapping[str, Any]) -> Iterator[None]:
    """Set constants by their names in `THRESHOLDS`, and set them back."""
    with ExitStack() as stack:
        for name, value in values.items():
            module, _, constant = name.rpartition(".")
            if isinstance(value, dict):  # JSON has texts as keys
                value = {int(key): number for key, number in value.items()}
            stack.enter_context(patch.object(importlib.import_module(f"trisect.{module}"), constant, value))
        yield
