"""What a checkpoint holds up."""

from __future__ import annotations

from pathlib import Path

import pytest

from trisect.errors import ConfigError
from trisect_bench import checkpoint


def test_both_ways_of_writing_are_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = checkpoint.run(state=5e4, hidden=16, vertices=60, short=40, rounds=1, directory=str(tmp_path))
    assert set(result["modes"]) == {"synchronous", "asynchronous"}
    assert result["state_bytes"] > 12 * result["layers"] * 16 * 16 / 2
    assert all(one["turns"][0]["epochs"] >= 1 for one in result["modes"].values())
    assert list(tmp_path.iterdir()) == []
    checkpoint.show(result)
    assert "asynchronous" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="rounds is 0"):
        checkpoint.run(rounds=0)
