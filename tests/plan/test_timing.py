"""A part of a large world takes as long as the whole, by the simulator."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.plan.workloads import cluster, static, timeline

from trisect.layout import parse_layout
from trisect.plan.cluster import Link
from trisect.plan.timing import epoch_seconds


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("static", "vertex=8"),
        ("static", "vertex=8,spatial=redistribute"),
        ("static", "vertex=4,layer=2"),
        ("static", "vertex=4,layer=2,chunks=4"),
        ("static", "layer=4,chunks=40"),
        ("static", "vertex=2,layer=2,chunks=32"),
        ("timeline", "vertex=4,blocks=2"),
        ("timeline", "time=2,vertex=4"),
        ("timeline", "time=24,temporal=carry"),
        ("timeline", "time=24,temporal=redistribute"),
        ("weight", "time=24"),
        ("window", "time=24,temporal=halo"),
        ("window", "time=40,temporal=halo"),
    ],
)
def test_a_part_stands_for_the_whole(data, text):
    models = {"timeline": "cd-gcn", "window": "tm-gcn", "weight": "evolvegcn-o"}
    workload = static() if data == "static" else timeline(models[data], steps=48)
    machine = cluster(hosts=4, devices=8)
    plan = workload.plan(parse_layout(text))
    part, whole = epoch_seconds(workload, plan, machine), epoch_seconds(workload, plan, machine, whole=True)
    assert part.total == pytest.approx(whole.total, rel=0.06)
    slower = replace(machine, inside=Link(bandwidth=1e7), between=Link(bandwidth=1e6))
    assert epoch_seconds(workload, plan, slower).total > 1.2 * part.total


def test_what_an_epoch_is_spent_on():
    workload, machine = static(layers=8), cluster()
    one = epoch_seconds(workload, workload.plan(parse_layout("vertex=1")), machine)
    assert one.communication == one.bubble == 0.0
    stages = epoch_seconds(workload, workload.plan(parse_layout("layer=4")), machine)
    # exact stages work one after the other: nothing is gained, and three of four wait
    assert stages.bubble > 1.5 * stages.compute
    chunked = epoch_seconds(workload, workload.plan(parse_layout("layer=4,chunks=16")), machine)
    assert chunked.bubble < 0.5 * stages.bubble
    parts = epoch_seconds(workload, workload.plan(parse_layout("vertex=4")), machine)
    assert parts.communication > 0
    assert parts.compute < 0.4 * one.compute
