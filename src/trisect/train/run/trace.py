"""What ranks did when, in the Chrome trace format, which Perfetto and chrome://tracing open.

Each rank is a process with two rows: its epochs and evaluations, and its actions. A row holds spans one after the
other: a viewer drops a span that begins before the one before it has ended and does not end within it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from trisect.errors import LayoutError
from trisect.schedule.action import Action

_ACTIONS, _EPOCHS = 0, 1
_ROWS = {_EPOCHS: "epochs", _ACTIONS: "actions"}

Event = Mapping[str, Any]


def chrome_trace(by_rank: Mapping[int, Sequence[Event]]) -> dict[str, Any]:
    """Give the events of all ranks as an object of the Chrome trace format; times are microseconds since the first."""
    origin = min((event["start"] for own in by_rank.values() for event in own), default=0.0)
    events: list[dict[str, Any]] = []
    for rank, own in by_rank.items():
        events.append(_name("process_name", rank, name=f"rank {rank}"))
        events.append(_name("process_sort_index", rank, sort_index=rank))
        for number, (row, title) in enumerate(_ROWS.items()):
            events.append(_name("thread_name", rank, row, name=title))
            events.append(_name("thread_sort_index", rank, row, sort_index=number))
        ordered = sorted(own, key=lambda event: float(event["start"]))
        events += _spans(rank, _EPOCHS, list(_epochs(ordered)), origin)
        events += _spans(rank, _ACTIONS, ordered, origin)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _name(what: str, rank: int, row: int = _ACTIONS, **values: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": row, "args": values}


def _epochs(ordered: Sequence[Event]) -> Iterator[Event]:
    """Join actions that follow each other in an epoch, or in its evaluation, to one event."""
    joined: dict[str, Any] | None = None
    for event in ordered:
        if event.get("epoch") is None:
            continue
        name = f"{'evaluation after' if event.get('evaluation') else 'epoch'} {event['epoch']}"
        if joined is None or joined["name"] != name:
            if joined is not None:
                yield joined
            joined = {"name": name, "start": event["start"], "seconds": 0.0, "epoch": event["epoch"]}
        joined["seconds"] = event["start"] + event["seconds"] - joined["start"]
    if joined is not None:
        yield joined


def _spans(rank: int, row: int, ordered: Sequence[Event], origin: float) -> Iterator[dict[str, Any]]:
    """Give the spans of a row in nanoseconds' steps; where clocks overlap, a span begins when the last has ended."""
    free = 0
    for event in ordered:
        begin = max(free, round((event["start"] - origin) * 1e9))
        free = max(begin, round((event["start"] + event["seconds"] - origin) * 1e9))
        yield {
            "ph": "X",
            "name": event["name"],
            "cat": "epoch" if row == _EPOCHS else _category(event["name"]),
            "pid": rank,
            "tid": row,
            "ts": begin / 1e3,
            "dur": (free - begin) / 1e3,
            "args": {key: value for key, value in event.items() if key not in {"name", "start", "seconds"}},
        }


@lru_cache(maxsize=1 << 14)
def _category(name: str) -> str:
    try:
        return Action.parse(name).verb.name.lower()
    except (LayoutError, ValueError):  # ValueError: a number of thousands of digits
        return "run"
