from __future__ import annotations

from pathlib import Path

import pytest

from trisect_bench.ingest import run, show, write_payments

pytest.importorskip("pyarrow")


def test_tables_are_made_and_ingested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(rows=3000, accounts=200, folder=str(tmp_path))
    assert (result["rows"], result["accounts"]) == (3000, 200)
    assert result["peak_rss_bytes"] > 1 << 20
    show(result)
    assert "3,000 rows and 200 accounts" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
    write_payments(tmp_path / "p.csv", 5, 10, seed=0)
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert len(lines) == 6
    assert lines[1].startswith("AC0000")
