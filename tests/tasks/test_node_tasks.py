from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn import metrics as reference

from trisect.data.records import StaticRecord, TimelineRecord
from trisect.errors import ConfigError, DataError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.noise import Noise
from trisect.tasks import SPLITS, NodeClassification, NodeRegression, TaskContext

NOISE = Noise(0, epoch=1)


def small(y: np.ndarray, **splits: list[bool]) -> Graph:
    masks = {name: np.array(mask) for name, mask in splits.items()}
    return Graph.from_record(StaticRecord(len(y), np.array([0, 1, 2]), np.array([1, 2, 3]), y=y, splits=masks))


def logits(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_loss_is_the_cross_entropy_of_the_training_rows(community: Graph) -> None:
    bound = NodeClassification().bind(community, TaskContext())
    assert bound.channels is not None
    frames = logits(1, community.vertices, bound.channels)
    rows = community.splits["train"]
    expected = torch.nn.functional.cross_entropy(frames[0][rows], community.y[rows])
    assert torch.allclose(bound.loss(None, frames, 0, NOISE), expected, rtol=1e-12)
    assert not torch.allclose(bound.loss(None, -frames, 0, NOISE), expected, rtol=1e-3)


def test_metrics_equal_sklearn(community: Graph) -> None:
    bound = NodeClassification().bind(community, TaskContext())
    assert bound.channels is not None
    frames = logits(1, community.vertices, bound.channels)
    for split in SPLITS:
        mask = community.splits[split]
        found = bound.metrics(bound.measure(None, frames, 0, split))
        labels, predicted = community.y[mask], frames[0][mask].argmax(1)
        assert found["accuracy"] == pytest.approx(reference.accuracy_score(labels, predicted))
        assert found["f1_macro"] == pytest.approx(reference.f1_score(labels, predicted, average="macro"))
        assert found["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(frames[0][mask], labels)))
        assert found["accuracy"] != pytest.approx(reference.accuracy_score(labels, predicted.flip(0)), abs=1e-9)


def test_two_classes_have_an_auc() -> None:
    graph = small(np.array([0, 1, 1, 0]), train=[True] * 4, val=[True] * 4)
    bound = NodeClassification().bind(graph, TaskContext())
    frames = logits(1, 4, 2)
    found = bound.metrics(bound.measure(None, frames, 0, "val"))
    assert bound.monitor == "val.auc"
    assert found["auc"] == pytest.approx(reference.roc_auc_score([0, 1, 1, 0], frames[0].softmax(1)[:, 1]))
    assert bound.metrics(bound.measure(None, frames, 0, "test")) == {}


def test_class_weights() -> None:
    graph = small(np.array([0, 0, 0, 1]), train=[True] * 4)
    frames = logits(1, 4, 2)
    bound = NodeClassification(class_weights=(1.0, 5.0)).bind(graph, TaskContext())
    weight = torch.tensor([1.0, 5.0], dtype=torch.float64)
    assert torch.allclose(
        bound.loss(None, frames, 0, NOISE), torch.nn.functional.cross_entropy(frames[0], graph.y, weight)
    )
    balanced = NodeClassification(class_weights="balanced").bind(graph, TaskContext())
    assert balanced.weights.tolist() == pytest.approx([4 / 6, 2.0])
    with pytest.raises(ConfigError, match="class_weights"):
        NodeClassification(class_weights=(1.0,)).bind(graph, TaskContext())


def test_unlabelled_vertices_do_not_count() -> None:
    graph = small(np.array([0, 1, -1, 1]), train=[True] * 4)
    bound = NodeClassification().bind(graph, TaskContext())
    frames = logits(1, 4, 2)
    keep = torch.tensor([0, 1, 3])
    assert torch.allclose(
        bound.loss(None, frames, 0, NOISE), torch.nn.functional.cross_entropy(frames[0][keep], graph.y[keep])
    )


@pytest.mark.parametrize(
    ("y", "train", "message"),
    [
        (None, [True] * 4, "has? ?.*none"),
        (np.array([0.5, 1, 0, 1], dtype=np.float32), [True] * 4, "labels y that are integers"),
        (np.array([0, 0, 0, 0]), [True] * 4, "at least 2 classes"),
    ],
)
def test_unfit_labels_are_refused(y: np.ndarray | None, train: list[bool], message: str) -> None:
    masks = {"train": np.array(train)}
    graph = Graph.from_record(StaticRecord(4, np.array([0]), np.array([1]), y=y, splits=masks))
    with pytest.raises(DataError, match=message):
        NodeClassification().bind(graph, TaskContext())


def test_losses_of_runs_add_up(timeline: Timeline) -> None:
    bound = NodeClassification().bind(timeline, TaskContext())
    assert bound.channels == 3
    frames = logits(timeline.steps, timeline.vertices, 3)
    whole = bound.loss(None, frames, 0, NOISE)
    parts = bound.loss(None, frames[:2], 0, NOISE) + bound.loss(None, frames[2:], 2, NOISE)
    assert torch.allclose(whole, parts, rtol=1e-12)
    for split in SPLITS:
        merged = bound.measure(None, frames[:5], 0, split).merge(bound.measure(None, frames[5:], 5, split))
        found, expected = bound.metrics(merged), bound.metrics(bound.measure(None, frames, 0, split))
        assert found.pop("f1_per_class") == expected.pop("f1_per_class")
        assert found == pytest.approx(expected)


def test_labels_by_step_are_split_by_time(timeline: Timeline) -> None:
    bound = NodeClassification(split=(5, 1, 2)).bind(timeline, TaskContext())
    assert [bound.steps(split) for split in SPLITS] == [range(5), range(5, 6), range(6, 8)]
    ahead = NodeClassification(split=(4, 1, 2), horizon=1).bind(timeline, TaskContext())
    frames = logits(8, 40, 3)
    expected = torch.nn.functional.cross_entropy(frames[:4].reshape(-1, 3), timeline.y[1:5].reshape(-1))
    assert torch.allclose(ahead.loss(None, frames, 0, NOISE), expected)


def test_one_label_a_vertex_is_judged_at_the_last_step_or_at_all(record: TimelineRecord) -> None:
    timeline = Timeline.from_record(replace(record, y=np.arange(40) % 2))
    last = NodeClassification().bind(timeline, TaskContext())
    assert last.steps("train") == range(7, 8)
    every = NodeClassification(at="every").bind(timeline, TaskContext())
    assert every.steps("val") == range(8)


def test_regression_is_the_mean_squared_error_of_the_next_step(record: TimelineRecord) -> None:
    y = np.random.default_rng(0).standard_normal((8, 40)).astype(np.float32)
    y[2, 3] = np.nan
    bound = NodeRegression(split=(4, 1, 2)).bind(Timeline.from_record(replace(record, y=y)), TaskContext())
    frames = logits(8, 40, 1)
    error = (frames[:4, :, 0] - torch.tensor(y[1:5])).square()
    assert torch.allclose(bound.loss(None, frames, 0, NOISE), error[~error.isnan()].mean())
    found = bound.metrics(bound.measure(None, frames, 0, "test"))
    assert found["mae"] == pytest.approx(float((frames[5:7, :, 0] - torch.tensor(y[6:8])).abs().mean()))
    assert found["rmse"] == pytest.approx(found["mse"] ** 0.5)


def test_regression_on_a_graph() -> None:
    graph = small(np.array([[0.5, 1.0], [1, 2], [2, 3], [4, 5]], dtype=np.float32), train=[True, True, False, False])
    bound = NodeRegression().bind(graph, TaskContext())
    assert bound.channels == 2
    frames = logits(1, 4, 2)
    assert torch.allclose(bound.loss(None, frames, 0, NOISE), (frames[0, :2] - graph.y[:2]).square().mean())


def test_wrong_shape_is_refused(record: TimelineRecord) -> None:
    with pytest.raises(DataError):
        NodeRegression().bind(Timeline.from_record(replace(record, y=np.zeros((3, 40), np.float32))), TaskContext())
