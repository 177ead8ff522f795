"""A loss, an optimizer, a scheduler, metrics and callbacks of the user's own give the same under every layout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent))

import own_models
import own_training as own

import trisect
from trisect.errors import ConfigError, RunError, TrisectError
from trisect.train.run.manifest import read_manifest

PLAIN: dict[str, Any] = {"epochs": 4, "precision": "float64", "progress": False, "rules": False}
FULL: dict[str, Any] = {
    "loss": own.focal,
    "optimizer": own.adamw,
    "scheduler": own.one_cycle,
    "metrics": {"margin": own.margin},
    "monitor": "val.margin",
    "clip": 0.05,
    "ema": 0.7,
}
# in Python and by name alike
CASES: dict[str, dict[str, Any]] = {
    "all": FULL,
    "named": {
        "loss": {"name": "focal", "gamma": 1.5},
        "optimizer": {"name": "Adagrad", "initial_accumulator_value": 0.1},
        "scheduler": {"name": "CosineAnnealingLR"},
    },
    "sgd": {"optimizer": "sgd", "lr": 0.1, "scheduler": "ReduceLROnPlateau", "ema": 0.5, "patience": 3},
}


@pytest.fixture(scope="module")
def graph() -> trisect.Graph:
    weight = np.linspace(0.5, 2.0, 150)
    made = trisect.Graph.generate("community", vertices=150, features=8, classes=3)
    return trisect.Graph(**{**vars(made), "y_weight": torch.tensor(weight, dtype=torch.float32)})


@pytest.fixture(scope="module")
def timeline() -> trisect.Timeline:
    return trisect.Timeline.generate("evolving", vertices=40, steps=6, features=4, communities=2)


def fit(data: Any, layout: str = "", **options: Any) -> trisect.Run:
    if isinstance(data, trisect.Timeline):
        return trisect.fit("cd-gcn", data, layout=layout, **{"hidden": 4, "layers": 2, **PLAIN, **options})
    return trisect.fit("gcn", data, layout=layout, **{"hidden_channels": 6, "num_layers": 4, **PLAIN, **options})


def state(run: trisect.Run) -> dict[str, torch.Tensor]:
    return run.model.state_dict()


def near(one: trisect.Run, two: trisect.Run, tolerance: float = 1e-10) -> bool:
    left, right = state(one), state(two)
    return (
        np.allclose(one.loss, two.loss, rtol=0, atol=tolerance)
        and left.keys() == right.keys()
        and all(torch.allclose(left[name], right[name], rtol=0, atol=tolerance) for name in left)
    )


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("layout", ["vertex=2", "layer=2"])
def test_a_graph_under_every_cut(graph: trisect.Graph, case: str, layout: str) -> None:
    alone, cut = fit(graph, **CASES[case]), fit(graph, layout, **CASES[case])
    assert near(alone, cut)
    assert cut.metrics["val"].keys() == alone.metrics["val"].keys()
    for name, value in alone.metrics["val"].items():
        assert cut.metrics["val"][name] == pytest.approx(value, abs=1e-9)
    assert not near(cut, fit(graph, **{**CASES[case], "lr": 0.013, "optimizer": "RMSprop"}), 1e-6)


@pytest.mark.parametrize("layout", ["time=2", "vertex=2,blocks=2"])
def test_a_timeline_under_every_cut(timeline: trisect.Timeline, layout: str) -> None:
    alone, cut = fit(timeline, **FULL), fit(timeline, layout, **FULL)
    assert near(alone, cut)
    assert cut.metrics["val"]["margin"] == pytest.approx(alone.metrics["val"]["margin"], abs=1e-9)


def test_tied_parameters_are_stepped_clipped_and_averaged_once(graph: trisect.Graph) -> None:
    found = [
        trisect.fit(own_models.tied(False), graph, layout=layout, **PLAIN, **FULL)
        for layout in ("", "vertex=2", "layer=2")
    ]
    assert near(found[0], found[1])
    assert near(found[0], found[2])
    weights = state(found[2])
    assert torch.equal(weights["layers.3.weight"], weights["layers.2.weight"])


@pytest.mark.parametrize("left_out", ["loss", "scheduler", "clip", "ema", "optimizer"])
def test_each_of_them_matters(graph: trisect.Graph, left_out: str) -> None:
    one = fit(graph, **FULL)
    assert not near(one, fit(graph, **{name: value for name, value in FULL.items() if name != left_out}), 1e-6)


def test_weights_of_rows_matter_and_equal_a_loop(graph: trisect.Graph) -> None:
    """The first loss is Σ w·loss / Σ w over the training rows."""
    plain = trisect.Graph(**{**vars(graph), "y_weight": None})
    options: dict[str, Any] = {"epochs": 1, "dropout": 0.0, "loss": own.focal, "lr": 1e-12}
    weighted, even = fit(graph, **options), fit(plain, **options)
    assert weighted.loss[0] != pytest.approx(even.loss[0], rel=1e-4)
    log_p = torch.from_numpy(np.asarray(weighted.predict()["probability"])).reshape(graph.vertices, -1).log()
    train = graph.splits["train"]
    values = own.focal(log_p[train], graph.y[train])  # type: ignore[index]
    weight = graph.y_weight[train].double()  # type: ignore[index]
    assert weighted.loss[0] == pytest.approx(float((values * weight).sum() / weight.sum()), rel=1e-9)
    assert weighted.metrics["train"]["loss"] == pytest.approx(weighted.loss[0], rel=1e-9)


def test_regression_with_a_loss_by_name() -> None:
    generator = torch.Generator().manual_seed(1)
    src, dst = torch.randint(0, 60, (2, 240), generator=generator)
    y = torch.randn(60, 2, generator=generator)
    graph = trisect.Graph.from_edges(src, dst, x=torch.randn(60, 4, generator=generator), y=y, undirected=True)
    runs = {}
    for layout in ("", "vertex=2"):
        runs[layout] = trisect.fit(
            "gcn", graph, "node-regression", layout, hidden=4, loss={"name": "huber", "delta": 0.3}, **PLAIN
        )
    assert near(runs[""], runs["vertex=2"])
    assert runs[""].metrics["val"]["loss"] != pytest.approx(runs[""].metrics["val"]["mse"])
    assert not near(runs[""], trisect.fit("gcn", graph, "node-regression", hidden=4, **PLAIN), 1e-6)


def test_events_with_a_loss_and_a_metric() -> None:
    generator = torch.Generator().manual_seed(2)
    src, dst = torch.randint(0, 50, (2, 400), generator=generator)
    labels = torch.randint(0, 3, (400,), generator=generator)
    timeline = trisect.Timeline.from_arrays(src, dst, torch.arange(0, 401, 40), vertices=50, edge_y=labels)
    options: dict[str, Any] = {"loss": own.focal, "metrics": {"margin": own.margin}, "hidden": 4, "layers": 2}
    runs = [
        trisect.fit("gcn", timeline, "edge-classification", layout, **options, **PLAIN) for layout in ("", "vertex=2")
    ]
    assert near(*runs)
    assert runs[0].metrics["val"]["margin"] == pytest.approx(runs[1].metrics["val"]["margin"], abs=1e-9)


@pytest.mark.parametrize("layout", ["", "vertex=2"])
def test_callbacks_are_told_on_every_rank(graph: trisect.Graph, layout: str, tmp_path: Path) -> None:
    log, told = own.Log(tmp_path), tmp_path / "told"
    told.mkdir()
    log.folder = told
    run = fit(graph, layout, callbacks=[log, own.StopsAt(2)], eval_every=2, out=tmp_path / "run", checkpoint_every=1)
    assert run.summary["epochs"] == 2
    ranks = sorted(told.iterdir())
    assert len(ranks) == (2 if layout else 1)
    lines = [line.split()[:3] for line in ranks[0].read_text().splitlines()]
    names = [(name, int(epoch)) for name, epoch, _ in lines]
    assert names == [("epoch", 1), ("checkpoint", 1), ("evaluate", 2), ("epoch", 2), ("checkpoint", 2)]
    assert [int(count) for _, _, count in lines] == [1, 2, 3, 4, 5]
    assert len({path.read_text() for path in ranks}) == 1


RESUMED: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "AdamW", "scheduler": {"name": "OneCycleLR", "max_lr": 0.05, "total_steps": 9}},
    "momentum": {"optimizer": {"name": "SGD", "momentum": 0.8}, "lr_schedule": "plateau"},
    "adagrad": {"optimizer": torch.optim.Adagrad, "clip": 0.1},
    "average": {"ema": 0.6, "loss": own.focal, "metrics": {"margin": own.margin}, "monitor": "val.margin"},
}


def newest(run: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    folder = sorted((run / "checkpoints").glob("epoch-*"))[-1]
    tensors: dict[str, torch.Tensor] = {}
    for shard in folder.glob("*.safetensors"):
        tensors.update(load_file(shard))
    return tensors, read_manifest(folder)["meta"]


@pytest.mark.parametrize("case", RESUMED)
@pytest.mark.parametrize("layout", ["", "vertex=2"])
def test_a_run_that_broke_ends_with_the_same_bytes(
    graph: trisect.Graph, case: str, layout: str, tmp_path: Path
) -> None:
    """It breaks by a callback after epoch 3, behind the checkpoint of epoch 2."""
    flag, logs = tmp_path / "flag", tmp_path / "logs"
    logs.mkdir()
    callbacks = [own.Log(logs), own.Raises(flag, 3)]
    options: dict[str, Any] = {**RESUMED[case], "epochs": 5, "checkpoint_every": 2, "callbacks": callbacks}
    straight = fit(graph, layout, out=tmp_path / "straight", **options)
    flag.touch()
    callbacks[0] = own.Log(logs)
    with pytest.raises(RunError, match=r"callback Raises\.on_evaluate failed after epoch 3: ValueError: told to"):
        fit(graph, layout, out=tmp_path / "broken", **options)
    before = newest(tmp_path / "broken")
    flag.unlink()
    callbacks[0] = own.Log(logs)
    resumed = fit(graph, layout, out=tmp_path / "broken", resume=True, **options)
    wanted, meta = newest(tmp_path / "straight")
    found, found_meta = newest(tmp_path / "broken")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert found_meta == meta
    assert resumed.loss == straight.loss
    assert resumed.metrics == straight.metrics
    assert not all(torch.equal(before[0][name], wanted[name]) for name in wanted)
    assert before[1]["optimizer"] != meta["optimizer"] or "scheduler" not in options
    again = trisect.load(tmp_path / "broken", graph)
    assert np.array_equal(again.predict()["probability"], resumed.predict()["probability"])


BAD: list[tuple[dict[str, Any], str]] = [
    ({"loss": own.mean_loss}, r"train\.loss mean_loss returned shape \[\] for 2 rows; return one value a row"),
    ({"loss": own.beside_others}, r"gives a row another value beside other rows"),
    ({"loss": "mse"}, r"train\.loss is mse, and the targets are classes; use cross_entropy, focal"),
    ({"loss": {"name": "focal", "gama": 2.0}}, r"train\.loss\.gama is not a setting; did you mean train\.loss\.gamma"),
    ({"optimizer": own.over_foreign}, r"over a parameter of shape \[3\] that is not trained here"),
    ({"metrics": {"accuracy": own.margin}}, r"train\.metrics has 'accuracy', which the task measures itself"),
    ({"metrics": {"margin": own.margin}, "monitor": "val.margn"}, r"did you mean 'val\.margin'"),
    ({"callbacks": [object()]}, r"none of the methods on_epoch_end, on_evaluate, on_checkpoint"),
    ({"optimzer": "adam"}, r"unknown option .* 'optimzer'; did you mean 'optimizer'"),
    ({"hidden": 3}, r"has both hidden(_channels)? and its other name"),
]


@pytest.mark.parametrize(("options", "words"), BAD)
@pytest.mark.parametrize("layout", ["", "vertex=2"])
def test_bad_input_is_one_sentence_before_ranks_start(
    graph: trisect.Graph, options: dict[str, Any], words: str, layout: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        fit(graph, layout, **options)
    assert "\n" not in str(caught.value)


FAILING: list[tuple[dict[str, Any], str]] = [
    ({"metrics": {"odd": own.fails}}, r"metric odd failed: ValueError: no such thing"),
    ({"callbacks": [own.Raises(Path(__file__), 2)]}, r"callback Raises\.on_evaluate failed after epoch 2: ValueError"),
    ({"optimizer": own.foreign_on_a_rank}, r"over a parameter of shape \[3\] that is not trained here"),
]


@pytest.mark.parametrize(("options", "words"), FAILING)
@pytest.mark.parametrize("layout", ["vertex=2", "layer=2"])
def test_what_fails_on_a_rank_ends_all(graph: trisect.Graph, options: dict[str, Any], words: str, layout: str) -> None:
    with pytest.raises(TrisectError, match=words):
        fit(graph, layout, timeout=60.0, **options)


def test_functions_of_the_main_module_are_refused_without_cloudpickle(
    graph: trisect.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return own.focal(out, y)

    loss.__module__, loss.__qualname__ = "__main__", "loss"
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ConfigError, match="loss is defined in the main module"):
        fit(graph, "vertex=2", loss=loss)
