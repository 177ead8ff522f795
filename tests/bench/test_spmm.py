"""The measurement runs and compares its candidates before it times them."""

from __future__ import annotations

from trisect.bench import spmm


def test_runs_small_and_prints(capsys):
    result = spmm.run(vertices=300, edges=3000, widths=(6, 20), rounds=2, threads=1)
    candidates = result["widths"]["6"]["candidates"]
    assert {"torch csr int64", "torch csr int32", "gather and scatter", "trisect", "trisect backward"} <= set(
        candidates
    )
    assert "gather and scatter" not in result["widths"]["20"]["candidates"]
    assert candidates["torch csr int64"]["speedup"] == 1.0
    assert result["copy_bytes_per_second"] > 0
    assert set(result["attention"]) == {"1x64", "8x8"}
    spmm.show(result)
    assert "times torch int64" in capsys.readouterr().out
