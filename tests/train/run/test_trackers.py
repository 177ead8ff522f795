"""Figures reach trackers in their offline modes; a tracker that fails does not end the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trisect.cli.main import run_command
from trisect.config import parse_config
from trisect.errors import ConfigError
from trisect.train.run import trackers
from trisect.train.run.trackers import Trackers, require_trackers

CONFIG = {
    "data": {"generate": "community", "vertices": 60, "per_class": 3},
    "model": {"name": "gcn", "hidden": 4},
    "task": "node-classification",
    "train": {"epochs": 2},
}


def tracked(names: str) -> Any:
    return parse_config({**CONFIG, "train": {"epochs": 2, "track": names}})


class Kept:
    def __init__(self, directory: Path, config: Any, name: str) -> None:
        self.figures: list[tuple[int, dict[str, float]]] = []
        self.closed = False

    def log(self, figures: Any, epoch: int) -> None:
        self.figures.append((epoch, dict(figures)))

    def close(self) -> None:
        self.closed = True


def test_every_figure_reaches_a_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "_WandB", Kept)
    all_of_them = Trackers(tmp_path, tracked("wandb"), "name")
    all_of_them.epoch({"epoch": 1, "loss": 0.5, "val": {"accuracy": 0.25, "f1_per_class": [0.1]}})
    (kept,) = [tracker for title, tracker in all_of_them._trackers if title == "wandb"]
    assert isinstance(kept, Kept)
    assert kept.figures == [(1, {"loss": 0.5, "val/accuracy": 0.25})]
    all_of_them.close()
    assert kept.closed


def test_one_that_fails_is_said_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Kept):
        def log(self, figures: Any, epoch: int) -> None:
            raise ConnectionError("no way\nthere")

    monkeypatch.setattr(trackers, "_WandB", Broken)
    all_of_them = Trackers(tmp_path, tracked("wandb"), "name")
    with pytest.warns(UserWarning, match=r"wandb is left out from here on \(ConnectionError: no way there\)"):
        all_of_them.epoch({"epoch": 1, "loss": 0.5})
    all_of_them.epoch({"epoch": 2, "loss": 0.5})
    all_of_them.close()


def test_names_and_packages_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"train\.track is 'wand', but must name wandb or mlflow"):
        tracked("wand")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'trisect\[mlflow\]'"):
        require_trackers("mlflow")


@pytest.mark.slow
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: pip install 'trisect[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    (tmp_path / "a.json").write_text(json.dumps(CONFIG))
    arguments = ["train", str(tmp_path / "a.json"), "--out", str(tmp_path / "run"), "--set", "train.track=wandb"]
    assert run_command(arguments) == 0
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))


@pytest.mark.slow
def test_mlflow_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'trisect[mlflow]'")
    pytest.importorskip("sqlalchemy")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'm.db'}")
    (tmp_path / "a.json").write_text(json.dumps(CONFIG))
    arguments = ["train", str(tmp_path / "a.json"), "--out", str(tmp_path / "run"), "--set", "train.track=mlflow"]
    assert run_command(arguments) == 0
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'm.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("trisect").experiment_id])
    losses = client.get_metric_history(run.info.run_id, "loss")
    written = [json.loads(line)["loss"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [entry.value for entry in losses] == written
    assert run.data.params["model.name"] == "gcn"
