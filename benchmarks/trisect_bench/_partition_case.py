"""One cut of `trisect bench partition`, in a process of its own, so that its peak of memory is its own.

python -m trisect_bench._partition_case '{"graph": …, "parts": 8, "method": "metis", …}'
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trisect.data.load import load
from trisect.data.records import StaticRecord
from trisect.errors import DataError
from trisect.graph.adjacency import Adjacency
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.partition import metis, quality, stream
from trisect.partition.partition import imbalance
from trisect.partition.timeline import cut_timeline
from trisect.train.processes.memory import peak_rss_bytes


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Cut the graph of a case once, and say how good the cut is and what it took."""
    matrix = undirected(case["data"], case["data_dir"])
    parts, method = case["parts"], case["method"]
    child = _ChildWatch()
    start, began = _resident_now(), time.perf_counter()
    part = _cut(matrix, parts, method)
    seconds, peak = time.perf_counter() - began, peak_rss_bytes() - start
    child_bytes = child.stop()
    result = quality(matrix, part, parts)
    work = torch.bincount(part, (matrix.ends - matrix.starts + 1).double(), parts)
    return {
        "vertices": matrix.rows,
        "entries": matrix.entries,
        "cut": result.cut,
        "halo": result.volume,
        "balance": imbalance(work),
        "vertex_balance": result.vertex_imbalance,
        "seconds": seconds,
        # of this process, and of the one that a partitioner has for itself
        "launcher_bytes": max(0, peak),
        "child_bytes": child_bytes,
    }


def undirected(data: dict[str, Any], data_dir: str | None) -> Adjacency:
    """The graph with both directions of each edge and without loops, as all partitioners are given it."""
    record = load(data, data_dir=None if data_dir is None else Path(data_dir))
    if not isinstance(record, StaticRecord):
        raise DataError(f"{data} is a timeline; bench partition measures static graphs.")
    indptr, indices = metis.symmetric_structure(Graph.from_record(record).adjacency)
    matrix = Adjacency.from_csr(torch.from_numpy(indptr), torch.from_numpy(indices), None, len(indptr) - 1)
    # its transpose is there in a run as well, before anything is cut
    return matrix.as_symmetric()


def _cut(matrix: Adjacency, parts: int, method: str) -> Tensor:
    if method == "stream":
        return stream.cut(matrix, parts)
    if method == "metis":
        return metis.cut(matrix, parts)
    source, target = matrix.edge_index()
    offsets = torch.tensor([0, source.numel()])
    timeline = Timeline.from_arrays(source, target, offsets, vertices=matrix.rows)
    return cut_timeline(timeline, parts, method="hypergraph").owner_by_vertex()


def _resident_now() -> int:
    """The resident size, from which on the peak is counted anew where the system can do that."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # else the cut would find room in what reading has left
        Path("/proc/self/clear_refs").write_text("5")
    return peak_rss_bytes()


class _ChildWatch:
    """The largest resident size of this process's children, looked at every few milliseconds.

    What the system keeps of children that have ended counts this process too, from which they were forked.
    """

    def __init__(self) -> None:
        self._highest, self._over = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Stop looking, and give the largest size."""
        self._over.set()
        self._thread.join()
        return self._highest

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            with contextlib.suppress(OSError, ValueError, IndexError):
                for task in Path("/proc/self/task").iterdir():
                    for child in (task / "children").read_text().split():
                        self._look(child)

    def _look(self, child: str) -> None:
        # before it runs its script, a child has the pages of this process
        if "_child.py" in Path(f"/proc/{child}/cmdline").read_text():
            for line in Path(f"/proc/{child}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    self._highest = max(self._highest, int(line.split()[1]) * 1024)


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
