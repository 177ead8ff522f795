from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trisect_bench import hosts
from trisect_bench._hosts import NoHostsError, several_hosts


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = hosts.run()
    hosts.show(result)
    said = capsys.readouterr().out.strip()
    assert said == "bench hosts is left out: network namespaces need root; run the measurement as root."


def test_layouts_use_every_host() -> None:
    assert hosts.static_layouts(4, 16, 4) == {
        "graph": "vertex=4,spatial=halo",
        "pipeline": "layer=4,chunks=16",
        "hybrid": "layer=2,vertex=2,chunks=4",
    }
    assert list(hosts.static_layouts(3, 16, 4)) == ["graph", "pipeline"]
    assert hosts.timeline_layouts(4)["carry"] == "time=4,temporal=carry"


def test_figures_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    sent = {"bytes_per_epoch": 300, "by_axis": {"vertex": 300}, "by_rank": [100, 200]}
    (tmp_path / "summary.json").write_text(json.dumps({"communication": sent, "loss": [3.0, 2.0, 1.0]}))
    epochs = [{"epoch": 1, "seconds": 1.0}, {"epoch": 2, "seconds": 3.0}, {"epoch": 3, "seconds": 2.0}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, epochs)))
    events = [
        {"name": "0F0", "seconds": 5.0, "epoch": 3},
        {"name": "0WhF0.1", "seconds": 0.25, "epoch": 3},
        {"name": "0WhF0.1", "seconds": 7.0, "epoch": 2},
        {"name": "0WbF0<1", "seconds": 0.5, "epoch": 3},
        {"name": "guard", "seconds": 9.0, "epoch": 3},
    ]
    (tmp_path / "events" / "rank-0.jsonl").write_text("\n".join(map(json.dumps, events)))
    found = hosts.describe(tmp_path, mbit=1)
    assert found["seconds"] == 2.0  # the first epoch does not count
    assert found["waits"] == [0.75]
    assert found["computes"] == [5.0]
    assert found["link_seconds"] == pytest.approx(200 * 8 / 1e6)
    assert hosts.describe(tmp_path, mbit=0)["link_seconds"] == 0.0


@pytest.mark.slow
def test_two_small_hosts() -> None:
    try:
        with several_hosts(2):
            pass
    except NoHostsError as error:
        pytest.skip(str(error))
    result = hosts.run(hosts=2, graph="no-such-graph", layers=3, hidden=8, chunks=2, epochs=2, wires=["float32"])
    assert [found["layout"] for found in result["runs"]] == ["graph", "pipeline"]
    assert all(len(found["waits"]) == 2 for found in result["runs"])
    assert "stands in" in result["said"][0]
