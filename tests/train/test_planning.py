"""From Python: plans as values, `auto`, and bytes that are those of the ledger."""

from __future__ import annotations

import pytest

import trisect
from trisect.config import TrainOptions
from trisect.errors import ConfigError
from trisect.layout import parse_layout
from trisect.nn.models.source import NamedModel
from trisect.plan.estimate import estimate
from trisect.plan.presets import PRESETS
from trisect.train.workloads import DescribedData, workload_of


@pytest.fixture(scope="module")
def graph():
    from trisect.data.generators.generate import generate

    return trisect.Graph.from_record(generate("community", vertices=300, degree=6))


def test_a_plan_is_a_value(graph):
    choice = trisect.plan("gcn", graph, devices=4, cluster="8xa100", layers=3, hidden=8)
    assert choice.best[0].layout == choice.layout
    assert choice.best[0].exact
    assert choice.reason


def test_data_that_are_not_there():
    choice = trisect.plan(
        "sage", {"vertices": 10**6, "edges": 10**7, "halo": {8: 1.0}}, devices=4, cluster="8xa100", hidden=8
    )
    assert choice.layout.world > 1
    assert not choice.best[0].exact_bytes
    with pytest.raises(ConfigError, match="vertices"):
        trisect.plan("sage", {"vertice": 10**6, "edges": 10**7}, devices=4, cluster="8xa100")


def test_bytes_are_those_of_the_ledger(graph):
    layout = "vertex=2,spatial=halo"
    workload = workload_of(
        NamedModel("gcn", {"layers": 3, "hidden": 8}, 0), graph, "node-classification", TrainOptions()
    )
    expected = estimate(workload, parse_layout(layout), PRESETS["8xa100"])
    assert expected.exact_bytes
    run = trisect.fit("gcn", graph, layout=layout, epochs=1, layers=3, hidden=8)
    sent = run.summary["communication"]
    assert expected.total_bytes == sent["bytes_per_epoch"] > 0
    assert {axis: size for axis, size in expected.bytes_by_axis.items() if size} == {
        axis: size for axis, size in sent["by_axis"].items() if size
    }
    assert run.summary["plan"]["seconds_per_epoch"] > 0
    assert estimate(workload, parse_layout("vertex=2,spatial=redistribute"), PRESETS["8xa100"]).total_bytes != (
        expected.total_bytes
    )


def test_auto_is_what_the_planner_picks(graph):
    # an epoch of a few hundred vertices is over before a second rank has said a word
    run = trisect.fit("gcn", graph, layout="auto", epochs=1, layers=2, hidden=8)
    assert run.layout.world == 1
    assert not run.layout.auto


def test_described_sizes():
    data = DescribedData.of_section({"vertices": 1000, "edges": 5000, "steps": 10, "halo": {4: 0.5}}, length=3)
    assert data.entries == (5000 * 2 // 10 * 3 + 1000,) * 10
    assert data.parts(4).remote[0] == 500
    assert data.parts(8).remote[0] > 500
    with pytest.raises(ConfigError, match=r"data\.vertices is 0"):
        DescribedData.of_section({"vertices": 0, "edges": 5})
    with pytest.raises(ConfigError, match="did you mean 'features'"):
        DescribedData.of_section({"vertices": 3, "edges": 5, "feature": 2})
