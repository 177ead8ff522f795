"""What a newcomer does wrong in Python gets a sentence with the field, the value and the remedy."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import trisect
from trisect.errors import TrisectError, nearest


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
        ({"multi_label": True}, "task.multi_label is not a setting; a vertex has one class; several labels"),
        ({"name": "node-regression", "multi_label": True}, "task.multi_label is not a setting; .* of node-regression"),
        ({"name": "graph-classification"}, r"tasks that label whole graphs are not supported\.$"),
        ({"name": "GraphClassification"}, r"tasks that label whole graphs are not supported\.$"),
        ({"name": "graphclassification"}, r"tasks that label whole graphs are not supported\.$"),
        ({"name": "graph-level-classification"}, r"tasks that label whole graphs are not supported\.$"),
        ({"name": "graph_pred"}, r"tasks that label whole graphs are not supported\.$"),
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


def test_an_object_of_several_relations(graph: trisect.Graph) -> None:
    pyg = pytest.importorskip("torch_geometric.data")
    data = pyg.HeteroData()
    data["user"].x, data["item"].x = torch.ones(3, 2), torch.ones(2, 2)
    data["user", "buys", "item"].edge_index = torch.tensor([[0, 1], [1, 0]])
    assert trisect.Graph.from_pyg(data).relations == ("user__buys__item",)
    with pytest.raises(TrisectError, match=r"HeteroData with 1 types of edges, and one of a list.*relation="):
        trisect.fit("cd-gcn", [data, data], "link-prediction", epochs=1, progress=False)
    assert trisect.Graph.from_pyg(data.to_homogeneous()).vertices == 5


@pytest.mark.parametrize(
    ("word", "names", "near"),
    [
        ("onecycle", ["none", "cosine", "plateau"], None),
        ("cosin", ["none", "cosine", "plateau"], "cosine"),
        ("CosineAnnealingLR", ["none", "cosine", "plateau"], "cosine"),
        ("ReduceLROnPlateau", ["none", "cosine", "plateau"], "plateau"),
        ("hidden_channels", ["activation", "hidden", "layers"], "hidden"),
        ("residual_connection", ["activation", "residual"], "residual"),
        ("eval_interval", ["eval_every", "epochs"], "eval_every"),
        ("learningRate", ["lr", "lr_schedule"], "lr"),
        ("wd", ["weight_decay"], "weight_decay"),
        ("evolve-gcn", ["evolvegcn-o", "gcn", "gcnii"], "evolvegcn-o"),
        ("graph-sage", ["gcn", "sage"], "sage"),
        ("node-clf", ["edge-classification", "node-classification"], "node-classification"),
        ("edge-regression", ["edge-classification", "node-regression"], "node-regression"),
        ("node_clasification", ["edge-classification", "node-classification"], "node-classification"),
        ("edges-classification", ["edge-classification", "node-classification"], "edge-classification"),
        ("val.acuracy", ["val.accuracy", "val.loss"], "val.accuracy"),
        ("xyz", ["none"], None),
    ],
)
def test_a_suggestion_is_close(word: str, names: list[str], near: str | None) -> None:
    assert nearest(word, names) == near


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


ENDS = ([0, 1], [1, 2])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: trisect.Graph.from_edges(["a", "b"], ["b", "c"]),
            "src holds text; number the vertices from 0, or use",
        ),
        (lambda: trisect.Graph.from_edges(torch.zeros(2, 5), None), r"src has the shape \[2, 5\]; of an edge_index"),
        (lambda: trisect.Graph.from_edges(*ENDS, y=["a", "b", "c"]), "y holds text; number the classes from 0"),
        (lambda: trisect.Graph.from_edges(*ENDS, splits={"training": [1, 0, 0]}), "unknown split 'training'; did you"),
        (lambda: trisect.Graph.from_edges(*ENDS, splits={"validation": [1, 0, 0]}), "did you mean 'val'"),
        (lambda: trisect.Graph.from_table({"a": [1], "b": [2]}, source="a"), "option of from_table 'source'; did you"),
        (lambda: trisect.Timeline.from_snapshots(5), "There are no snapshots; give a list"),  # type: ignore[arg-type]
        (lambda: trisect.Timeline.from_snapshots([5]), "Snapshot 0 has no rows; give an edge_index"),
        (lambda: trisect.load("no/run"), "no/run holds no run: .* give the directory of a run"),
    ],
)
def test_data_of_the_wrong_kind(make: Callable[[], object], message: str) -> None:
    with pytest.raises(TrisectError, match=message):
        make()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": None}, "task is a NoneType; give one of"),
        ({"layout": 2}, "layout is a int; give a text such as 'vertex=2,layer=2'"),
        ({"layout": {"vertx": 2}}, "layout.vertx is not a setting; did you mean layout.vertex?"),
        ({"graph": "graph.csv"}, "graph is a str; .* A file is read by Graph.from_table"),
        ({"learning_rate": 0.1}, "did you mean 'lr'"),
        ({"graph": trisect.Graph.from_edges(*ENDS)}, "needs labels y, and the data have none; give y, or in a table"),
        ({"graph": trisect.Graph.from_edges(*ENDS, y=torch.eye(3))}, r"they are float32; .* y.argmax\(1\)"),
    ],
)
def test_arguments_of_fit(arguments: dict[str, Any], message: str, graph: trisect.Graph) -> None:
    with pytest.raises(TrisectError, match=message):
        trisect.fit("gcn", **{"graph": graph, "epochs": 1, "progress": False, **arguments})


def test_a_refused_rank_tells_torchrun(graph: trisect.Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before it leaves, it waits for torchrun to end it: the first rank of the host prints the same."""
    pauses: list[float] = []
    told = tmp_path / "error.json"
    place = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**place, "TORCHELASTIC_ERROR_FILE": str(told)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.modules["trisect.api.fit"], "time", SimpleNamespace(sleep=pauses.append))
    for arguments, sentence in (({"layout": "vertex=4"}, "= 4 ranks, but 2 were started"), ({"task": "x"}, "task is")):
        with pytest.raises(TrisectError):
            trisect.fit("gcn", graph, epochs=1, progress=False, **arguments)
        assert sentence in json.loads(told.read_text())["message"]["message"]
    assert pauses == [2.0, 2.0]


def test_steps_that_the_data_do_not_have(graph: trisect.Graph) -> None:
    run = trisect.fit("gcn", graph, hidden=4, epochs=1, progress=False, layout={"vertex": 1})
    with pytest.raises(TrisectError, match=r"steps is range\(5, 9\); give a range within range\(1\)"):
        run.embeddings(range(5, 9))
    assert run.embeddings(range(1)).shape[0] == graph.vertices
