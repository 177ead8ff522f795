"""`Job`: written once as plain data, and read back equal; only the caller's own objects are pickled."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from trisect.config import TrainOptions, parse_config
from trisect.layout import History, Layout
from trisect.nn import GCNLayer, LinearLayer, Model
from trisect.nn.models.source import HandedModel, NamedModel
from trisect.tasks import make_task
from trisect.tasks.node_classification import NodeClassification
from trisect.train.from_config import resolve
from trisect.train.job import JOB, Job

LAYOUT = Layout(layer=2, vertex=2, chunks=8, history=History(period=3), partition="hypergraph")
PLAIN: dict[str, Any] = {
    "data": {"generate": "community", "vertices": 100},
    "model": {"name": "gcnii", "layers": 4},
    "task": "node-classification",
    "layout": LAYOUT.plain(),
    "train": {"weight_decay": {"conv": 0.01, "dense": 5e-4}, "optimiser": "sgd", "momentum": 0.5},
}


def handed_over(job: Job, folder: Path) -> Job:
    return Job.read(folder, io.BytesIO(job.write(folder)))


def test_a_configuration_travels_as_plain_data(tmp_path: Path) -> None:
    config = resolve(parse_config(PLAIN))
    job = Job.of_config("train", config, tmp_path / "run", resume=True)
    assert job.write(tmp_path) == b""
    other = handed_over(job, tmp_path)
    assert other.config == config != resolve(parse_config({**PLAIN, "layout": {"layer": 2}}))
    assert (other.verb, other.run, other.resume, other.rows) == ("train", tmp_path / "run", True, None)
    assert other.layout == LAYOUT != Layout()
    assert other.options == config.train != TrainOptions()
    assert other.task == job.task
    assert other.model == job.model == NamedModel("gcnii", config.model.model_dump(exclude={"name"}), 0)


def test_predictions_have_a_layout_of_their_own(tmp_path: Path) -> None:
    job = Job.of_config("predict", resolve(parse_config(PLAIN)), tmp_path, layout=Layout(vertex=3), rows=tmp_path)
    other = handed_over(job, tmp_path)
    assert other.layout == Layout(vertex=3)
    assert other.config is not None
    assert other.config.layout == LAYOUT
    assert other.rows == tmp_path


def test_only_the_callers_objects_are_pickled(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model([GCNLayer(8, 8), LinearLayer(8, 3)])
    task, options = make_task("node-classification"), TrainOptions(epochs=3, lr=1e-3)
    job = Job("fit", model, task, options, LAYOUT)
    other = handed_over(job, tmp_path)
    assert isinstance(other.model, HandedModel)
    assert other.model.model is not model
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.model.model.parameters(), strict=True))
    assert (other.options, other.layout, other.task) == (options, LAYOUT, task)
    plain = json.loads((tmp_path / JOB).read_text())
    assert plain["model"] is None
    assert plain["task"]["name"] == "node-classification"
    assert replace(job, model=NamedModel("gcn", {}, 0)).write(tmp_path) == b""


class Own(NodeClassification):
    """A task that no registry knows."""


def test_a_task_of_the_callers_own(tmp_path: Path) -> None:
    job = Job("fit", NamedModel("gcn", {}, 0), Own(), TrainOptions(), LAYOUT)
    assert type(handed_over(job, tmp_path).task).__name__ == "Own"
    with pytest.raises(KeyError):
        Job.read(tmp_path, io.BytesIO())
