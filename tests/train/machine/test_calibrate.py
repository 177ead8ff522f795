"""A calibration: what it says when it was disturbed, and the whole of it in small."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.plan.workloads import static

from trisect.cli.main import run_command
from trisect.comm.world import World
from trisect.errors import ConfigError
from trisect.plan.cluster import DISTURBED, MEASURED, PAIRS, Cluster, Device, Link, read_cluster
from trisect.plan.search import assumptions
from trisect.report.planned import rests_on
from trisect.train import clusters
from trisect.train.machine import calibrate, kinds, rank, rates, sharing
from trisect.train.machine.sharing import Sharing

RATES = {"flops": 1e11, "gather": {16: 1e9, 64: 1e10}, "elementwise": 1e10, "half": 5e-5, "step": 1e-5}


@pytest.fixture
def machine(monkeypatch):
    """A machine of two cores whose ranks measure nothing: the test says what they would have found."""

    class Machine:
        cores = 2
        doubt = beside = 0.0  # share of the measurements of one rank, and of several, that is doubtful
        others = (0.0, 0.0)

        def calibrate(self, earlier=None):
            said: list[str] = []
            taken = iter(self.others)
            monkeypatch.setattr(calibrate.Others, "cores", lambda self: next(taken))
            return calibrate.calibrate(said.append, earlier), said

    machine = Machine()

    def launch(command, world, folders):
        values = {**RATES, "single": 0.6, "alone": 5, "doubt": machine.doubt, "libraries": 1 << 28}
        Path(command[-1], "0.json").write_text(json.dumps(values))

    monkeypatch.setattr(calibrate, "launch", launch)
    monkeypatch.setattr(calibrate, "usable_cores", lambda: machine.cores)
    monkeypatch.setattr(calibrate, "_LOOK", 0.0)
    monkeypatch.setattr(calibrate, "measure_sharing", lambda *_: Sharing(0.7, 2e9, 4e-5, 1e-5, 0.0, 7, machine.beside))
    return machine


def test_a_quiet_machine_is_measured(machine):
    cluster, said = machine.calibrate()
    assert cluster.source == MEASURED
    assert cluster.shares == {1: 1.0, 2: 0.7}
    assert len(said) == 1
    assert "half a layer 50 us" in said[0]


def test_others_that_are_busy_are_named_before_anything_is_measured(machine):
    machine.others = (1.5, 0.0)
    cluster, said = machine.calibrate()
    assert "Other programs use 1.5 of 2 cores now" in said[0]
    assert cluster.source == MEASURED  # they have ended in time


@pytest.mark.parametrize(
    "how", [{"others": (0.0, 0.2)}, {"others": (0.0, 1.0), "cores": 64}, {"doubt": 0.2}, {"beside": 0.2}]
)
def test_a_calibration_that_was_disturbed_says_so(machine, how, tmp_path):
    for name, value in how.items():
        setattr(machine, name, value)
    cluster, said = machine.calibrate()
    assert cluster.source == DISTURBED
    assert "calibrate again when the machine is quiet" in said[-1]
    # and so does every plan that rests on it, and the report of a run
    cluster.write(tmp_path / "cluster.yaml")
    kept = read_cluster(tmp_path / "cluster.yaml")
    assert any("doubtful" in sentence for sentence in assumptions(static(), kept, 2))
    plan = {"expected": {"cluster": {"name": kept.name, "source": kept.source}}}
    assert "disturbed" in rests_on(plan)


def test_a_little_disturbs_nothing(machine):
    machine.others, machine.doubt, machine.beside = (0.1, 0.05), 0.05, 0.0
    cluster, said = machine.calibrate()
    assert cluster.source == MEASURED
    assert len(said) == 1


def test_a_system_that_does_not_tell_what_others_take_is_said_to(machine):
    machine.others = (None, None)
    cluster, said = machine.calibrate()
    assert "does not tell what others take" in said[0]
    assert cluster.source == MEASURED


def test_one_core_has_no_ranks_beside(machine):
    machine.cores = 1
    cluster, said = machine.calibrate()
    assert cluster.shares == {1: 1.0}
    assert len(said) == 1


def test_an_undisturbed_calibration_is_not_lost_to_a_disturbed_one(machine, tmp_path, monkeypatch, capsys):
    path = tmp_path / "cluster.yaml"
    monkeypatch.setenv(clusters.CLUSTER_VARIABLE, str(path))
    taken = iter([0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    monkeypatch.setattr(calibrate.Others, "cores", lambda self: next(taken))
    sources = []
    for _ in range(4):
        assert run_command(["plan", "--calibrate"]) == 0
        sources.append(read_cluster(path).source)
    # a disturbed one is better than none, an undisturbed one takes its place and is kept until there is another
    assert sources == [DISTURBED, MEASURED, MEASURED, MEASURED]
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("is kept; remove that file") == 1


def test_a_machine_that_has_changed_is_said_to_have(machine):
    earlier, _ = machine.calibrate()
    machine.others = (0.0, 0.0)
    _, said = machine.calibrate(earlier)
    assert len(said) == 1
    machine.others = (0.0, 0.0)
    device = replace(earlier.device, flops=1.1e11, elementwise=2e10, half=3e-5)
    cluster, said = machine.calibrate(replace(earlier, device=device, shares={1: 1.0, 2: 0.5}))
    assert "elementwise work 0.5 times as fast, half a layer 0.6 times as fast, each of 2 ranks 1.4" in said[-1]
    assert "products" not in said[-1].split("changed:")[1]
    assert cluster.source == MEASURED


def test_an_earlier_calibration_that_cannot_be_read_counts_as_none(tmp_path, monkeypatch):
    monkeypatch.setenv(clusters.CLUSTER_VARIABLE, str(tmp_path / "cluster.yaml"))
    assert clusters.earlier_calibration() is None
    (tmp_path / "cluster.yaml").write_text("name: this machine\nfresh: 3\n")
    assert clusters.earlier_calibration() is None
    link = Link(bandwidth=1e9)
    for source in (MEASURED, DISTURBED, "written"):
        cluster = Cluster("mine", Device(**RATES, memory=1 << 34), link, link, source=source)
        cluster.write(tmp_path / "cluster.yaml")
        assert clusters.earlier_calibration() == (cluster if source == MEASURED else None)


def test_a_rank_is_not_started_by_hand(tmp_path, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match="trisect plan --calibrate"):
        rank.main(tmp_path)


@pytest.mark.slow
def test_all_of_a_calibration_in_small(tmp_path, monkeypatch):
    """What one rank measures, and what several that share cores do, make a cluster that is written and read back."""
    full, over_time = kinds.sample_graph, kinds.sample_timeline
    for module in (kinds, sharing, rank):
        monkeypatch.setattr(
            module, "sample_graph", lambda degree, width, vertices: full(degree, width, min(vertices, 400))
        )
    for module in (kinds, sharing):
        monkeypatch.setattr(
            module, "sample_timeline", lambda degree, width, vertices, **more: over_time(degree, width, 200, **more)
        )
    monkeypatch.setattr(kinds, "_STATIC", ("gcn", "gcnii"))
    monkeypatch.setattr(kinds, "_DYNAMIC", ("wd-gcn",))
    monkeypatch.setattr(kinds, "_WIDTHS", (8,))
    rank.measure(tmp_path, World(0, 1, 0, 1))
    values = json.loads((tmp_path / "0.json").read_text())
    alone, single, doubt = (values.pop(key) for key in ("alone", "single", "doubt"))
    assert 0 <= doubt <= 1
    assert 0 < single <= 1
    assert set(values["kept"]) == set(values["layers"])
    assert alone > 0
    device = Device(**values, memory=8 << 30)
    assert set(device.layers) == {"GCNLayer", "GCN2Layer", "GCNLayer+LSTM", PAIRS}
    assert device.gather_cached is not None
    # which of them is the faster is a matter of the moment, on a machine that does other things too
    assert set(device.gather_cached) == set(device.gather) == {4 * width for width in rates.WIDTHS}
    assert min(*device.gather_cached.values(), *device.gather.values()) > 0
    cluster = Cluster("small", device, Link(bandwidth=4e9, copies=True), Link(bandwidth=1e8), devices=2)
    beside = sharing.measure_sharing(cluster, 2, alone, single)
    assert 0 < beside.share <= 1
    assert beside.bandwidth > 0
    assert 0 <= beside.latency <= sharing._SLOWEST
    assert 0 <= beside.stale <= sharing._SLOWEST
    assert beside.joined >= 0  # this process has more than a worker, and may take more alone
    assert sharing.measure_sharing(cluster, 2, 0, single).joined > beside.joined
    whole = replace(cluster, shares={1: 1.0, 2: beside.share}, single=single)
    whole.write(tmp_path / "cluster.yaml")
    assert read_cluster(tmp_path / "cluster.yaml") == whole


@pytest.mark.slow
def test_libraries_are_more_than_a_rank_on_next_to_nothing_takes():
    """In a process of its own: peaks of this one tell what other tests took."""
    script = (
        "from trisect.train.machine import rank\n"
        "graph = rank.Graph.from_record(rank.generate('community', vertices=64))\n"
        "alone = rank.Reference('gcn', {'layers': 16, 'hidden': 4}, graph).in_turn([1])[0].memory\n"
        "print(alone, rank._measure_libraries())"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    alone, libraries = map(int, done.stdout.split()[-2:])
    assert 0 < alone <= libraries
