"""From Python: plans as values, `auto`, and bytes that are those of the ledger."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch

import trisect
from trisect.comm.world import World
from trisect.config import TrainOptions
from trisect.errors import ConfigError, LayoutError, TrisectError
from trisect.layout import parse_layout
from trisect.nn import FromPyG
from trisect.nn.base import Layer
from trisect.nn.models.source import NamedModel
from trisect.plan.estimate import estimate
from trisect.plan.presets import PRESETS
from trisect.train import planning
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


class Gated(Layer):
    """A user's own layer."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.value, self.gate = (torch.nn.Linear(in_channels, out_channels) for _ in range(2))

    def forward(self, x, g):
        return torch.relu(g.aggregate(self.value(x)) * torch.sigmoid(self.gate(x)))


def test_layers_of_ones_own_and_of_pyg(graph):
    own = [Gated(graph.x.shape[1], 16), Gated(16, 16), Gated(16, 10)]
    before = [parameter.clone() for layer in own for parameter in layer.parameters()]
    choice = trisect.plan(own, graph, devices=2, cluster="8xa100")
    assert choice.best[0].memory.activations > 0
    assert all(a.equal(b) for a, b in zip(before, (p for x in own for p in x.parameters()), strict=True))
    pyg = pytest.importorskip("torch_geometric.nn")
    theirs = [FromPyG(pyg.SAGEConv(graph.x.shape[1], 8), "relu"), FromPyG(pyg.SAGEConv(8, 10))]
    assert trisect.plan(theirs, graph, devices=2, cluster="8xa100").best
    with pytest.raises(ConfigError, match="devices is 0"):
        trisect.plan(own, graph, devices=0)


def test_a_timeline():
    from trisect.data.generators.generate import generate

    timeline = trisect.Timeline.from_record(generate("evolving", vertices=60, steps=8))
    choice = trisect.plan("cd-gcn", timeline, "link-prediction", devices=2, cluster="8xa100", layers=1, hidden=4)
    assert {each.layout.world for each in choice.best} <= {1, 2}


def test_ranks_of_torchrun_take_the_layout_of_the_first(graph, monkeypatch):
    left: dict[str, str] = {}
    waited: list[timedelta] = []

    class Store:
        set, get = staticmethod(left.__setitem__), staticmethod(left.__getitem__)

        @staticmethod
        def wait(names, limit):
            assert names == ["layout"]
            waited.append(limit)

    def as_rank(rank: int, task: str = "node-classification"):
        monkeypatch.setattr(planning, "world_from_environment", lambda: World(rank, 2, rank, 2))
        monkeypatch.setattr(planning, "meet", lambda world: Store)

        def read():
            assert rank == 0, "only the first rank reads"
            return graph

        maker = NamedModel("gcn", {"layers": 2, "hidden": 8}, 0)
        return planning.agreed_layout(maker, read, task, TrainOptions(timeout=1), None)

    layout, said = as_rank(0)
    assert layout.world == 2
    assert "all 2 ranks that were started" in said
    assert as_rank(1) == (layout, said)
    assert min(waited) > timedelta(hours=1)  # the first reads the data meanwhile, however long that takes
    with pytest.raises(TrisectError):
        as_rank(0, "edge-classification")
    assert "refused" in left["layout"]
    with pytest.raises(LayoutError, match="Rank 0 chose no layout"):
        as_rank(1, "edge-classification")


def test_relations_that_are_described_are_planned() -> None:
    """A model that reads relations is planned where it is said how many there are, and refused where it is not."""
    sizes = {"vertices": 10_000, "edges": 100_000, "features": 16, "classes": 3}
    cluster = {"cluster": "cpu-100gb"}
    plain = trisect.plan("gcn", sizes, devices=1, hidden=16, **cluster).best[0].memory
    related = trisect.plan("rgcn", {**sizes, "relations": 4}, devices=1, hidden=16, **cluster).best[0].memory
    assert related.adjacency > 2 * plain.adjacency
    with pytest.raises(ConfigError, match="rgcn reads relations of edges, and the data have none"):
        trisect.plan("rgcn", sizes, devices=1, **cluster)
    with pytest.raises(ConfigError, match=r"data\.relations is 0"):
        trisect.plan("rgcn", {**sizes, "relations": 0}, devices=1, **cluster)
