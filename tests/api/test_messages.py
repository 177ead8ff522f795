"""What a newcomer does wrong in Python gets a sentence with the field, the value and the remedy."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import trisect
from trisect.errors import TrisectError


@pytest.fixture(scope="module")
def graph() -> trisect.Graph:
    return trisect.Graph.generate("community", vertices=60, features=4, classes=2, per_class=5)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"hidden": "x"}, "task.hidden is 'x', but must be a whole number."),
        ({"at": "lst"}, "task.at is 'lst', but must be one of every, last; did you mean 'last'?"),
        ({"split": [1, 2]}, r"task.split is \[1, 2\]; give three fractions"),
        ({"class_weights": "balance"}, "task.class_weights is 'balance', but must be a list, or balanced."),
        ({"decoder": "mpl"}, "did you mean 'mlp'?"),
    ],
)
def test_options_of_a_task(task: dict[str, Any], message: str, graph: trisect.Graph) -> None:
    with pytest.raises(TrisectError, match=message):
        trisect.fit("gcn", graph, {"name": "node-classification", **task}, epochs=1, progress=False)


def test_a_split_that_masks_make_useless_is_said(graph: trisect.Graph) -> None:
    with pytest.warns(UserWarning, match=r"task.split \[0.5, 0.25, 0.25\] is not used"):
        trisect.fit("gcn", graph, {"name": "node-classification", "split": [0.5, 0.25, 0.25]}, epochs=1, progress=False)


def test_a_layer_of_another_library(graph: trisect.Graph) -> None:
    nn = pytest.importorskip("torch_geometric.nn")
    with pytest.raises(TrisectError, match=r"layer 0 of the model is a SAGEConv.*FromPyG"):
        trisect.fit([nn.SAGEConv((4, 4), 2)], graph, "node-classification", epochs=1, progress=False)
    with pytest.raises(TrisectError, match=r"layer 0 of the model is a Linear, which is no layer"):
        trisect.fit([torch.nn.Linear(4, 2)], graph, "node-classification", epochs=1, progress=False)


def test_an_edge_beyond_the_rows_of_x() -> None:
    pyg = pytest.importorskip("torch_geometric.data")
    data = pyg.Data(x=torch.ones(4, 2), edge_index=torch.tensor([[0, 9], [1, 2]]))
    with pytest.raises(TrisectError, match=r"edge_index\[0, 1\] is 9, and x has 4 rows"):
        trisect.Graph.from_pyg(data)


def test_a_named_set_that_is_misspelt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRISECT_DATA", raising=False)
    from trisect.data import load

    with pytest.raises(TrisectError, match=r"unknown data set 'coraa'; did you mean 'cora'\?"):
        load({"name": "coraa"})
    with pytest.raises(TrisectError, match="no data directory is known"):
        load({"name": "cora"})
