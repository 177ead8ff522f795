"""A run of `trisect train` in processes of its own, for measurements that need a layout, fresh memory, or both."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from trisect.errors import RunError
from trisect.train.run_directory import RunDirectory


def train(config: Mapping[str, Any], layout: str = "", *, timeout: float | None = None) -> dict[str, Any]:
    """The summary of a run with this configuration under a layout such as `time=2,blocks=4`; its files are removed."""
    with tempfile.TemporaryDirectory(prefix="trisect-bench-") as folder:
        path = Path(folder, "config.yaml")
        path.write_text(yaml.safe_dump(dict(config)))
        out = Path(folder, "run")
        command = [sys.executable, "-m", "trisect", "train", str(path), "--out", str(out)]
        command += ["--layout", layout] if layout else []
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)  # noqa: S603
        if done.returncode != 0:
            raise RunError(f"the run with layout {layout or 'of one rank'!r} failed: {done.stderr.strip()[-2000:]}")
        return RunDirectory.reopen(out).summary() or {}


def peak_gib(summary: Mapping[str, Any]) -> float:
    """The memory of all ranks together, each at its own peak."""
    return float(sum(summary["memory"]["peak_rss_bytes"])) / 2**30


def timeline_config(
    *,
    vertices: int,
    steps: int,
    transactions: float,
    life: int,
    model: str,
    layers: int,
    hidden: int,
    epochs: int,
    threads: int | None,
) -> dict[str, Any]:
    """A dynamic model on a laundering timeline whose edges live some steps; degrees are the features, amounts do not
    count. Nothing is evaluated on the way.
    """
    return {
        "data": {
            "generate": "laundering",
            "vertices": vertices,
            "steps": steps,
            "transactions": transactions,
            "weighted": False,
            "smoothing": {"kind": "edge-life", "length": life},
        },
        "model": {"name": model, "layers": layers, "hidden": hidden},
        "task": "node-classification",
        "train": {"epochs": epochs, "eval_every": 1000, "checkpoint_every": 1000, "threads": threads},
    }
