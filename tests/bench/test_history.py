"""The benchmark of history: the same numbers as the pipeline, continued from its cache, verdicts by the rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trisect.errors import ConfigError
from trisect.layout.history import History
from trisect_bench import history

CASE: dict[str, Any] = {
    "graph": "citation",
    "data": {"generate": "citation", "vertices": 150, "classes": 4, "features": 6},
    "hidden": 6,
    "epochs": 7,
    "lr": 0.01,
    "dropout": 0.3,
    "layers": 4,
    "seed": 1,
    "chunks": 5,
    "precision": "float64",
}


def losses(model: str, recipe: History, engine: str) -> list[float]:
    case = {**CASE, "model": model, "history": recipe.parts(), "engine": engine}
    return list(history.train_case(case)["loss"])


@pytest.mark.parametrize("model", ["gcnii", "resgcn+"])
@pytest.mark.parametrize(
    "recipe",
    [
        History(),
        History(start="zero", period=3, scale=2.0),
        History(period=2, refresh=3, blend=0.0),
        History(blend=0.6),
    ],
)
def test_all_chunks_of_a_layer_at_once_is_the_pipeline(model: str, recipe: History) -> None:
    layers = losses(model, recipe, "layers")
    assert layers == pytest.approx(losses(model, recipe, "chunks"), rel=1e-10)
    # and the comparison sees another recipe
    assert layers != pytest.approx(losses(model, History(shuffle=False), "chunks"), rel=1e-4)


def test_a_measurement_is_continued_from_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(history.GRAPHS, "citation", {"data": CASE["data"], "hidden": 4, "epochs": 3})
    arguments: dict[str, Any] = {"graphs": ["citation"], "models": ["gcnii"], "layers": 2, "seeds": 1, "chunks": [3]}
    first = history.run(**arguments, cache=str(tmp_path))
    assert [(run["recipe"], run["chunks"]) for run in first["runs"]] == [("exact", 1), ("default", 3), ("gnnpipe", 3)]
    assert len(first["table"]) == 2

    def fail(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(history, "train_case", fail)
    again = history.run(**arguments, cache=str(tmp_path))
    assert again["runs"] == first["runs"]
    with pytest.raises(AssertionError):
        history.run(**{**arguments, "chunks": [2]}, cache=str(tmp_path))
    assert history.run(**{**arguments, "chunks": [2]}, cache=str(tmp_path), minutes=0.0)["left"] == 2
    history.show(first)


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'cora'"):
        history.run(graphs=["coro"], cache=str(tmp_path))
    with pytest.raises(ConfigError, match="gcnii"):
        history.run(models=["gcni"], cache=str(tmp_path))


def test_what_counts_as_diverged() -> None:
    sound = {"epoch": 10, "exact": 1.0, "stale": 0.9}
    assert history.diverged([2.0, 1.0], [sound]) is None
    assert history.diverged([2.0], []) is None
    assert "exact loss 1.5" in str(history.diverged([2.0, 1.0], [sound, {**sound, "exact": 1.5}]))
    assert history.diverged([2.0, 1.0], [{**sound, "exact": 2.1, "stale": 2.0}]) is not None


def test_the_verdict() -> None:
    def rows(recipe: str, values: list[float], diverged: Any = None) -> list[dict[str, Any]]:
        chunks = 1 if recipe == "exact" else 8
        base = {"graph": "g", "model": "m", "chunks": chunks, "recipe": recipe, "diverged": diverged}
        return [{**base, "seed": seed, "test": value} for seed, value in enumerate(values)]

    exact = rows("exact", [0.80, 0.81])
    found = history.table([*exact, *rows("near", [0.797, 0.806]), *rows("far", [0.7, 0.7], "left")])
    near, far = found
    assert near["difference"] == pytest.approx(-0.35)
    assert near["within"]
    assert near["within_tolerance"]
    assert not far["within"]
    assert far["diverged"] == 2
    assert near["spread"] == pytest.approx(1.0)
    [spread] = history.table([*exact, *rows("spread", [0.791, 0.801])])
    assert spread["within"]
    assert not spread["within_tolerance"]
