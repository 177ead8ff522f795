from __future__ import annotations

import pytest

from trisect.bench import layouts


def test_bytes_by_formula(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("TRISECT_DATA", raising=False)
    monkeypatch.setitem(layouts.GRAPHS, "community", {"generate": "community", "vertices": 400})
    found = layouts.run(graphs=["community", "squirrel"], models=["gcn", "gcnii"], layers=8, hidden=10, ranks=4)
    sizes = found["graphs"]["community"]["bytes"]
    assert sizes["gcn"]["pipeline"] == 2 * 3 * 400 * 10 * 4
    assert sizes["gcnii"]["pipeline"] == 2 * sizes["gcn"]["pipeline"]
    assert sizes["gcn"]["graph"] > sizes["gcn"]["hybrid"]
    assert "squirrel" in found["skipped"]
    layouts.show(found)
    assert "squirrel: left out." in capsys.readouterr().out
