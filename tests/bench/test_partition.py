from __future__ import annotations

import pytest

from trisect_bench import partition


def test_cuts_are_compared_and_what_is_not_there_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TRISECT_DATA", raising=False)
    figures = partition.run(graphs=["community", "amazon0601"], parts=[2], vertices=2_000)
    by_method = {row["method"]: row for row in figures["graphs"]["community"]}
    assert set(by_method) == {"metis", "stream"}
    for row in by_method.values():
        assert row["vertices"] == 2_000
        assert 0.0 < row["cut"] < 0.5
        assert row["balance"] < 1.05
        assert row["child_bytes"] > 0
    assert "amazon0601" in figures["skipped"]
    partition.show(figures)
    assert "amazon0601: " in capsys.readouterr().out
