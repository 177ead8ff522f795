from __future__ import annotations

import pytest

from trisect.comm.ledger import Ledger


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
