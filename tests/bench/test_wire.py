"""Accuracy by the form of the wire."""

from __future__ import annotations

import pytest

from trisect.errors import DataError
from trisect_bench import wire


@pytest.mark.slow
def test_rounding_changes_losses_and_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    result = wire.run(data=None, layers=4, hidden=8, epochs=3, seeds=1, layouts=["vertex=2"])
    plain, half, byte = result["runs"]
    assert plain["bytes"] > half["bytes"] > byte["bytes"]
    assert plain["loss"] != half["loss"] != byte["loss"]
    assert byte["loss"] == pytest.approx(plain["loss"], rel=0.1)
    wire.show(result)
    assert "int8" in capsys.readouterr().out


def test_differences_are_paired_by_seed(capsys: pytest.CaptureFixture[str]) -> None:
    tests = {("float32", 0): 0.80, ("float32", 1): 0.70, ("int8", 0): 0.81, ("int8", 1): 0.68}
    runs = [
        {"layout": "vertex=2", "wire": name, "seed": seed, "test": test, "loss": 1.0, "bytes": 2_000_000}
        for (name, seed), test in tests.items()
    ]
    wire.show({"model": "gcn", "layers": 2, "hidden": 4, "epochs": 1, "runs": runs})
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.split() == ["vertex=2", "int8", "2.00", "74.50", "-0.50", "+1.0", "-2.0", "1.0000"]


def test_nothing_asked_for() -> None:
    with pytest.raises(DataError, match="at least one layout"):
        wire.run(seeds=0)
