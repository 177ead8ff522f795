"""A run of `trisect train` in processes of its own, for measurements that need a layout, fresh memory, or both."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from trisect.errors import RunError
from trisect.ops.memory import LIMIT_VARIABLE
from trisect.train.run.run_directory import RunDirectory

Job = tuple[Mapping[str, Any], str]


@contextmanager
def finished(*jobs: Job, memory: str | None = None) -> Iterator[list[RunDirectory]]:
    """The directories of runs with a configuration under a layout such as `time=2,blocks=4` (`""`: one rank), which
    are trained at the same time; removed afterwards.

    Args:
        memory: that a run may plan with, such as `12GiB`; what is free, by default.
    """
    environment = os.environ if memory is None else {**os.environ, LIMIT_VARIABLE: memory}
    with tempfile.TemporaryDirectory(prefix="trisect-bench-") as name, ExitStack() as stack:
        outs, runs = [], []
        for number, (config, layout) in enumerate(jobs):
            path, out = Path(name, f"{number}.yaml"), Path(name, f"{number}")
            path.write_text(yaml.safe_dump(dict(config)))
            command = [sys.executable, "-m", "trisect", "train", str(path), "--out", str(out)]
            command += ["--layout", layout] if layout else []
            errors = stack.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
            run = stack.enter_context(
                subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors)
            )
            stack.callback(run.terminate)  # where another one fails, or nobody waits any more
            outs.append(out)
            runs.append((run, layout, errors))
        for run, layout, errors in runs:
            if run.wait() != 0:
                errors.seek(0)
                said = errors.read().strip()[-2000:]
                raise RunError(f"the run with layout {layout or 'of one rank'!r} failed: {said}")
        yield [RunDirectory.reopen(out) for out in outs]


def train(config: Mapping[str, Any], layout: str = "", *, memory: str | None = None) -> dict[str, Any]:
    """The summary of one run."""
    with finished((config, layout), memory=memory) as (run,):
        return run.summary() or {}


def rank_gib(summary: Mapping[str, Any]) -> float:
    """The most memory of a rank."""
    return float(max(summary["memory"]["peak_rss_bytes"])) / 2**30


def together_gib(summary: Mapping[str, Any]) -> float:
    """The memory of all ranks, each at its own peak; a page that ranks share counts once, where the system tells."""
    memory = summary["memory"]
    return float(sum(memory.get("peak_pss_bytes") or memory["peak_rss_bytes"])) / 2**30


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
