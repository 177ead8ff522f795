from __future__ import annotations

import pytest

from trisect.bench.transfer import TIMELINES, measure, run, show
from trisect.graph import Timeline


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


def test_a_window_sends_each_event_once() -> None:
    smoothing = {"kind": "edge-life", "length": 4}
    timeline = Timeline.generate("uniform", vertices=50, degree=2.0, steps=10, smoothing=smoothing)
    assert measure(timeline)["bytes"]["compact"] == 8 * timeline.total_events
