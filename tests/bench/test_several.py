"""The measurement runs, and says what groups cost and when they have paid."""

from __future__ import annotations

import pytest

from trisect_bench import several


def test_runs_small_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    result = several.run(widths=(2, 6), lives=(4,), sizes=(2, 4), vertices=300, edges=600, steps=4, rounds=2, threads=1)
    found = result["lives"]["4"]
    assert 0.55 < found["groups"]["2"]["share"] < 0.7
    # an index of four bytes and two values of four for each entry, forward and transposed or symmetric
    assert found["groups"]["2"]["bytes"] > 12 * found["groups"]["2"]["share"] * found["entries"]
    assert set(found["widths"]["6"]) == {
        "one by one",
        *("together 2", "block-diagonal 2", "together 4", "block-diagonal 4"),
        *("raw, afresh", "raw, incremental"),
    }
    one, two = found["widths"]["6"]["one by one"], found["widths"]["6"]["together 2"]
    assert two["speedup"] == one["median"] / two["median"]
    several.show(result)
    assert "pays after" in capsys.readouterr().out
