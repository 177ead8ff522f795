"""A record from a file is looked at before anything trusts it: lengths, types, and ids within the vertices."""

from __future__ import annotations

from typing import Any

from trisect.data.records import Array, Record, TimelineRecord
from trisect.data.room import require_room
from trisect.errors import DataError

_PER_VERTEX = 32  # bytes of what is always made for a vertex: pointers of both matrices, degrees


def sound(record: Record, source: str) -> Record:
    """Give the record back, or say in one sentence which array does not fit the others."""

    def require(condition: Any, sentence: str) -> None:
        if not condition:
            raise DataError(f"{source}: {sentence}; make the file again.")

    count = record.vertices
    require(0 <= count < 2**31, f"there are {count} vertices, where fewer than 2^31 are possible")
    require_room(_PER_VERTEX * count, f"the graph of {count:,} vertices in {source}")
    for name in ("src", "dst"):
        ids: Array = getattr(record, name)
        require(ids.ndim == 1 and ids.dtype.kind in "iu", f"{name} is {_form(ids)}, not integers of one dimension")
        inside = not len(ids) or (int(ids.min()) >= 0 and int(ids.max()) < count)
        require(inside, f"{name} holds ids outside 0 .. {count - 1}")
    events = len(record.src)
    require(len(record.dst) == events, f"src has {events} entries and dst {len(record.dst)}")
    for name in ("weight", "edge_x", "edge_y", "relation", "time"):
        array = getattr(record, name, None)
        fits = array is None or (array.dtype.kind in "iubf" and array.shape[:1] == (events,))
        require(fits, f"{name} is {_form(array)} for {events} edges")
        require(array is None or array.ndim == (2 if name == "edge_x" else 1), f"{name} is {_form(array)}")
    steps = None
    if isinstance(record, TimelineRecord):
        offsets = record.offsets
        whole = offsets.ndim == 1 and offsets.dtype.kind in "iu" and len(offsets) >= 1
        require(whole and int(offsets[0]) == 0 and int(offsets[-1]) == events, f"offsets do not cover {events} events")
        require(bool((offsets[1:] >= offsets[:-1]).all()), "offsets fall")
        steps = len(offsets) - 1
    for name in ("x", "y"):
        array = getattr(record, name)
        if array is not None:
            require(array.dtype.kind in "iubf", f"{name} is {_form(array)}, not numbers")
            rows = array.shape[:1] == (count,) or (steps is not None and array.shape[:2] == (steps, count))
            wanted = f"[{count}, features]" if name == "x" else f"[{count}], a label each"
            require(rows and array.ndim <= 3, f"{name} has the shape {list(array.shape)}; it must be {wanted}")
    for name, mask in record.splits.items():
        require(name in ("train", "val", "test"), f"a split is called {name[:40]!r}")
        require(mask.ndim in (1, 2) and mask.shape[0] == count, f"split {name} is {_form(mask)} for {count} vertices")
        require(mask.dtype.kind in "iub", f"split {name} is {_form(mask)}, not booleans")
    if record.names is not None:
        require(len(record.names) == count, f"there are {len(record.names)} names for {count} vertices")
    return record


def _form(array: Array | None) -> str:
    return "none" if array is None else f"{array.dtype} {list(array.shape)}"
