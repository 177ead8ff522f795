"""Run directories that no training made: quick, of any layout, and with figures that are known."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trisect.config import parse_config
from trisect.train.run.recorder import RunRecorder
from trisect.train.run.run_directory import RunDirectory

RunMaker = Callable[..., RunDirectory]


def plan_of(time: int, layer: int, vertex: int, *, layers: int, steps: int, blocks: int) -> dict[str, Any]:
    own = layers // layer
    stages = [[own * s, own * (s + 1) - 1] for s in range(layer)]
    stages[-1][1] = layers  # the head
    runs = None
    if steps > 1:
        share = steps / (blocks * time)
        cuts = [round(k * share) for k in range(blocks * time + 1)]
        runs = [[[cuts[b * time + t], cuts[b * time + t + 1]] for t in range(time)] for b in range(blocks)]
    return {
        "layout": f"time={time},layer={layer},vertex={vertex}",
        "stages": stages,
        "layers": [{"across": "halo", "along": "none"} for _ in range(layers)],
        "rows": [1000 + 10 * p for p in range(vertex)],
        "runs": runs,
        "actions_per_epoch": [1],
        "bytes_per_epoch": {"vertex/halo": 1024, "vertex/halo-gradients": 1024, "weights/reduce": 512},
        "expected": {
            "seconds_per_epoch": 0.9,
            "bytes_per_epoch": 2560,
            "memory_bytes": 300 << 20,
            "memory": {"libraries": 200 << 20, "activations": 80 << 20, "labels": 20 << 20, "total": 300 << 20},
        },
    }


def curve(kind: int | None) -> dict[str, Any]:
    points = [[round(1 - k / 40, 3), 2 * k, k] for k in range(1, 41)]
    return {
        "class": kind,
        "positives": 80,
        "negatives": 40,
        "auc": 0.5,
        "average_precision": 0.66,
        "points": points,
    }


def picture_of(classes: int) -> dict[str, Any]:
    """What scores.json has of a split; 0 classes: of links."""
    kinds: list[int | None] = [None] if classes == 0 else [1] if classes == 2 else list(range(classes))
    return {
        "rows": 120,
        "confusion": [[10 if a == b else 1 for b in range(classes)] for a in range(classes)] if classes else None,
        "curves": [curve(kind) for kind in kinds],
        "calibration": {
            "of": "links" if classes == 0 else "class 1",
            "bins": [[0.1, 0.2, 50], [0.8, 0.9, 70]],
            "error": 0.1,
        },
    }


def actions_of(rank: int, world: int, layers: int, chunks: int) -> list[tuple[str, float]]:
    """The actions of an epoch under a cut by vertex, with their seconds."""
    named = []
    for chunk in range(chunks):
        for k in range(layers):
            if world > 1:
                named += [(f"0PhF{chunk}.{k}", 0.0005), (f"0WhF{chunk}.{k}", 0.002)]
            named.append((f"0F{chunk}.{k}-{k}", 0.01 + 0.001 * (rank % 3)))
    named += [(f"0B{chunk}.0-{layers - 1}", 0.03) for chunk in reversed(range(chunks))]
    return [*named, ("0G0", 0.004), ("0U0", 0.002)]


@pytest.fixture
def make_run(tmp_path: Path) -> RunMaker:
    def make(
        name: str = "run",
        *,
        time: int = 1,
        layer: int = 1,
        vertex: int = 1,
        epochs: int = 3,
        layers: int = 4,
        steps: int = 1,
        blocks: int = 1,
        chunks: int = 1,
        classes: int = 3,
        seconds: float = 1.0,
        task: str = "node-classification",
        finished: bool = True,
        data: str = "<script>alert(1)</script>",
        more: dict[str, Any] | None = None,
    ) -> RunDirectory:
        world = time * layer * vertex
        config = parse_config(
            {
                "data": {"path": data},
                "model": {"name": "gcn", "layers": layers, "hidden": 8},
                "task": task,
                "layout": {"time": time, "layer": layer, "vertex": vertex},
                "train": {"epochs": max(epochs, 3), "monitor": "val.accuracy"},
            }
        )
        directory = RunDirectory.create(tmp_path / name, config)
        directory.write_plan(plan_of(time, layer, vertex, layers=layers, steps=steps, blocks=blocks))
        draw = random.Random(0)
        recorders = [RunRecorder(directory, rank=rank) for rank in range(world)]
        for epoch in range(1, epochs + 1):
            for rank, recorder in enumerate(recorders):
                clock = 1e9 + 100.0 * epoch
                for action, length in actions_of(rank, world, layers, chunks):
                    recorder.event(action, clock, length * seconds, epoch=epoch)
                    clock += length * seconds * (1 + 0.05 * draw.random())
            measures = {"loss": 1 / epoch, "accuracy": epoch / (epoch + 2), "per_step": {}}
            record = {"epoch": epoch, "loss": 2 / epoch, "seconds": seconds, "val": measures, "test": measures}
            for recorder in recorders:
                recorder.epoch(record)
        for recorder in recorders:
            recorder.close()
        if finished:
            summary = summary_of(directory, world, epochs, seconds)
            summary["layout"].update(time=time, layer=layer, vertex=vertex, chunks=chunks)
            pictures = {split: picture_of(classes) for split in ("val", "test")}
            directory.write_summary({**summary, **(more or {})}, pictures)
        return directory

    return make


def summary_of(directory: RunDirectory, world: int, epochs: int, seconds: float) -> dict[str, Any]:
    measures = {"loss": 1.0, "accuracy": 0.625, "f1_per_class": [0.5, 0.25]}
    return {
        "version": "0.1.0",
        "layout": {"time": 1, "layer": 1, "vertex": 1, "chunks": 1},
        "world": world,
        "epochs": epochs,
        "best_epoch": min(2, epochs),
        "monitor": "val.accuracy",
        "seconds_per_epoch": {"best": 0.9 * seconds, "median": seconds},
        "loss": [2 / k for k in range(1, epochs + 1)],
        "metrics": {"train": {}, "val": measures, "test": measures},
        "baselines": {},
        "parameters": 1234,
        "communication": {
            "bytes_per_epoch": 2560 if world > 1 else 0,
            "by_axis": {"vertex": 2048, "layer": 0, "time": 0, "weights": 512} if world > 1 else {},
            "by_rank": [2560 // world] * world if world > 1 else [0],
            "formula_bytes_per_epoch": 2560 if world > 1 else 0,
        },
        "transfer": {"full_bytes": 1000, "sent_bytes": 250},
        "memory": {"peak_rss_bytes": [3 << 20] * world, "peak_pss_bytes": [2 << 20] * world},
        "staleness": None,
        "partition": {"parts": {"volume": 376, "vertex_imbalance": 1.01, "cut": 0.03}, "chunks": None},
        "plan": {"seconds_per_epoch": 0.9, "bytes_per_epoch": 2560, "memory_bytes": 300 << 20},
    }


def rewrite(directory: RunDirectory, file: str, change: Callable[[Any], Any]) -> None:
    """Change a JSON file of a run, as somebody else might."""
    path = directory.path / file
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


@pytest.fixture
def forge() -> Callable[[RunDirectory, str, Callable[[Any], Any]], None]:
    return rewrite


@pytest.fixture
def links() -> dict[str, Any]:
    """What a summary of link prediction has besides."""
    steps = {"step": [5, 6, 7], "map": [0.5, 0.6, 0.7], "auc": [0.8, 0.8, 0.9]}
    own = {"loss": 0.5, "map": 0.6, "auc": 0.85, "per_step": steps}
    rules = {"edgebank": {"map": 0.4, "auc": 0.7}, "recency": {"map": 0.65, "auc": 0.8}}
    return {
        "monitor": "val.map",
        "metrics": {"train": own, "val": own, "test": own},
        "baselines": {"val": rules, "test": rules},
    }
