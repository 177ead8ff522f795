"""`fit` under a layout: the ranks are processes of their own, the result is that of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import trisect
from trisect.errors import ConfigError, LayoutError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.nn import FromPyG, GCNLayer, LinearLayer, Model, build
from trisect.train.recorders import NoRecorder

OPTIONS: dict[str, Any] = {"epochs": 4, "lr": 0.02, "eval_every": 2}
MODEL: dict[str, Any] = {"layers": 3, "hidden": 8, "dropout": 0.3}


def same(one: Mapping[str, torch.Tensor], two: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.allclose(one[k], two[k], rtol=1e-4, atol=1e-5) for k in one)


@pytest.fixture(scope="module")
def alone(community: Graph) -> trisect.Run:
    return trisect.fit("gcnii", community, **OPTIONS, **MODEL)


@pytest.mark.parametrize(
    "layout",
    [
        "vertex=2,layer=2",
        pytest.param("layer=2", marks=pytest.mark.slow),
        pytest.param(trisect.Layout(vertex=2), marks=pytest.mark.slow),
    ],
)
def test_the_result_is_that_of_one_process(community: Graph, alone: trisect.Run, layout: Any) -> None:
    seen: list[int] = []

    class Told(NoRecorder):
        def epoch(self, record: Mapping[str, Any]) -> None:
            seen.append(record["epoch"])

    run = trisect.fit("gcnii", community, layout=layout, recorder=Told(), **OPTIONS, **MODEL)
    assert run.loss == pytest.approx(alone.loss, rel=1e-5)
    assert same(run.model.state_dict(), alone.model.state_dict())
    assert run.summary["world"] == len(run.summary["memory"]["peak_rss_bytes"]) > 1
    assert run.summary["communication"]["bytes_per_epoch"] > 0
    assert seen == [1, 2, 3, 4]
    assert torch.equal(run.predict()["class"], alone.predict()["class"])
    assert torch.allclose(run.embeddings(), alone.embeddings(), atol=1e-4)


@pytest.mark.slow
def test_another_seed_has_another_result(community: Graph, alone: trisect.Run) -> None:
    run = trisect.fit("gcnii", community, layout="vertex=2", seed=5, **OPTIONS, **MODEL)
    assert run.loss != pytest.approx(alone.loss, rel=1e-5)
    assert not same(run.model.state_dict(), alone.model.state_dict())


def test_the_callers_model_is_trained(community: Graph, alone: trisect.Run) -> None:
    assert community.x is not None
    assert community.y is not None
    model = build("gcnii", community.x.shape[1], int(community.y.max()) + 1, seed=0, **MODEL)
    run = trisect.fit(model, community, layout="layer=2", **OPTIONS)
    assert run.model is model
    assert same(model.state_dict(), alone.model.state_dict())


def test_layers_of_pyg(community: Graph) -> None:
    conv = pytest.importorskip("torch_geometric.nn").SAGEConv
    assert community.x is not None
    assert community.y is not None

    def made() -> Model:
        torch.manual_seed(3)
        width = community.x.shape[1]  # type: ignore[union-attr]
        layers = [FromPyG(conv(width, 8), "relu"), FromPyG(conv(8, int(community.y.max()) + 1))]  # type: ignore[union-attr]
        return Model(layers, normalisation="none", self_loops=False)

    one = trisect.fit(made(), community, **OPTIONS)
    two = trisect.fit(made(), community, layout="vertex=2", **OPTIONS)
    assert two.loss == pytest.approx(one.loss, rel=1e-5)
    assert same(two.model.state_dict(), one.model.state_dict())


@pytest.mark.slow
def test_a_decoder_comes_back(community: Graph) -> None:
    assert community.x is not None
    layers = [GCNLayer(community.x.shape[1], 5), LinearLayer(5, 5)]
    run = trisect.fit(layers, community, layout="layer=2", **OPTIONS)
    assert run.decoder is not None
    assert run.predict()["class"].shape == (community.vertices,)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"layout": "layer=9"}, LayoutError, "layout.layer is 9"),
        ({"layout": "vertex=2,chunks=10000"}, LayoutError, "more than the graph's"),
        ({"model": [GCNLayer(3, 3)]}, ConfigError, "reads 3 features"),
        ({"lr": 1e30}, trisect.TrisectError, "loss of epoch"),
    ],
)
def test_mistakes_are_one_sentence(
    change: dict[str, Any], error: type[Exception], message: str, community: Graph
) -> None:
    arguments: dict[str, Any] = {"model": "gcn", "graph": community, "epochs": 3, "layout": "vertex=2", **change}
    with pytest.raises(error, match=message) as caught:
        trisect.fit(**arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("layout", [pytest.param("time=2", marks=pytest.mark.slow), "vertex=2"])
def test_timelines(timeline: Timeline, layout: str) -> None:
    options: dict[str, Any] = {"task": "link-prediction", "epochs": 2, "hidden": 4}
    one = trisect.fit("cd-gcn", timeline, **options)
    two = trisect.fit("cd-gcn", timeline, layout=layout, **options)
    assert two.loss == pytest.approx(one.loss, rel=1e-5)
    assert same(two.model.state_dict(), one.model.state_dict())
    assert torch.allclose(two.score([0, 3], [1, 2]), one.score([0, 3], [1, 2]), atol=1e-4)


SCRIPT = """
import json, sys
import torch
import trisect
from trisect.nn import GCNLayer, LinearLayer, Model

print("main module runs")

class Doubled(LinearLayer):
    def forward(self, x, g):
        return 2 * super().forward(x, g)

graph = trisect.Graph.generate("community", vertices=200, classes=3, features=8, per_class=10)
torch.manual_seed(0)
layers = [GCNLayer(8, 8, activation="relu"), Doubled(8, 3)] if sys.argv[1] == "own" else "gcn"
options = {} if sys.argv[1] == "own" else {"layers": 3, "hidden": 8}
run = trisect.fit(layers, graph, layout="vertex=2", epochs=3, **options)
print(json.dumps(run.loss))
"""


def script(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)


def test_a_script_without_a_guard(tmp_path: Path) -> None:
    done = script(tmp_path, sys.executable, "script.py", "named")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines.count("main module runs") == 1
    assert len(json.loads(lines[-1])) == 3


@pytest.mark.slow
def test_a_layer_of_the_main_module(tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle")
    done = script(tmp_path, sys.executable, "script.py", "own")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("main module runs") == 1


def test_a_layer_of_the_main_module_is_refused_where_it_cannot_travel(
    community: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    assert community.x is not None
    local = type("Local", (GCNLayer,), {"__module__": "__main__"})
    with pytest.raises(ConfigError, match="defined in the main module"):
        trisect.fit([local(community.x.shape[1], 3)], community, layout="vertex=2", epochs=1)


@pytest.mark.slow
def test_under_torchrun_the_world_is_used(tmp_path: Path) -> None:
    alone = script(tmp_path, sys.executable, "script.py", "named")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "script.py"]
    done = script(tmp_path, *command, "named")
    assert done.returncode == 0, done.stderr
    losses = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert losses == [json.loads(alone.stdout.splitlines()[-1])] * 2
