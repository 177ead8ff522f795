from __future__ import annotations

import pytest

from trisect_bench import timeline_layouts


def test_bytes_of_each_cut(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    small = {"generate": "evolving", "vertices": 200, "degree": 4.0, "features": 0}
    monkeypatch.setitem(timeline_layouts.TIMELINES, "evolving", small)
    result = timeline_layouts.run(timelines=["evolving"], steps=32, ranks=[4], edge_life=3)
    sizes = {cut["model"]: cut["bytes"] for cut in result["cuts"]}
    # 2 directions · 3 hand-overs · N · (h, c) · two layers, in float32
    assert sizes["cd-gcn"]["carry"] == 2 * 3 * 200 * (6 + 6) * 2 * 4
    # the first layer's fixed part does not go back: T·N·(P-1)/P rows of (y ‖ x), z, dz, dy, and dx in the second
    rows = 32 * 200 * 3 // 4
    assert sizes["cd-gcn"]["redistribute"] == 4 * rows * ((6 + 2 + 6 + 6 + 6) + (6 + 6 + 6 + 6 + 6 + 6))
    assert "halo" not in sizes["cd-gcn"]
    assert sizes["tm-gcn"]["halo"] < sizes["tm-gcn"]["redistribute"]
    timeline_layouts.show(result)
    assert "redistribute" in capsys.readouterr().out
