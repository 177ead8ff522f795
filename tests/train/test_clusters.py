"""A machine that was never measured is measured for some seconds by the first plan, and not again."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

import trisect
from trisect.config import TrainOptions
from trisect.errors import TrisectError
from trisect.nn.models.source import NamedModel
from trisect.plan.cluster import DISTURBED, QUICK, read_cluster
from trisect.train.clusters import calibrated_cluster, cluster_path, local_cluster
from trisect.train.machine import quick
from trisect.train.machine.quick import Measured
from trisect.train.planning import choose_layout


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """`answer` is what `measure_quickly` gives, `asked` how often it was called, and `said` what was told."""
    monkeypatch.setenv("TRISECT_CLUSTER", str(tmp_path / "cache" / "cluster.yaml"))
    measured = Measured(replace(local_cluster(), source=QUICK), 4.6, 0.0)
    machine = SimpleNamespace(answer=measured, said=[], asked=0)

    def measure():
        machine.asked += 1
        if isinstance(machine.answer, Exception):
            raise machine.answer
        return machine.answer

    monkeypatch.setattr(quick, "measure_quickly", measure)
    return machine


def test_measured_once_and_kept(machine):
    first = calibrated_cluster("cpu", machine.said.append)
    assert machine.said == [
        f"Measured this machine for 4.6 s; kept in {cluster_path()}; trisect plan --calibrate measures it thoroughly."
    ]
    assert first.source == read_cluster(cluster_path()).source == QUICK
    again = calibrated_cluster("cpu", machine.said.append)
    assert (machine.asked, len(machine.said), again.source) == (1, 1, QUICK)


def test_measured_again_with_another_number_of_cores(machine, monkeypatch):
    calibrated_cluster("cpu", machine.said.append)
    cores = machine.answer.cluster.devices
    monkeypatch.setattr("trisect.train.clusters.usable_cores", lambda: cores + 3)
    calibrated_cluster("cpu", machine.said.append)
    assert machine.asked == 2
    assert f"was measured with {cores} cores, and there are {cores + 3} now" in machine.said[1]


def test_what_cannot_be_kept_is_said(machine, tmp_path):
    (tmp_path / "cache").write_text("a file where a folder should be")
    assert calibrated_cluster("cpu", machine.said.append).source == QUICK
    assert "not kept, since" in machine.said[0]
    assert "cannot be written" in machine.said[0]


def test_a_disturbed_measurement_is_used_and_not_kept(machine):
    machine.answer = Measured(replace(local_cluster(), source=DISTURBED), 4.0, 1.4)
    assert calibrated_cluster("cpu", machine.said.append).source == DISTURBED
    assert "not kept, since others took 1.4 cores meanwhile" in machine.said[0]
    assert not cluster_path().exists()


@pytest.mark.parametrize("error", [TrisectError("other programs use 1.9 of 2 cores"), RuntimeError("no memory")])
def test_a_machine_that_cannot_be_measured_is_guessed(machine, error):
    machine.answer = error
    assert calibrated_cluster("cpu", machine.said.append).source == "guessed"
    assert str(error) in machine.said[0]
    assert "its rates are guessed" in machine.said[0]


def test_plans_and_auto_measure_first(machine):
    graph = trisect.Graph.generate("community", vertices=200)
    choice = trisect.plan("gcn", graph, devices=1, layers=2, hidden=8)
    assert choice.cluster.source == QUICK
    assert any("measured for some seconds" in sentence for sentence in choice.assumptions)
    os.unlink(cluster_path())
    maker = NamedModel("gcn", {"layers": 2, "hidden": 8}, 0)
    layout, said = choose_layout(maker, graph, "node-classification", TrainOptions(), 1, say=machine.said.append)
    assert layout.world == 1
    assert "by rates that were measured for some seconds" in said
    assert "kept in" in machine.said[-1]
    assert machine.asked == 2
    assert trisect.plan("gcn", graph, devices=1, cluster="8xa100", layers=2, hidden=8).cluster.source == "preset"
    assert machine.asked == 2


@pytest.mark.parametrize("content", ["", "name: [", "\0", "[1, 2]"])
def test_a_kept_file_that_is_damaged_is_passed_over_and_made_anew(machine, monkeypatch, tmp_path, content):
    monkeypatch.delenv("TRISECT_CLUSTER")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = cluster_path()
    path.parent.mkdir()
    path.write_text(content)
    with pytest.warns(UserWarning, match="passed over"):
        assert local_cluster().source == "guessed"
    assert calibrated_cluster("cpu", machine.said.append).source == QUICK
    assert "passed over" in machine.said[0]
    assert read_cluster(path).source == QUICK
    monkeypatch.setenv("TRISECT_CLUSTER", str(path))
    path.write_text(content)
    with pytest.raises(TrisectError):  # the user has named it
        local_cluster()
