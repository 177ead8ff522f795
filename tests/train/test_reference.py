"""Reference runs: what they say of layers and of ranks that share cores."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest

from trisect.comm.world import World
from trisect.layout import parse_layout
from trisect.plan.cluster import PAIRS, Cluster, Device, Link, read_cluster
from trisect.plan.timing import epoch_seconds
from trisect.train import calibrate, reference
from trisect.train.reference import Reference, Timed, _three_unknowns, _Timer, low, sample_graph


def test_ratios_follow_from_three_times():
    def time(rows, entries, calls):
        return [2.0 * rows + 0.5 * entries + 3.0 * calls, rows, entries, calls]

    small, wide, dense = time(1.0, 2.0, 1.0), time(4.0, 8.0, 1.0), time(4.0, 40.0, 1.0)
    assert _three_unknowns(small, wide, dense) == pytest.approx((2.0, 0.5, 3.0))
    # more entries that took less time were disturbed: the ratio is held at its bound, not below zero
    disturbed = [wide[0] - 1.0, *dense[1:]]
    assert _three_unknowns(small, wide, disturbed)[1] == reference._LEAST


def test_what_disturbs_counts_little():
    assert low([1.0, 1.1, 9.0, 8.0, 1.05, 7.0]) == 1.1
    timer = _Timer()
    for epoch, seconds in ((1, 9.0), (2, 1.0), (3, 1.0)):
        timer.event("0F0", 0.0, seconds, epoch=epoch)
        timer.event("0F0~e", 0.0, 5.0, epoch=epoch, evaluation=True)
    assert timer.by_verb() == {"F": 1.0}


def test_a_kind_is_trained_and_solved():
    link = Link(bandwidth=1e30)
    device = Device(flops=1e11, gather={4: 1e10}, elementwise=1e10, memory=1 << 40, half=1e-5)
    cluster = Cluster("test", device, link, link)
    graphs = [sample_graph(degree, 8, vertices) for vertices, degree in ((200, 3.0), (800, 3.0), (800, 12.0))]
    kind, width, references = reference._kind("gcn", {"layers": 3, "hidden": 8}, graphs, 8)
    assert (kind, width) == ("GCNLayer", 8)
    best = [reference._shortest([one.timed(), one.timed()]) for one in references]
    ratios = reference._solved(cluster, kind, width, references, best)
    assert len(ratios) == 6
    assert min(ratios) >= reference._LEAST
    assert max(ratios) <= reference._MOST
    # what is calibrated is what the device gives back, and a kind that is not there takes the middle one
    rated = Device(**{**_values(device), "layers": {kind: {32: ratios}, PAIRS: {32: (9.0,) * 6}}})
    assert rated.ratios(kind, 32, back=True) == pytest.approx(ratios[3:])
    assert rated.ratios("OwnLayer", 32, back=False) == pytest.approx(ratios[:3])
    assert rated.ratios("_LinearLayer", 32, back=False) == (1.0, 1.0, 1.0)


def _values(device):
    return {name: getattr(device, name) for name in ("flops", "gather", "elementwise", "memory", "half")}


def test_of_several_runs_the_shortest_counts():
    runs = [Timed(({"F": 2.0, "B": 5.0},), [9.0, 8.0], 1), Timed(({"F": 3.0, "B": 4.0},), [7.5], 1)]
    shortest = reference._shortest(runs)
    assert shortest.ranks[0] == {"F": 2.0, "B": 4.0}
    assert shortest.epoch == 7.5


def test_what_a_kind_keeps_is_no_less_than_its_threads():
    fast, slow = (Timed(({"F": each, "B": 3.0},), [each], 1) for each in (1.0, 4.0))
    assert reference._kept([(fast, slow)], 0.5) == (0.5, 1.0)  # a quarter of the speed with half of the threads
    other = Timed(({"F": 1.25, "B": 2.0},), [1.25], 1)
    assert reference._kept([(fast, other), (fast, fast)], 0.5) == (pytest.approx(0.9), 1.0)


def test_epochs_alternate_between_numbers_of_threads():
    more, fewer = Reference("gcn", {"layers": 2, "hidden": 8}, sample_graph(4.0, 8, 300)).in_turn([None, 1])
    for timed in (more, fewer):
        assert len(timed.epochs) == reference._EPOCHS
        assert set(timed.ranks[0]) >= {"F", "B"}


def test_a_number_is_found_with_which_the_simulated_epoch_is_as_long():
    """Also one that lies out of bounds, which is held there."""
    device = Device(flops=1e11, gather={4: 1e10}, elementwise=1e10, memory=1 << 40, half=1e-5)
    inside = Link(bandwidth=1e9, copies=True)
    cluster = Cluster("test", device, inside, inside, devices=2, shares={1: 1.0, 2: 0.5})
    parts = Reference("gcn", {"layers": 3, "hidden": 8}, sample_graph(4.0, 8, 400), layout="vertex=2")
    workload = parts.workload()
    facts = workload.facts(parse_layout(parts.layout))

    def seconds(latency):
        return epoch_seconds(workload, facts, reference._with_latency(cluster, latency)).total

    find = partial(reference._fitting, parts, partial(reference._with_latency, cluster), 0.0, 0.01)
    assert find(seconds(0.003)) == pytest.approx(0.003, rel=0.01)
    assert find(seconds(0.05)) == pytest.approx(0.01, rel=0.01)
    assert seconds(0.003) > seconds(0.001)


@pytest.mark.slow
def test_all_of_a_calibration_in_small(tmp_path, monkeypatch):
    """What one rank measures, and what several that share cores do, make a cluster that is written and read back."""
    full = reference.sample_graph
    monkeypatch.setattr(
        reference, "sample_graph", lambda degree, width, vertices: full(degree, width, min(vertices, 400))
    )
    over_time = reference.sample_timeline
    monkeypatch.setattr(
        reference, "sample_timeline", lambda degree, width, vertices, **more: over_time(degree, width, 200, **more)
    )
    monkeypatch.setattr(reference, "_STATIC", ("gcn", "gcnii"))
    monkeypatch.setattr(reference, "_DYNAMIC", ("wd-gcn",))
    monkeypatch.setattr(reference, "_WIDTHS", (8,))
    calibrate._rank(tmp_path, World(0, 1, 0, 1))
    values = json.loads((tmp_path / "0.json").read_text())
    alone, single = values.pop("alone"), values.pop("single")
    assert 0 < single <= 1
    assert set(values["kept"]) == set(values["layers"])
    assert 0 < alone <= values["libraries"]
    device = Device(**values, memory=8 << 30)
    assert set(device.layers) == {"GCNLayer", "GCN2Layer", "GCNLayer+LSTM", PAIRS}
    assert device.gather_cached is not None
    # which of them is the faster is a matter of the moment, on a machine that does other things too
    assert set(device.gather_cached) == set(device.gather) == {4 * width for width in calibrate.WIDTHS}
    assert min(*device.gather_cached.values(), *device.gather.values()) > 0
    cluster = Cluster("small", device, Link(bandwidth=4e9, copies=True), Link(bandwidth=1e8), devices=2)
    sharing = reference.measure_sharing(cluster, 2, alone, single)
    assert 0 < sharing.share <= 1
    assert sharing.bandwidth > 0
    assert 0 <= sharing.latency <= reference._SLOWEST
    assert 0 <= sharing.stale <= reference._SLOWEST
    assert sharing.joined >= 0  # this process has more than a worker, and may take more alone
    assert reference.measure_sharing(cluster, 2, 0, single).joined > sharing.joined
    whole = replace(cluster, shares={1: 1.0, 2: sharing.share}, single=single)
    whole.write(tmp_path / "cluster.yaml")
    assert read_cluster(tmp_path / "cluster.yaml") == whole
