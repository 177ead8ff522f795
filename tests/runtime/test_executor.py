from __future__ import annotations

from typing import Any

import pytest

from trisect.errors import LayoutError
from trisect.runtime import Executor, Ledger
from trisect.schedule import Kind, single


class Log:
    def __init__(self) -> None:
        self.events: list[tuple[str, float, float, dict[str, Any]]] = []

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        self.events.append((name, start, seconds, fields))


def test_actions_run_in_order_and_are_told() -> None:
    done: list[str] = []
    log = Log()
    handlers = {kind: lambda action: done.append(str(action)) for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.STEP)}
    Executor(handlers, log).run(single(chunks=2).ranks[0], epoch=4)
    assert done == ["0F0", "0F1", "0B1", "0B0", "0U0"]
    assert [name for name, *_ in log.events] == done
    assert all(fields == {"epoch": 4} and seconds >= 0 for _, _, seconds, fields in log.events)
    starts = [start for _, start, *_ in log.events]
    assert starts == sorted(starts)


def test_an_action_without_a_handler_is_an_error() -> None:
    with pytest.raises(LayoutError, match="0B0"):
        Executor({Kind.FORWARD: lambda action: None}).run(single().ranks[0])


def test_ledger_sums_by_axis_and_kind() -> None:
    ledger = Ledger()
    assert ledger.by_axis() == {"vertex": 0, "layer": 0, "time": 0, "weights": 0}
    ledger.add("vertex", "halo", 100, 0.5)
    ledger.add("vertex", "halo", 20)
    ledger.add("weights", "reduce", 8)
    ledger.add_transfer(50, 10)
    assert ledger.by_axis() == {"vertex": 120, "layer": 0, "time": 0, "weights": 8}
    assert (ledger.bytes, ledger.seconds) == (128, 0.5)
    assert [(e.kind, e.count) for e in ledger.entries()] == [("halo", 2), ("reduce", 1)]
    ledger.clear()
    assert ledger.bytes == ledger.full_bytes == 0
    with pytest.raises(ValueError, match="axis"):
        ledger.add("depth", "halo", 1)
