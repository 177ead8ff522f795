"""The memory that the cut of the vertices takes, before ranks start."""

from __future__ import annotations

import pytest
from tests.plan.workloads import cluster, static, timeline

from trisect.layout import parse_layout
from trisect.partition.method import metis_bytes
from trisect.partition.stream import stream_bytes
from trisect.plan.estimate import estimate
from trisect.plan.workload import Workload


def launch(workload: Workload, text: str) -> int:
    return estimate(workload, parse_layout(text), cluster(), timed=False).launch


def test_it_follows_what_is_cut_and_what_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRISECT_MEMORY", "2GiB")
    workload = static(vertices=100_000, edges=3_000_000)
    by_metis = metis_bytes(100_000, max(workload.entries))
    assert launch(workload, "vertex=4,spatial=halo") == launch(workload, "layer=2,chunks=4") == by_metis
    assert launch(workload, "vertex=4,spatial=halo,partition=stream") == stream_bytes(100_000) < by_metis
    assert launch(workload, "vertex=1") == launch(workload, "vertex=4,spatial=redistribute") == 0
    assert launch(timeline(vertices=100_000), "vertex=2,spatial=halo") > 0
    monkeypatch.setenv("TRISECT_MEMORY", "8MiB")
    assert launch(workload, "vertex=4,spatial=halo") == stream_bytes(100_000)
