"""What kinds of layers take beyond their rates."""

from __future__ import annotations

import pytest

from trisect.plan.cluster import PAIRS, Cluster, Device, Link
from trisect.train.machine import kinds
from trisect.train.machine.kinds import _three_unknowns, kept_share, kind_of_model, solved
from trisect.train.machine.reference import sample_graph
from trisect.train.machine.timed import Timed, shortest


def test_ratios_follow_from_three_times():
    def time(rows, entries, calls):
        return [2.0 * rows + 0.5 * entries + 3.0 * calls, rows, entries, calls]

    small, wide, dense = time(1.0, 2.0, 1.0), time(4.0, 8.0, 1.0), time(4.0, 40.0, 1.0)
    assert _three_unknowns(small, wide, dense) == pytest.approx((2.0, 0.5, 3.0))
    # more entries that took less time were disturbed: the ratio is held at its bound, not below zero
    disturbed = [wide[0] - 1.0, *dense[1:]]
    assert _three_unknowns(small, wide, disturbed)[1] == kinds._LEAST


def test_a_kind_is_trained_and_solved():
    link = Link(bandwidth=1e30)
    device = Device(flops=1e11, gather={4: 1e10}, elementwise=1e10, memory=1 << 40, half=1e-5)
    cluster = Cluster("test", device, link, link)
    graphs = [sample_graph(degree, 8, vertices) for vertices, degree in ((200, 3.0), (800, 3.0), (800, 12.0))]
    kind = kind_of_model("gcn", graphs, 8)
    assert (kind.name, kind.width) == ("GCNLayer", 8)
    best = [shortest([one.timed(), one.timed()]) for one in kind.references]
    ratios = solved(cluster, kind, best)
    assert len(ratios) == 6
    assert min(ratios) >= kinds._LEAST
    assert max(ratios) <= kinds._MOST
    # what is calibrated is what the device gives back, and a kind that is not there takes the middle one
    rated = Device(**{**_values(device), "layers": {kind.name: {32: ratios}, PAIRS: {32: (9.0,) * 6}}})
    assert rated.ratios(kind.name, 32, back=True) == pytest.approx(ratios[3:])
    assert rated.ratios("OwnLayer", 32, back=False) == pytest.approx(ratios[:3])
    assert rated.ratios("_LinearLayer", 32, back=False) == (1.0, 1.0, 1.0)


def _values(device):
    return {name: getattr(device, name) for name in ("flops", "gather", "elementwise", "memory", "half")}


def test_what_a_kind_keeps_is_no_less_than_its_threads():
    fast, slow = (Timed([each], ({"F": each, "B": 3.0},)) for each in (1.0, 4.0))
    assert kept_share([(fast, slow)], 0.5) == (0.5, 1.0)  # a quarter of the speed with half of the threads
    other = Timed([1.25], ({"F": 1.25, "B": 2.0},))
    assert kept_share([(fast, other), (fast, fast)], 0.5) == (pytest.approx(0.9), 1.0)
    # one of three that was disturbed does not count
    assert kept_share([(fast, other), (fast, other), (slow, fast)], 0.5)[0] == pytest.approx(0.8)
