"""Constants of the library at which it takes another path, so that small graphs reach what large ones take.

Each is a global of its module that is read when it is used. `lowered` sets some of them for one case.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from exact_case import ExactCase
from noted import noted

from trisect.config.names import DYNAMIC_MODELS


def _always(case: ExactCase) -> bool:
    return True


def _timeline(case: ExactCase) -> bool:
    return "steps" in case.data


def _graph(case: ExactCase) -> bool:
    return not _timeline(case)


def _several(case: ExactCase) -> bool:
    return case.ranks > 1


def _shares_memory(case: ExactCase) -> bool:
    return case.ranks > 1 and case.layout.get("transport") != "network"


def _halo(case: ExactCase) -> bool:
    return case.layout.get("vertex", 1) > 1 and case.layout.get("spatial") != "redistribute"


def _recurs_in_runs(case: ExactCase) -> bool:
    dynamic = case.model["name"] in DYNAMIC_MODELS or bool(case.model.get("dynamic"))
    return dynamic and case.layout.get("time", 1) > 1


def _carries(case: ExactCase) -> bool:
    """Whether states may be handed on: without a word, bytes decide."""
    return _recurs_in_runs(case) and case.layout.get("temporal", "carry") == "carry"


def _cut_by_layer(case: ExactCase) -> bool:
    return case.layout.get("layer", 1) > 1


def _packs(case: ExactCase) -> bool:
    return case.layout.get("pack") is True or _packs_large(case)


def _packs_large(case: ExactCase) -> bool:
    """Chunks that read history are packed from a size on, unless the layout says otherwise."""
    return bool(case.reference) and "pack" not in case.layout and case.native != "0"


def _pairs(case: ExactCase) -> bool:
    return case.task["name"] == "link-prediction"


def _ranks_all_pairs(case: ExactCase) -> bool:
    return case.task.get("eval_negatives") == "all"


def _sums_windows(case: ExactCase) -> bool:
    """Whether torch alone sums over a window of steps."""
    windowed = case.model["name"] == "tm-gcn" or case.model.get("temporal") in ("mean", "harmonic", "ones")
    return case.native == "0" and windowed


def _reads_edges(case: ExactCase) -> bool:
    """Whether torch alone makes messages along edges."""
    layer = case.model.get("spatial", case.model["name"])
    return case.native == "0" and layer in ("gatv2", "gine")


def _orders(case: ExactCase) -> bool:
    """Whether another order changes no number: chunks that read history are numbered in it."""
    return case.train["order"] == "auto" and not case.reference and case.native != "0"


def _cuts_graph(case: ExactCase) -> bool:
    return case.cut == "layout" and _halo(case) and _graph(case) and "chunks" not in case.layout


@dataclass(frozen=True)
class Threshold:
    """Values of a constant besides the library's own.

    Attributes:
        when: the cases in which the constant is read.
        chance: of being lowered in such a case.
    """

    values: tuple[Any, ...]
    when: Callable[[ExactCase], bool] = _always
    chance: float = 0.4


THRESHOLDS: dict[str, Threshold] = {
    # rows from which on a halo is waited for beside the interior
    "views.halo.OVERLAP_ROWS": Threshold((1, 1, 20), _halo, 0.6),
    # one in so many rows is interior before they are done apart
    "partition.halo._WORTH_IT": Threshold((1 << 20,), lambda case: _halo(case) and _graph(case)),
    "shards.timeline_part._WORTH_IT": Threshold((1 << 20,), lambda case: _halo(case) and _timeline(case)),
    # bytes of features that parts exchange at once before the first sum, and the most exchanges
    "partition.halo._AT_ONCE": Threshold((1, 256), lambda case: _halo(case) and _graph(case), 0.6),
    "partition.halo._MOST_EXCHANGES": Threshold((2, 100), lambda case: _halo(case) and _graph(case)),
    # features are cut into blocks of a multiple of these
    "partition.halo._LANES": Threshold((1, 4), lambda case: _halo(case) and _graph(case)),
    # remembered pairs that are kept
    "tasks.link_prediction._KEPT": Threshold((0,), lambda case: bool(case.task.get("memory"))),
    # entries of a table for each code that is looked up
    "tasks.pairs._TABLE": Threshold((0, 1 << 20), _pairs),
    "tasks.division._TABLE": Threshold((0, 1 << 20), lambda case: _pairs(case) and case.layout.get("vertex", 1) > 1),
    # bytes from which on a message has a slot of its own
    "comm.local.mailbox.SMALLEST": Threshold((1, 1, 512), _shares_memory),
    # bytes of a ring: of the second one, and of the largest
    "comm.local.ring._SECOND": Threshold((1 << 9,), _shares_memory),
    "comm.local.ring.LARGEST": Threshold((0, 1 << 13), _shares_memory),
    # bytes of gradients up to which ranks of a host sum in shared memory
    "comm.local.board.LARGEST": Threshold((0, 256), _shares_memory),
    # bytes up to which every rank sends its whole vector to the others
    "comm.sums._SHORT": Threshold((0, 1024), lambda case: case.ranks > 2),
    # messages that are received ahead, and that wait for their reader
    "plan.build.AHEAD": Threshold((1,), _several),
    "views.boundary.AHEAD": Threshold((1,), _cut_by_layer),
    "views.boundary.UNREAD": Threshold((1,), _cut_by_layer),
    # bytes from which on a tensor lies on a buffer of the pool, and from which on that is of huge pages
    "ops.memory.SMALLEST": Threshold((0,), chance=0.9),
    "ops.memory.HUGE": Threshold((1 << 12,)),
    # a free buffer may be so much larger than what is asked for; bytes that are held beyond those in use
    "ops.memory._SLACK": Threshold((1.0, 100.0)),
    "ops.memory._LEAST_SPARE": Threshold((0,)),
    # times that steps come together before they are summed in one pass, and where that pays
    "ops.spmm.grouping._AFTER": Threshold((1, 2), _timeline, 0.6),
    "ops.spmm.grouping._LARGEST_RATIO": Threshold(({2: 1.0, 4: 1.0},), _timeline),
    "ops.spmm.grouping._WIDEST": Threshold(({2: 1 << 12, 4: 1 << 12},), _timeline),
    # steps of a window that one pass does
    "ops.band._STEPS": Threshold((1, 3), _sums_windows, 0.8),
    # elements of messages along edges that are made at a time
    "ops.edges._CHUNK": Threshold((64,), _reads_edges, 0.8),
    # bytes from which on an activation is kept without its zeros
    "pipeline.rank.SMALLEST": Threshold((0,), _packs_large, 0.8),
    "ops.packing._SLAB": Threshold((1 << 8,), _packs),
    # share of elements that are not zero up to which it is, and rows that are looked at first
    "ops.packing._DENSEST": Threshold((1.0,), _packs, 0.6),
    "ops.packing._SAMPLE": Threshold((1,), _packs),
    # scores of all pairs that are made at a time, and that are kept for the second pass
    "tasks.all_pairs._BLOCK": Threshold((64,), _ranks_all_pairs, 0.6),
    "tasks.all_pairs._KEPT": Threshold((16,), _ranks_all_pairs, 0.6),
    # bytes of features from which on vertices are put in another order
    "partition.order.CACHE_BYTES": Threshold((256,), _orders),
    "partition.cut.CACHE_BYTES": Threshold((4096,), _cuts_graph, 0.8),
    # the last ones, so that those before them are drawn as they were: messages that are received ahead, and blocks
    # whose messages are on their way
    "views.door.AHEAD": Threshold((1,), lambda case: _carries(case) or _cut_by_layer(case), 0.6),
    "views.recur._BLOCKS": Threshold((1,), _recurs_in_runs, 0.6),
}


@contextmanager
def lowered(values: Mapping[str, Any]) -> Iterator[None]:
    """Set constants by their names in `THRESHOLDS`, and set them back; those that are read are in `noted.CONSULTED`."""
    with ExitStack() as stack:
        for name, value in values.items():
            module, _, constant = name.rpartition(".")
            if isinstance(value, dict):  # JSON has texts as keys
                value = {int(key): number for key, number in value.items()}
            home = importlib.import_module(f"trisect.{module}")
            stack.enter_context(patch.object(home, constant, noted(name, value)))
        yield
