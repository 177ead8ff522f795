"""The shared parts of the benchmarks."""

from __future__ import annotations

import time

import pytest

from trisect.errors import RunError
from trisect_bench._harness import Candidate, Timing, geometric_mean, interleave, race


def sleeper(seconds):
    return lambda: time.sleep(seconds)


def broken():
    raise ValueError("not today")


def late():
    turns = iter((None,))
    return lambda: next(turns)


def test_interleave_times_each():
    order = []
    found = interleave({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3, warmup=1)
    assert order == ["a", "b"] * 4
    assert {name: len(timing.seconds) for name, timing in found.items()} == {"a": 3, "b": 3}


def test_timing_and_mean():
    timing = Timing((3.0, 1.0, 2.0), 5)
    assert (timing.best, timing.median) == (1.0, 2.0)
    assert timing.to_json()["peak_rss_bytes"] == 5
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)


@pytest.fixture
def here(monkeypatch):
    """Children find this file as a module."""
    from pathlib import Path

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    return Path(__file__).stem


def test_race_in_processes(here):
    lines = []
    found = race(
        [Candidate("slow", f"{here}:sleeper", {"seconds": 0.05}), Candidate("broken", f"{here}:broken")],
        rounds=2,
        threads=1,
        report=lines.append,
    )
    assert list(found) == ["slow"]
    assert found["slow"].best >= 0.05
    assert found["slow"].peak_rss_bytes > 1 << 20
    assert lines == ["broken left out: ValueError: not today"]


def test_failure_in_a_turn_is_told(here):
    with pytest.raises(RunError, match="late failed"):
        race([Candidate("late", f"{here}:late")], rounds=1, warmup=1, threads=1)
