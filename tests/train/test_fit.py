from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trisect
from trisect.data.records import TimelineRecord
from trisect.errors import ConfigError, DataError, LayoutError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.nn import GCNLayer, LinearLayer, Model, build

STATIC = ("gcn", "sage", "gcnii", "resgcn+", "gat", "gin")
DYNAMIC = ("cd-gcn", "wd-gcn", "evolvegcn-o", "evolvegcn-h", "tm-gcn")
TASKS = ("node-classification", "link-prediction", "edge-classification", "node-regression")


@pytest.mark.parametrize("name", STATIC)
def test_every_static_model_learns(name: str, community: Graph) -> None:
    run = trisect.fit(name, community, epochs=25, layers=2, hidden=16, dropout=0.1, lr=0.02)
    assert run.loss[-1] < 0.95 * run.loss[0]
    assert run.metrics["train"]["accuracy"] > 0.2
    assert run.predict()["class"].shape == (community.vertices,)
    assert run.embeddings().shape == (community.vertices, 16)


@pytest.mark.parametrize("name", STATIC[:2])
def test_static_models_do_regression(name: str, community: Graph) -> None:
    assert community.x is not None
    run = trisect.fit(name, replace(community, y=community.x[:, :2].clone()), "node-regression", epochs=20, hidden=8)
    assert run.loss[-1] < run.loss[0]
    assert run.predict()["value"].shape == (community.vertices, 2)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", [*DYNAMIC, "gcn"])
def test_every_model_learns_every_task_on_a_timeline(name: str, task: str, record: TimelineRecord) -> None:
    if task == "node-regression":
        record = replace(record, y=np.cumsum(np.ones((8, 40), np.float32), 1) / 40)
    timeline = Timeline.from_record(record)
    run = trisect.fit(name, timeline, task, epochs=25, hidden=8, lr=0.03, eval_every=5)
    assert np.mean(run.loss[-5:]) < np.mean(run.loss[:5])
    assert {"train", "val", "test"} == set(run.metrics)
    assert run.embeddings().shape[:2] == (8, 40)
    assert all(value.shape[:2] == (8, 40) for value in run.predict().values())


def test_five_lines() -> None:
    graph = trisect.Graph.generate("community", vertices=300)
    run = trisect.fit("gcnii", graph, "node-classification", epochs=5, layers=4, hidden=16)
    untrained = trisect.fit("gcnii", graph, "node-classification", epochs=1, lr=1e-9, layers=4, hidden=16)
    assert run.metrics["train"]["loss"] < untrained.metrics["train"]["loss"]
    assert "best_epoch" in repr(run)


def test_models_and_lists_of_layers(community: Graph) -> None:
    assert community.x is not None
    features, classes = community.x.shape[1], int(community.y.max()) + 1  # type: ignore[union-attr]
    by_name = trisect.fit("gcn", community, epochs=3, hidden=8, seed=4)
    model = build("gcn", features, classes, hidden=8, seed=4)
    assert trisect.fit(model, community, epochs=3, seed=4).loss == by_name.loss
    layers = [GCNLayer(features, 8, activation="relu"), LinearLayer(8, classes)]
    run = trisect.fit(layers, community, epochs=5)
    assert isinstance(run.model, Model)
    assert run.loss[-1] < run.loss[0]


def test_embeddings_without_outputs_get_a_decoder(community: Graph) -> None:
    assert community.x is not None
    run = trisect.fit([GCNLayer(community.x.shape[1], 5)], community, epochs=3)
    assert run.decoder is not None
    assert run.embeddings().shape == (community.vertices, 5)
    assert run.predict()["probability"].shape == (community.vertices, int(community.y.max()) + 1)  # type: ignore[union-attr]


