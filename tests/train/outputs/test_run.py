"""`Run` in Python: loaded from a directory it is what `fit` gives; its exports give the same outputs elsewhere."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import trisect
from trisect.cli.main import run_command
from trisect.errors import ConfigError, DataError
from trisect.train.outputs.calibration import Calibration, fit_sigmoid
from trisect.train.outputs.predict import embed

LINKS = {"name": "link-prediction", "eval_negatives": 5, "memory": 2, "decoder": "mlp", "hidden": 8}
DATA = {"generate": "evolving", "vertices": 30, "steps": 9, "communities": 3, "features": 4}
MODEL = {"name": "cd-gcn", "layers": 2, "hidden": 4}
TRAIN = {"epochs": 3, "lr": 0.02, "precision": "float64"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    (path / "links.yaml").write_text(yaml.safe_dump({"data": DATA, "model": MODEL, "task": LINKS, "train": TRAIN}))
    assert run_command(["train", str(path / "links.yaml"), "--out", str(path / "links")]) == 0
    return path


def test_a_loaded_run_is_what_fit_gives(folder: Path) -> None:
    loaded = trisect.load(folder / "links")
    timeline = trisect.Timeline.generate("evolving", **{k: v for k, v in DATA.items() if k != "generate"})
    options = {**TRAIN, "layers": 2, "hidden": 4}
    fitted = trisect.fit("cd-gcn", timeline, LINKS, **options)
    assert loaded.loss == pytest.approx(fitted.loss, rel=1e-10)
    assert loaded.metrics["test"]["map"] == pytest.approx(fitted.metrics["test"]["map"], rel=1e-10)
    torch.testing.assert_close(loaded.embeddings(), fitted.embeddings(), rtol=1e-10, atol=1e-12)
    src, dst = torch.tensor([0, 3, 7]), torch.tensor([5, 1, 2])
    torch.testing.assert_close(loaded.score(src, dst), fitted.score(src, dst), rtol=1e-10, atol=1e-12)
    assert loaded.calibration == fitted.calibration
    assert Calibration.read(folder / "links") == loaded.calibration
    assert "epochs=3" in repr(loaded)
    state = loaded.export(folder / "model.safetensors")
    assert set(state) == set(fitted.export())
    assert (folder / "model.safetensors").exists()


@pytest.mark.parametrize("per", ["all", "source"])
@pytest.mark.parametrize("known", [True, False])
def test_the_best_pairs_are_those_of_the_whole_matrix(
    folder: Path, per: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trisect.train.outputs.links._SCORES", 49)  # blocks of seven by seven
    run = trisect.load(folder / "links")
    src, dst = (ends.flatten() for ends in torch.meshgrid(torch.arange(30), torch.arange(30), indexing="ij"))
    matrix = run.score(src, dst)[:, 0].view(30, 30)
    matrix.fill_diagonal_(-torch.inf)
    timeline = trisect.Timeline.generate("evolving", **{k: v for k, v in DATA.items() if k != "generate"})
    now = timeline.events(8)
    if not known:
        matrix[now[0].long(), now[1].long()] = -torch.inf
        if timeline.undirected:
            matrix[now[1].long(), now[0].long()] = -torch.inf
    top = run.top_k(4, per=per, known=known)  # type: ignore[arg-type]
    if per == "all":
        best = matrix.flatten().sort(descending=True, stable=True)
        expected = best.indices[:4]
        assert torch.equal(top["src"] * 30 + top["dst"], expected)
    else:
        best = matrix.sort(dim=1, descending=True, stable=True)
        assert torch.equal(top["dst"].view(30, 4), best.indices[:, :4])
        assert torch.equal(top["src"], torch.arange(30).repeat_interleave(4))
    torch.testing.assert_close(top["score"], matrix[top["src"], top["dst"]], rtol=1e-10, atol=1e-12)
    assert run.calibration is not None
    torch.testing.assert_close(top["probability"], run.calibration(top["score"]))
    torch.testing.assert_close(run.links(top["src"], top["dst"])["probability"], top["probability"])


def test_what_a_run_refuses(folder: Path) -> None:
    run = trisect.load(folder / "links")
    with pytest.raises(ConfigError, match="--top-k is 0"):
        run.top_k(0)
    with pytest.raises(DataError, match="src has the id 99"):
        run.score([99], [0])
    with pytest.raises(ConfigError, match="part along time"):
        run.export(form="pyg")


def test_the_fitted_sigmoid_is_the_likeliest() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(4000, generator=generator, dtype=torch.float64) * 3 + 1
    chance = torch.sigmoid(0.7 * scores - 2)
    labels = (torch.rand(4000, generator=generator, dtype=torch.float64) < chance).double()
    fitted = fit_sigmoid(scores, labels, torch.ones_like(scores))
    assert fitted.slope == pytest.approx(0.7, abs=0.06)
    assert fitted.intercept == pytest.approx(-2, abs=0.15)
    # negatives that stand for ten each: the same slope, a lower intercept, probabilities of the larger population
    weights = torch.where(labels > 0, 1.0, 10.0).double()
    heavy = fit_sigmoid(scores, labels, weights)
    assert float((weights * heavy(scores)).sum()) == pytest.approx(float(labels.sum()), rel=1e-2)
    assert heavy.intercept < fitted.intercept - 1
    assert fit_sigmoid(-scores, labels, weights).slope == 0
    assert not fit_sigmoid(scores, torch.zeros_like(labels), weights).is_fitted
    apart = fit_sigmoid(labels, labels, weights)
    assert np.isfinite(apart.slope)


STATIC = ["gcn", "sage", "gcnii", "gat", "gin"]


@pytest.mark.parametrize("name", STATIC)
def test_pyg_modules_give_the_same_outputs(name: str) -> None:
    pytest.importorskip("torch_geometric")
    generator = torch.Generator().manual_seed(3)
    edges = torch.randint(0, 40, (2, 160), generator=generator)
    edges = torch.unique(edges[:, edges[0] != edges[1]], dim=1)
    x = torch.randn(40, 6, generator=generator)
    y = torch.randint(0, 3, (40,), generator=generator)
    graph = trisect.Graph.from_edges(edges[0], edges[1], vertices=40, x=x, y=y)
    options = {"heads": 2} if name == "gat" else {}
    if name == "gcn":
        options = {"norm": "layer", "residual": True, "input_dropout": 0.1}
    run = trisect.fit(name, graph, layers=3, hidden=6, epochs=3, precision="float64", **options)
    module = run.export(form="pyg")
    expected = run.predict()["probability"]
    with torch.no_grad():
        found = torch.softmax(module(x.double(), edges), -1)
        other = torch.softmax(module(x.double(), edges.flip(0)), -1)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(other, expected, rtol=1e-6, atol=1e-8)


def test_pyg_has_no_counterpart_of_every_layer() -> None:
    pytest.importorskip("torch_geometric")
    graph = trisect.Graph.generate("community", vertices=40, classes=3, features=4, per_class=5)
    run = trisect.fit("resgcn+", graph, layers=2, hidden=4, epochs=1)
    with pytest.raises(ConfigError, match=r"layer 1 of the model, ResGCNLayer.*state_dict"):
        run.export(form="pyg")


def test_a_run_that_fit_has_written(tmp_path: Path) -> None:
    graph = trisect.Graph.generate("community", vertices=60, classes=3, features=4, per_class=8)
    run = trisect.fit("gcn", graph, out=tmp_path / "run", layers=2, hidden=4, epochs=2, progress=False)
    with pytest.raises(ConfigError, match="given its data by fit"):
        trisect.load(tmp_path / "run")
    again = trisect.load(tmp_path / "run", graph)
    torch.testing.assert_close(again.predict()["probability"], run.predict()["probability"])


def test_a_run_on_another_graph() -> None:
    whole = trisect.Graph.generate("community", vertices=60, classes=3, features=4, per_class=8)
    run = trisect.fit("gcn", whole, layers=2, hidden=4, epochs=2, precision="float64")
    again = run.on(whole)
    torch.testing.assert_close(again.predict()["probability"], run.predict()["probability"], rtol=1e-10, atol=1e-12)
    other = trisect.Graph.from_edges([0, 1], [1, 2], vertices=4, x=torch.ones(4, 4))
    assert run.on(other).predict()["probability"].shape == (4, 3)


@pytest.mark.parametrize(("name", "first"), [("gcn", 7), ("tm-gcn", 3), ("cd-gcn", 0)])
def test_only_what_outputs_read_is_run(name: str, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = trisect.Timeline.generate("evolving", **{k: v for k, v in DATA.items() if k != "generate"})
    options = {"window": 3} if name == "tm-gcn" else {}  # two layers that read two frames back each
    run = trisect.fit(
        name, timeline, "node-classification", layers=2, hidden=4, epochs=1, precision="float64", **options
    )
    whole = run.embeddings()
    program, steps = run.setup.program, []
    begin = program.engine.begin

    def noted(*arguments, **named):  # type: ignore[no-untyped-def]
        steps.extend(step for block in named["plan"].runs for own in block for step in own)
        return begin(*arguments, **named)

    monkeypatch.setattr(program.engine, "begin", noted)
    part = run.embeddings(range(7, 9))
    assert steps == list(range(first, 9))
    torch.testing.assert_close(part, whole[7:], rtol=1e-10, atol=1e-12)


def _named_graph() -> trisect.Graph:
    plain = trisect.Graph.generate("community", vertices=40, classes=3, features=4, per_class=8)
    return replace(plain, class_names=["tea", "coffee", "juice"])


def test_predicted_classes_have_names(tmp_path: Path) -> None:
    graph = _named_graph()
    run = trisect.fit("gcn", graph, layers=2, hidden=4, epochs=2)
    outputs = run.predict()
    assert run.class_names == ["tea", "coffee", "juice"]
    assert outputs["class_name"].tolist() == [run.class_names[k] for k in outputs["class"].tolist()]
    # those of the training, also on data that do not name their classes
    other = trisect.Graph.from_edges([0, 1], [1, 2], vertices=4, x=torch.ones(4, 4))
    assert set(run.on(other).predict()["class_name"]) <= set(run.class_names)
    unnamed = trisect.fit("gcn", replace(graph, class_names=None), layers=2, hidden=4, epochs=1)
    assert "class_name" not in unnamed.predict()


def test_classes_of_edges_have_names() -> None:
    plain = trisect.Timeline.generate("evolving", **{k: v for k, v in DATA.items() if k != "generate"})
    classes = torch.arange(plain.total_events) % 2
    timeline = replace(plain, edge_y=classes, edge_class_names=["paid", "lost"], class_names=None)
    run = trisect.fit("gcn", timeline, "edge-classification", layers=1, hidden=4, epochs=1)
    found = run.links([0, 1, 2], [3, 4, 5])
    assert found["class_name"].tolist() == [["paid", "lost"][k] for k in found["class"].tolist()]


def test_a_run_has_its_data(folder: Path) -> None:
    graph = _named_graph()
    run = trisect.fit("gcn", graph, layers=2, hidden=4, epochs=1)
    assert run.graph is graph
    other = trisect.Graph.from_edges([0, 1], [1, 2], vertices=4, x=torch.ones(4, 4))
    assert run.on(other).graph is other
    loaded = trisect.load(folder / "links").graph
    assert isinstance(loaded, trisect.Timeline)
    assert (loaded.vertices, loaded.steps, loaded.order) == (30, 9, None)


def test_pairs_are_scored_again_without_a_pass(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, passes = trisect.load(folder / "links"), []
    monkeypatch.setattr("trisect.train.outputs.run.embed", lambda *given: passes.append(given[1]) or embed(*given))
    first = run.score([0, 3], [5, 1])
    assert torch.equal(run.score([3, 0], [1, 5]), first.flip(0))
    assert torch.equal(run.links([0, 3], [5, 1])["score"], first[:, 0])
    run.top_k(2)
    assert passes == [range(8, 9)]
    # another step, other parameters, other features and other data are not what was kept
    assert not torch.equal(run.score([0, 3], [5, 1], step=4), first)
    assert torch.equal(run.score([0, 3], [5, 1]), first)
    assert len(passes) == 3
    with torch.no_grad():
        next(run.model.parameters()).mul_(2)
    changed = run.score([0, 3], [5, 1])
    assert not torch.equal(changed, first)
    assert len(passes) == 4
    timeline = run.graph
    assert isinstance(timeline, trisect.Timeline)
    assert timeline.x is not None
    other = run.on(replace(timeline, x=timeline.x + 1))
    assert not torch.equal(other.score([0, 3], [5, 1]), changed)
    assert torch.equal(run.score([0, 3], [5, 1]), changed)
    assert len(passes) == 5
    timeline.x.add_(1)
    run.score([0, 3], [5, 1])
    assert len(passes) == 6


def test_no_pairs_have_no_scores(folder: Path) -> None:
    run = trisect.load(folder / "links")
    assert run.score([], []).shape == (0, 1)
    assert {name: len(value) for name, value in run.links([], []).items()} == dict.fromkeys(
        ("score", "probability", "calibrated"), 0
    )
    with pytest.raises(DataError, match=r"src is 'u1'; give a list of ids, such as \['u1'\]"):
        run.score("u1", "u2")
    with pytest.raises(DataError, match="src has 2 ids and dst 1; give as many of each"):
        run.score([0, 1], [2])


@pytest.mark.parametrize("step", [500, -10, 1.5, None])
def test_a_step_that_is_none_is_refused(folder: Path, step: object) -> None:
    run = trisect.load(folder / "links")
    said = rf"step is {step}; give a whole number within range\(9\), which are all steps, or a negative one"
    for call in (run.score, run.links):
        with pytest.raises(ConfigError, match=said):
            call([0], [1], step=step)
    with pytest.raises(ConfigError, match=said):
        run.top_k(1, step=step)  # type: ignore[arg-type]
    assert torch.equal(run.score([0], [1], step=np.int64(8)), run.score([0], [1]))  # type: ignore[arg-type]


def test_parameters_are_listed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, listed = trisect.load(folder / "links"), []
    parameters = torch.nn.Module.parameters
    run.score([0], [1])
    monkeypatch.setattr(torch.nn.Module, "parameters", lambda *more: listed.append(1) or parameters(*more))
    run.score([0], [1])
    assert not listed


def test_probabilities_without_validation_pairs_are_told_once() -> None:
    timeline = trisect.Timeline.generate("evolving", **{k: v for k, v in DATA.items() if k != "generate"})
    run = trisect.fit("cd-gcn", timeline, {**LINKS, "split": [6, 0, 2]}, **{**TRAIN, "epochs": 1}, progress=False)
    with pytest.warns(UserWarning, match="Nothing is known of validation pairs"):
        found = run.links([0], [1])
    assert found["calibrated"].tolist() == [False]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not run.top_k(1)["calibrated"].any()


def test_pairs_are_scored_in_inference_mode(folder: Path) -> None:
    scores = trisect.load(folder / "links").score([0, 3], [5, 1])
    with torch.inference_mode():
        run = trisect.load(folder / "links")
        assert torch.equal(run.score([0, 3], [5, 1]), scores)
        assert torch.equal(run.score([0, 3], [5, 1]), scores)


@pytest.mark.parametrize("copying", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_run_is_not_pickled(folder: Path, copying: Callable[[object], object]) -> None:
    with pytest.raises(TypeError, match=r"neither pickled nor copied.*trisect\.load\('.*links'\)\.$"):
        copying(trisect.load(folder / "links"))
    run = trisect.fit("gcn", _named_graph(), layers=1, epochs=1)
    with pytest.raises(TypeError, match=r"out=folder.*trisect\.load\(folder\)\.$"):
        copying(run)
