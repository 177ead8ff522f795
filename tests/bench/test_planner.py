"""`trisect bench planner`: its cases, predictions, and what the table adds up to."""

from __future__ import annotations

import json

import pytest

from trisect.errors import ConfigError
from trisect_bench._planner_cases import CASES
from trisect_bench.planner import _calmer, run, show, totals


def test_a_third_of_the_cases_is_held_out():
    assert len(CASES) >= 30
    assert len({case.name for case in CASES}) == len(CASES)
    assert sum(case.held_out for case in CASES) >= len(CASES) // 3
    assert {case.mbit for case in CASES} == {0, 1000}


def test_predicted_without_measuring(capsys):
    result = run(only="tm-gcn-2x32 evolving one rank", measure=False)
    assert [row["measured"] for row in result["cases"]] == [None]
    show(result)
    assert "tm-gcn" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="no case has"):
        run(only="nothing", measure=False)


def test_kept_measurements_are_shown_without_measuring(tmp_path):
    name = "cd-gcn-2x16 payments one rank"
    measured = {"seconds": 0.3, "best": 0.3, "bytes": 0, "memory": 1 << 30}
    (tmp_path / "state.json").write_text(json.dumps({name: measured}))
    result = run(only=name, state=str(tmp_path / "state.json"), measure=False, table=str(tmp_path / "table.md"))
    assert result["cases"][0]["measured"] == measured
    assert result["totals"]["all"]["cases"] == 1
    table = (tmp_path / "table.md").read_text()
    assert f"| {name} |" in table
    assert "| 0.300 |" in table
    assert "| 1,024 |" in table
    assert _calmer(measured, {**measured, "seconds": 0.2})["seconds"] == 0.2
    assert _calmer(measured, {**measured, "seconds": 0.4}) == measured


def test_totals():
    def row(predicted: float, measured: float, **more: object) -> dict:
        numbers = [
            {"seconds": value, "memory": value, "bytes": 5, "bytes_are_exact": True} for value in (predicted, measured)
        ]
        return {"workload": "w", "mbit": 0, "held_out": False, "predicted": numbers[0], "measured": numbers[1], **more}

    near, far = row(1.0, 1.05), row(3.0, 1.0, held_out=True)
    result = totals([near, far])
    assert result["all"]["memory_within_8"] == 0.5
    assert result["held out"]["memory_within_8"] == 0.0
    assert result["all"]["bytes_exact"] == 2
    # the faster one by prediction is 5 % slower than the best
    assert result["choice_losses"]["w"] == pytest.approx(0.05)
