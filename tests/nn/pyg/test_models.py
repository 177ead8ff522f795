"""Models of PyG as they stand: gradients, statistics, dropout, what is refused, and the way back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pyg = pytest.importorskip("torch_geometric.nn")
sys.path.insert(0, str(Path(__file__).parent))

import models  # noqa: E402
import zoo  # noqa: E402

import trisect  # noqa: E402
from trisect.errors import ConfigError, DataError, LayoutError, RunError  # noqa: E402

CUTS = ("vertex=2", "vertex=3")


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    return {layout: trisect.launch(models.all_of, layout, layout) for layout in CUTS}


def furthest(one: Any, other: Any) -> float:
    assert one.keys() == other.keys()
    return max(float((value - other[name]).abs().max()) for name, value in one.items())


@pytest.mark.parametrize("name", list(models.MODELS))
def test_gradients_are_those_of_plain_pyg(name: str, found: Any) -> None:
    want = models.wanted(name)
    assert max(float(value.abs().max()) for value in want.values()) > 1e-3
    assert furthest(want, models.trained("", name)) < 1e-10
    for layout in CUTS:
        assert furthest(want, found[layout][f"trained {name}"]) < 1e-10, layout


@pytest.mark.parametrize("name", list(models.CHANCY))
def test_dropout_is_by_place(name: str, found: Any) -> None:
    """Steps with dropout are those of one rank, and evaluation draws nothing."""
    want = models.with_chance("", name)
    for layout in CUTS:
        assert furthest(want, found[layout][f"chance {name}"]) < 1e-10, layout


def test_recompute(found: Any) -> None:
    want = models.wanted("GCN")
    assert all(furthest(want, found[layout]["recomputed"]) < 1e-10 for layout in CUTS)


def test_dropout_drops() -> None:
    """The comparison sees what is drawn: without dropout the losses are others."""
    torch.manual_seed(0)
    still = trisect.parallelize(models.made(models.CHANCY, "GCN"), models.given(""), precision="float64")
    still.model.eval()
    assert abs(still.step(zoo.loss) - float(models.with_chance("", "GCN")["losses"][0])) > 1e-3


@pytest.mark.parametrize("layout", ["", "vertex=2"])
def test_the_users_module_is_trained_and_whole(layout: str) -> None:
    """Afterwards it works with plain PyG: its parameters and running statistics are the trained ones."""
    found = trisect.launch(models.exported, layout, layout) if layout else models.exported("")
    assert found["same names"]
    assert found["same values"]
    assert not any(name.startswith("trisect") for name in found["classes"])
    assert float((found["plain"] - found["own"]).abs().max()) < 1e-10


def test_a_model_of_ours_by_verbs_reads_no_edges() -> None:
    """PyG's GCN is done by `aggregate`, with the matrix that it normalises by."""
    part = trisect.parallelize(models.made(models.MODELS, "GCN"), models.given(""))
    assert part.model.layers[0].native  # type: ignore[union-attr,index]
    assert (part.model.normalisation, part.model.self_loops) == ("symmetric", True)
    other = trisect.parallelize(models.made(models.CHANCY, "many"), models.given(""))
    assert not other.model.layers[0].native  # type: ignore[union-attr,index]


class Takes(nn.Module):
    def __init__(self, conv: nn.Module | None = None) -> None:
        super().__init__()
        self.conv = pyg.SAGEConv(5, 3) if conv is None else conv


class Attributes(Takes):
    def forward(self, x, edge_index, edge_attr):  # type: ignore[no-untyped-def]
        return self.conv(x, edge_index)


class Weights(Takes):
    def forward(self, x, edge_index, edge_weight):  # type: ignore[no-untyped-def]
        return self.conv(x, edge_index)


class Unknown(Takes):
    def forward(self, x, edge_index, adjacency):  # type: ignore[no-untyped-def]
        return self.conv(x, edge_index)


class Edgeless(Takes):
    def forward(self, x):  # type: ignore[no-untyped-def]
        return x


class Sampled(Takes):
    def forward(self, x, edge_index):  # type: ignore[no-untyped-def]
        keep = torch.rand(edge_index.shape[1]) < 0.5
        return self.conv(x, edge_index[:, keep])


class Largest(Takes):
    def forward(self, x, edge_index):  # type: ignore[no-untyped-def]
        return self.conv(x, edge_index) - x.max(dim=0).values[:3]


class Wrong(Takes):
    def forward(self, x, edge_index):  # type: ignore[no-untyped-def]
        return self.conv(x[:, :4], edge_index)


class Few(Takes):
    def forward(self, x, edge_index):  # type: ignore[no-untyped-def]
        return pyg.global_mean_pool(self.conv(x, edge_index), None)


def parallel(net: nn.Module, layout: str = "", **changes: Any) -> Any:
    graph = models.given("")
    for name, value in changes.items():
        graph[name] = value
    return trisect.parallelize(net, graph, layout)


TWICE = torch.tensor([[0, 0, 1], [1, 1, 2]])


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: parallel(Attributes()), ConfigError, "Attributes.forward needs edge_attr, and the data have none"),
        (lambda: parallel(Weights()), ConfigError, "Weights.forward needs edge_weight, and the data have none"),
        (lambda: parallel(Unknown()), ConfigError, "Unknown.forward needs 'adjacency', which is not known"),
        (lambda: parallel(Edgeless()), ConfigError, "Edgeless.forward takes no edge_index"),
        (lambda: parallel(Sampled()), ConfigError, "Sampled cannot be cut by vertex: rand draws random numbers"),
        (lambda: parallel(Largest()), ConfigError, "Largest cannot be cut by vertex: it gives a row another result"),
        (lambda: parallel(Wrong()), ConfigError, "Wrong failed on 8 rows of 5 channels"),
        (lambda: parallel(Few()), ConfigError, "return a row for each row"),
        (lambda: parallel(pyg.GCN(**models.SIZES), "layer=2"), LayoutError, "GCN is one module"),
        (lambda: parallel(pyg.GCN(**models.SIZES), "vertex=2,chunks=2"), LayoutError, "no layers for chunks"),
        (lambda: parallel(pyg.GCN(**models.SIZES), "vertex=2"), LayoutError, "trisect.launch"),
        (lambda: parallel(pyg.GCN(**models.SIZES), edge_index=TWICE), DataError, r"call data\.coalesce\(\)"),
        (
            lambda: trisect.parallelize(
                pyg.GCN(**models.SIZES),
                trisect.Timeline.generate("evolving", vertices=30, steps=4, features=5, communities=2),
            ),
            DataError,
            "the data are a timeline",
        ),
    ],
)
def test_refusals(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_ranks_end_with_the_sentence() -> None:
    with pytest.raises((ConfigError, RunError), match="Sampled cannot be cut by vertex"):
        trisect.launch(refused_on_ranks, "vertex=2", "vertex=2")


def refused_on_ranks(layout: str) -> None:
    parallel(Sampled(), layout)
