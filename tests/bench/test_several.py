"""The measurement runs, and says what groups cost and when they have paid."""

from __future__ import annotations

import pytest

from trisect.bench import several


def test_runs_small_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    result = several.run(widths=(2, 6), lives=(4,), sizes=(2, 4), vertices=300, edges=600, steps=4, rounds=2, threads=1)
    found = result["lives"]["4"]
    assert 0.55 < found["groups"]["2"]["share"] < 0.7
    assert found["groups"]["2"]["bytes"] > 0
    assert set(found["widths"]["6"]) == {
        "one by one",
        *("together 2", "block-diagonal 2", "together 4", "block-diagonal 4"),
        *("raw, afresh", "raw, incremental"),
    }
    assert found["widths"]["6"]["together 2"]["speedup"] > 0
    several.show(result)
    assert "pays after" in capsys.readouterr().out