def test_pyg_data_is_taken_as_it_is() -> None:
    data = pytest.importorskip("torch_geometric.data")
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 30, (2, 90), generator=generator)
    mask = torch.arange(30) % 3
    graph = data.Data(
        x=torch.randn(30, 4, generator=generator),
        edge_index=edges,
        y=torch.arange(30) % 2,
        train_mask=mask == 0,
        val_mask=mask == 1,
        test_mask=mask == 2,
    )
    assert len(trisect.fit("gcn", graph, epochs=2, hidden=4).loss) == 2
    events = data.TemporalData(src=edges[0], dst=edges[1], t=torch.arange(90), msg=torch.ones(90, 1))
    assert events.num_events == 90
    snapshots = [data.Data(x=graph.x, edge_index=edges[:, k : k + 30], y=graph.y) for k in (0, 20, 40, 60)]
    assert len(trisect.fit("cd-gcn", snapshots, "link-prediction", epochs=2, hidden=4).loss) == 2


def test_scores_of_pairs(timeline: Timeline) -> None:
    run = trisect.fit("cd-gcn", timeline, {"name": "link-prediction", "memory": 0}, epochs=2, hidden=8)
    scores = run.score([0, 3], [1, 2], step=4)
    assert scores.shape == (2, 1)
    assert run.decoder is not None
    expected = run.decoder(run.embeddings()[4], torch.tensor([0, 3]), torch.tensor([1, 2]))
    assert torch.allclose(scores, expected)
    with pytest.raises(ConfigError, match="task on pairs"):
        trisect.fit("cd-gcn", timeline, "node-classification", epochs=1).score([0], [1])


def test_parameters_can_be_saved(community: Graph, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    run = trisect.fit("gcn", community, epochs=1, hidden=4)
    run.save(tmp_path / "model.safetensors")
    loaded = load_file(tmp_path / "model.safetensors")
    assert torch.equal(loaded["model.layers.0.weight"], run.setup.modules.state_dict()["model.layers.0.weight"])


def test_steps_of_a_timeline_can_be_chosen(timeline: Timeline) -> None:
    run = trisect.fit("cd-gcn", timeline, "node-classification", epochs=1)
    assert torch.equal(run.predict(range(3, 6))["class"], run.predict()["class"][3:6])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"layout": "layer=9"}, LayoutError, "layout.layer is 9"),
        ({"model": "cd-gcn"}, DataError, "needs a timeline"),
        ({"model": "gcm"}, ConfigError, "gcn"),
        ({"hiden": 4}, ConfigError, "hidden"),
        ({"epoch": 2}, ConfigError, "did you mean 'epochs'"),
        ({"model": [GCNLayer(3, 3)], "epoch": 2}, ConfigError, "did you mean 'epochs'"),
        ({"epochs": 0}, ConfigError, "train.epochs is 0, but must be at least 1"),
        ({"monitor": "val.acuracy"}, ConfigError, "did you mean 'val.accuracy'"),
        ({"monitor": "accuracy"}, ConfigError, "train.monitor is 'accuracy', but must look like val.accuracy"),
        ({"task": "node-clasification"}, ConfigError, "node-classification"),
        ({"graph": 3}, DataError, "give a Graph"),
        ({"model": torch.nn.Linear(2, 2)}, ConfigError, "Linear"),
        ({"model": [GCNLayer(3, 3)]}, ConfigError, "reads 3 features"),
    ],
)
def test_mistakes_are_one_sentence(
    change: dict[str, Any], error: type[Exception], message: str, community: Graph
) -> None:
    arguments: dict[str, Any] = {"model": "gcn", "graph": community, "epochs": 1, **change}
    with pytest.raises(error, match=message) as caught:
        trisect.fit(**arguments)
    assert "\n" not in str(caught.value)


def test_generators_know_what_they_make() -> None:
    assert trisect.Timeline.generate("evolving", vertices=50, steps=4, smoothing="edge-life").steps == 4
    with pytest.raises(DataError, match=r"Timeline\.generate"):
        trisect.Graph.generate("evolving", vertices=50)
    with pytest.raises(DataError, match=r"Graph\.generate"):
        trisect.Timeline.generate("community", vertices=50)
