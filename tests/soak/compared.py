"""Compares a run with its undisturbed twin: bytes of the state, every value that was measured, predictions."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from trisect.config import parse_layout
from trisect.train.outputs.prediction import Prediction, write_predictions
from trisect.train.processes.listening import NoListener

_MEASURED = ("loss", "metrics", "best_epoch", "epochs", "parameters")
_ONE_AT_A_TIME = threading.Lock()

VARYING = ("seconds", "peak_rss_bytes")


def differences(one: Path, two: Path) -> list[str]:
    """Say in what two runs differ: nothing where the second was disturbed and lost nothing by it."""
    said = _different_metrics(metrics(one), metrics(two))
    first, second = (json.loads((run / "summary.json").read_text()) for run in (one, two))
    said += [f"{key} of summary.json" for key in _MEASURED if first[key] != second[key]]
    said += _different_shards(*(sorted((run / "checkpoints").glob("epoch-??????"))[-1] for run in (one, two)))
    left, right = predictions(one), predictions(two)
    said += [
        f"{name} of predictions"
        for name in sorted({*left, *right})
        if name not in left or name not in right or left[name].tobytes() != right[name].tobytes()
    ]
    return said


def metrics(run: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl without the seconds and the memory."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in VARYING} for record in records]


def seconds(run: Path) -> float:
    """Add up the seconds of the epochs that counted."""
    return sum(json.loads(line)["seconds"] for line in (run / "metrics.jsonl").read_text().splitlines())


def _different_metrics(one: list[dict[str, Any]], two: list[dict[str, Any]]) -> list[str]:
    if [record["epoch"] for record in one] != [record["epoch"] for record in two]:
        return [f"epochs {[record['epoch'] for record in two]} in metrics.jsonl"]
    return [f"epoch {a['epoch']} of metrics.jsonl: {a} and {b}" for a, b in zip(one, two, strict=True) if a != b][:1]


def _different_shards(one: Path, two: Path) -> list[str]:
    names = sorted(path.name for path in one.glob("rank-*"))
    if one.name != two.name or names != sorted(path.name for path in two.glob("rank-*")):
        return [f"the files of {one.name} and {two.name}"]
    said = []
    for name in names:
        first, second = load_file(one / name), load_file(two / name)
        said += [f"{name}: {key}" for key in sorted({*first, *second}) if not _same_bytes(first, second, key)]
        if not said and (one / name).read_bytes() != (two / name).read_bytes():
            said.append(name)
    return said


def _same_bytes(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor], key: str) -> bool:
    if key not in one or key not in two or one[key].shape != two[key].shape or one[key].dtype != two[key].dtype:
        return False
    return one[key].numpy().tobytes() == two[key].numpy().tobytes()


def predictions(run: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Give what the run predicts in one process, for all vertices and steps."""
    target = run.parent / f"{run.name}-predictions.npz"
    with _ONE_AT_A_TIME:
        if not target.exists():
            asked = Prediction(run, out=target, steps="all", layout=parse_layout("vertex=1"))
            write_predictions(asked, NoListener())
    with np.load(target, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
