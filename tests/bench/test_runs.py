"""Runs in processes of their own: what they leave, what they say when they fail, and their memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from trisect.errors import RunError
from trisect_bench import scale
from trisect_bench._runs import finished, rank_gib, timeline_config, together_gib

SMALL = timeline_config(
    vertices=1000, steps=8, transactions=1.0, life=2, model="cd-gcn", layers=1, hidden=4, epochs=1, threads=1
)


def test_runs_at_the_same_time() -> None:
    with finished((SMALL, ""), (SMALL, "blocks=2")) as runs:
        one, two = (run.summary() or {} for run in runs)
        paths: list[Path] = [run.path for run in runs]
    assert one["layout"]["blocks"] == 1
    assert two["layout"]["blocks"] == 2
    assert one["loss"] == pytest.approx(two["loss"], rel=1e-5)
    assert not any(path.exists() for path in paths)


def test_a_run_that_fails_says_why() -> None:
    with (
        pytest.raises(RunError, match=r"(?s)'blocks=2'.*vertices is -1"),
        finished(({**SMALL, "data": {**SMALL["data"], "vertices": -1}}, "blocks=2")),
    ):
        pass


def test_memory_of_ranks() -> None:
    gib = 2**30
    summary = {"memory": {"peak_rss_bytes": [2 * gib, 3 * gib], "peak_pss_bytes": [gib, 2 * gib]}}
    assert (rank_gib(summary), together_gib(summary)) == (3.0, 3.0)
    # nothing better is known
    assert together_gib({"memory": {**summary["memory"], "peak_pss_bytes": None}}) == 5.0


def test_scale_runs_small_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    result = scale.run(vertices=1000, steps=8, life=2, layouts=["blocks=2"], threads=1)
    row = result["runs"][0]
    assert 0 < row["together_gib"] <= row["rank_gib"]
    scale.show(result)
    assert "together" in capsys.readouterr().out
