"""An exchange between ranks of one host."""

from __future__ import annotations

import pytest

from trisect.errors import ConfigError
from trisect_bench import exchange


def test_both_transports_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    result = exchange.run(ranks=[2], sizes=[1_000, 64_000], rounds=2, exchanges=10)
    rows = result["ranks"]["2"]
    assert [row["bytes"] for row in rows] == [1_000, 64_000]
    for row in rows:
        assert 0.0 < row["auto"]["best"] <= row["auto"]["median"]
        assert 0.0 < row["network"]["best"] <= row["network"]["median"]
        assert row["auto"]["best"] < row["network"]["best"]
    exchange.show(result)
    assert "64000" in capsys.readouterr().out


def test_a_size_that_is_no_row_is_refused() -> None:
    with pytest.raises(ConfigError, match="multiples of 4"):
        exchange.run(sizes=[10])
