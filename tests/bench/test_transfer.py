from __future__ import annotations

import pytest

from trisect.graph import Timeline
from trisect_bench.transfer import TIMELINES, measure, run, show


def test_bytes_and_ratios(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TIMELINES, "laundering", {"generate": "laundering", "vertices": 300, "steps": 12})
    monkeypatch.delenv("TRISECT_DATA", raising=False)
    result = run(timelines=["laundering", "bitcoin-otc"], lives=[1, 5])
    show(result)
    shown = capsys.readouterr().out
    assert "laundering, edge-life 5" in shown
    assert "bitcoin-otc: left out." in shown
    short, long = (result["timelines"][f"laundering, edge-life {life}"] for life in (1, 5))
    assert short["bytes"]["compact"] == long["bytes"]["compact"]  # the raw events, whatever the window
    assert long["against_full"]["compact"] > short["against_full"]["compact"] > 1
    assert long["bytes"]["full"] == 20 * long["edges"]


def test_blocks_of_parts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TIMELINES, "laundering", {"generate": "laundering", "vertices": 900, "steps": 8})
    result = run(timelines=["laundering"], lives=[4], parts=2, vertices=300, encodings=False)
    show(result)
    assert "300 vertices, 2 parts" in capsys.readouterr().out
    found = result["blocks"]["laundering, edge-life 4"]
    assert found["steps"] == 8
    assert 0 < found["sent_bytes"] < found["full_bytes"]
    assert not result["timelines"]


def test_a_window_sends_each_event_once() -> None:
    smoothing = {"kind": "edge-life", "length": 4}
    timeline = Timeline.generate("uniform", vertices=50, degree=2.0, steps=10, smoothing=smoothing)
    assert measure(timeline)["bytes"]["compact"] == 8 * timeline.total_events
