"""`trisect train`, `--resume` and `predict` on the pretend device, in one process and with workers, against the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

from trisect.cli.main import run_command

CONFIGS: dict[str, dict[str, Any]] = {
    "graph": {
        "data": {"generate": "community", "vertices": 120, "classes": 3, "features": 8, "per_class": 8},
        "model": {"name": "gcnii", "layers": 3, "hidden": 8, "dropout": 0.3},
        "task": "node-classification",
    },
    "timeline": {
        "data": {"generate": "evolving", "vertices": 60, "steps": 9, "communities": 3, "features": 6},
        "model": {"name": "cd-gcn", "layers": 2, "hidden": 4, "dropout": 0.3},
        "task": {"name": "link-prediction", "decoder": "mlp", "hidden": 4, "eval_negatives": 5},
    },
}
TRAIN = {"epochs": 4, "checkpoint_every": 2, "precision": "float64"}
LAYOUTS = [
    ("graph", None),
    ("timeline", None),
    ("graph", "vertex=2,spatial=halo"),
    pytest.param("graph", "layer=2", marks=pytest.mark.slow),
    pytest.param("graph", "layer=2,chunks=3", marks=pytest.mark.slow),
    pytest.param("timeline", "time=2", marks=pytest.mark.slow),
    pytest.param("timeline", "vertex=2,layer=2", marks=pytest.mark.slow),
]


def trisect(*words: str | Path) -> None:
    assert run_command([str(word) for word in words]) == 0, words


def losses(run: Path) -> list[float]:
    return list(json.loads((run / "summary.json").read_text())["loss"])


def predictions(run: Path, name: str, *words: str) -> dict[str, np.ndarray[Any, Any]]:
    out = run.parent / f"{name}.npz"
    trisect("predict", run, "--out", out, *words)
    with np.load(out) as columns:
        return dict(columns)


def differ(a: dict[str, np.ndarray[Any, Any]], b: dict[str, np.ndarray[Any, Any]]) -> float:
    assert a.keys() == b.keys()
    return max(float(np.abs(a[name] - b[name]).max()) for name in a if a[name].dtype.kind == "f")


@pytest.mark.parametrize(("data", "layout"), LAYOUTS)
def test_a_run_on_the_device(data: str, layout: str | None, tmp_path: Path, everywhere: ModuleType) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({**CONFIGS[data], "train": TRAIN}))
    cut = [] if layout is None else ["--layout", layout]
    stale = [] if layout is None or "chunks" not in layout else cut
    here, there = tmp_path / "cpu", tmp_path / "sim"
    trisect("train", config, "--out", here, *stale)

    trisect("train", config, "--out", there, "--set", "train.device=sim", "--set", "train.epochs=2", *cut)
    assert len(losses(there)) == 2
    trisect("train", "--resume", "--out", there, "--set", "train.epochs=4")
    assert yaml.safe_load((there / "config.yaml").read_text())["train"]["device"] == "sim"
    assert losses(there) == pytest.approx(losses(here), rel=1e-10)
    assert losses(there) != pytest.approx(losses(here)[::-1], rel=1e-10)

    wanted = predictions(here, "wanted")
    with everywhere.counted() as transfers:
        assert differ(wanted, predictions(there, "device")) < 1e-8
    assert layout is not None or len(transfers.to_device) > 0
    with everywhere.counted() as transfers:
        assert differ(wanted, predictions(there, "host", "--device", "cpu", "--layout", "vertex=1")) < 1e-8
    assert transfers == everywhere.Transfers()
    assert differ(wanted, predictions(here, "across", "--device", "sim", *cut)) < 1e-8


def test_a_comparison_of_predictions_can_fail(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({**CONFIGS["graph"], "train": TRAIN}))
    columns = []
    for seed in (0, 1):
        trisect("train", config, "--out", tmp_path / str(seed), "--set", f"train.seed={seed}")
        columns.append(predictions(tmp_path / str(seed), f"of-{seed}"))
    assert differ(*columns) > 1e-3


def test_workers_without_the_device_say_so(
    tmp_path: Path, pretend: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({**CONFIGS["graph"], "train": TRAIN}))
    words = ["train", str(config), "--out", str(tmp_path / "run"), "--set", "train.device=sim", "--layout", "vertex=2"]
    assert run_command(words) == 2
    assert "train.device is 'sim', which is no device; use cpu or cuda:0." in capfd.readouterr().err
