"""What ranks that share cores take from each other."""

from __future__ import annotations

from functools import partial

import pytest

from trisect.layout import parse_layout
from trisect.plan.cluster import Cluster, Device, Link
from trisect.plan.timing import epoch_seconds
from trisect.train.machine.reference import Reference, sample_graph
from trisect.train.machine.sharing import fitting, with_latency


def test_a_number_is_found_with_which_the_simulated_epoch_is_as_long():
    """Also one that lies out of bounds, which is held there."""
    device = Device(flops=1e11, gather={4: 1e10}, elementwise=1e10, memory=1 << 40, half=1e-5)
    inside = Link(bandwidth=1e9, copies=True)
    cluster = Cluster("test", device, inside, inside, devices=2, shares={1: 1.0, 2: 0.5})
    parts = Reference("gcn", {"layers": 3, "hidden": 8}, sample_graph(4.0, 8, 400), layout="vertex=2")
    workload = parts.workload()
    plan = workload.plan(parse_layout(parts.layout))

    def seconds(latency):
        return epoch_seconds(workload, plan, with_latency(cluster, latency)).total

    find = partial(fitting, parts, partial(with_latency, cluster), 0.0, 0.01)
    assert find(seconds(0.003)) == pytest.approx(0.003, rel=0.01)
    assert find(seconds(0.05)) == pytest.approx(0.01, rel=0.01)
    assert seconds(0.003) > seconds(0.001)
