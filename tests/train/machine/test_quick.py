"""What a quick measurement gives is a cluster like that of a calibration."""

from __future__ import annotations

import pytest
import torch

from trisect.errors import TrisectError
from trisect.plan.cluster import QUICK, read_cluster
from trisect.train.machine import quick, rates
from trisect.train.processes.threads import limited_threads


class _Nobody:
    def cores(self) -> float:
        return 0.0


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(quick, "others_now", lambda: 0.0)
    monkeypatch.setattr(quick, "Others", _Nobody)
    monkeypatch.setattr(quick, "GRAPHS", ((300, 3.0), (1200, 3.0), (1200, 9.0)))
    monkeypatch.setattr(quick, "TIMELINES", ((100, 1.0), (300, 1.0), (300, 4.0)))
    monkeypatch.setattr(rates, "_CALLS", 1)


def test_rates_and_kinds_of_layers(small, monkeypatch, tmp_path):
    monkeypatch.setattr(quick, "usable_cores", lambda: 2)
    monkeypatch.setattr(quick, "_MODELS", ("gcn", "tm-gcn"))
    measured = quick.measure_quickly(longest=600.0)
    cluster = measured.cluster
    assert cluster.source == QUICK
    assert min(*cluster.device.gather.values(), cluster.device.flops, cluster.device.elementwise) > 0
    assert set(cluster.device.layers) == set(cluster.device.kept)
    assert set(cluster.device.layers) == {"GCNLayer", "GCNLayer+MProduct"}
    assert 0.5 <= cluster.share(2) <= cluster.single <= 1.0
    cluster.write(tmp_path / "cluster.yaml")
    assert read_cluster(tmp_path / "cluster.yaml") == cluster


def test_measured_with_all_cores_whatever_threads_torch_has(small, monkeypatch):
    threads = []
    monkeypatch.setattr(quick, "usable_cores", lambda: 2)
    monkeypatch.setattr(quick, "_measure", lambda cores, longest: threads.append(torch.get_num_threads()))
    with limited_threads(1):
        quick.measure_quickly()
        assert (threads, torch.get_num_threads()) == ([2], 1)


def test_a_busy_machine_is_not_measured(small, monkeypatch):
    monkeypatch.setattr(quick, "others_now", lambda: 1.6)
    monkeypatch.setattr(quick, "usable_cores", lambda: 2)
    with pytest.raises(TrisectError, match=r"other programs use 1\.6 of 2 cores"):
        quick.measure_quickly()


def test_a_measurement_that_takes_too_long_is_given_up(small):
    with pytest.raises(TrisectError, match="took more than"):
        quick.measure_quickly(longest=0.0)
