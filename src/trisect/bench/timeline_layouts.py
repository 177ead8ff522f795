"""Bytes an epoch of each cut of a timeline, and how fast two ranks along time are.

Bytes come from the formulas that the ledger of a run equals (tests require it); nothing is trained for them. Speed is
measured with `trisect train`: one rank of one thread against two, turn by turn.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from trisect.data.generate import generate
from trisect.data.records import TimelineRecord
from trisect.errors import DataError
from trisect.graph.timeline import Timeline
from trisect.layout import Layout, Temporal
from trisect.nn.dynamic import DynamicModel
from trisect.nn.registry import build
from trisect.partition.timeline import Method, cut_timeline, deal, halo_rows, step_work
from trisect.runtime.timeline_plan import plan_of
from trisect.runtime.volume_timeline import timeline_volume

TIMELINES: dict[str, dict[str, Any]] = {
    "evolving": {"generate": "evolving", "vertices": 20_000, "degree": 8.0, "features": 0},
    "uniform": {"generate": "uniform", "vertices": 20_000, "degree": 4.0},
    "laundering": {"generate": "laundering", "vertices": 20_000},
}
MODELS = ("cd-gcn", "tm-gcn")
EXCHANGES: tuple[Temporal, ...] = ("redistribute", "carry", "halo")


def run(
    timelines: Sequence[str] = tuple(TIMELINES),
    models: Sequence[str] = MODELS,
    steps: int = 128,
    ranks: Sequence[int] = (4, 8),
    blocks: int = 1,
    edge_life: int = 10,
    layers: int = 2,
    hidden: int = 6,
    methods: Sequence[Method] = ("metis",),
    speed: bool = False,
) -> dict[str, Any]:
    """Bytes an epoch for each timeline, model and cut; with `speed`, seconds an epoch on one and on two ranks.

    Args:
        methods: what cuts vertices: `metis`, `hypergraph` (minutes, where edges are many).
    """
    result: dict[str, Any] = {"steps": steps, "blocks": blocks, "edge_life": edge_life, "hidden": hidden, "cuts": []}
    for name in timelines:
        timeline = _timeline(TIMELINES[name], steps, edge_life)
        for count in ranks:
            remote = {method: _remote(timeline, count, method) for method in methods}
            for model in models:
                built = build(model, 2, 2, layers=layers, hidden=hidden)
                if not isinstance(built, DynamicModel):
                    raise DataError(f"{model} is no dynamic model; bench timeline-layouts measures those.")
                sizes = {
                    f"vertex ({method})": _bytes(built, timeline, Layout(vertex=count, blocks=blocks), found)
                    for method, found in remote.items()
                }
                for exchange in EXCHANGES:
                    if exchange != "halo" or built.stack[0].state_kind == "window":
                        layout = Layout(time=count, blocks=blocks, temporal=exchange)
                        sizes[exchange] = _bytes(built, timeline, layout, ())
                result["cuts"].append({"timeline": name, "ranks": count, "model": model, "bytes": sizes})
    if speed:
        result["speed"] = measure_speed()
    return result


def _timeline(options: Mapping[str, Any], steps: int, edge_life: int) -> Timeline:
    options = dict(options)
    record = generate(options.pop("generate"), steps=steps, **options)
    if not isinstance(record, TimelineRecord):
        raise DataError("bench timeline-layouts measures timelines, and the data are one graph.")
    return Timeline.from_record(record, smoothing={"kind": "edge-life", "length": edge_life})


def _remote(timeline: Timeline, parts: int, method: Method) -> list[int]:
    """Rows that all parts together read from others, at each step."""
    partition = cut_timeline(timeline, parts, method=method)
    owner = torch.empty(timeline.vertices, dtype=torch.int64)
    owner[partition.order] = partition.owner_of_positions(torch.arange(timeline.vertices))
    found: list[int] = halo_rows(timeline, owner, parts).sum(1).tolist()
    return found


def _bytes(model: DynamicModel, timeline: Timeline, layout: Layout, remote: Sequence[int]) -> int:
    """Without the reduction of the weights, which is the same for all cuts; the first layer's Â·x is kept."""
    count = len(model.stack)
    rows = [timeline.vertices // layout.vertex] * layout.vertex
    runs = deal(step_work(timeline), layout.blocks, layout.time)
    plan = plan_of(model.stack, (0, count), layout, runs, rows, aggregated=True)
    return sum(timeline_volume(model.stack, plan, layout, [0], remote=remote).values())


def measure_speed(
    vertices: int = 30_000, steps: int = 64, hidden: int = 16, epochs: int = 3, rounds: int = 3, model: str = "cd-gcn"
) -> dict[str, Any]:
    """Seconds of the best epoch on one rank and on two along time, one thread each, turn by turn."""
    config: Mapping[str, Any] = {
        "data": {
            "generate": "evolving",
            "vertices": vertices,
            "steps": steps + 2,
            "degree": 8.0,
            "features": 0,
            "smoothing": {"kind": "edge-life", "length": 10},
        },
        "model": {"name": model, "layers": 2, "hidden": hidden},
        "task": {"name": "node-classification", "split": [steps, 1, 1]},
        "train": {"epochs": epochs, "eval_every": 1000, "checkpoint_every": 1000, "threads": 1},
    }
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="trisect-bench-") as folder:
        path = Path(folder, "config.yaml")
        path.write_text(yaml.safe_dump(dict(config)))
        for turn in range(rounds):
            for layout in ("", "time=2,temporal=carry"):
                out = Path(folder, f"{layout or 'one'}-{turn}")
                command = [sys.executable, "-m", "trisect", "train", str(path), "--out", str(out)]
                command += ["--layout", layout] if layout else []
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
                best = json.loads((out / "summary.json").read_text())["seconds_per_epoch"]["best"]
                found.setdefault(layout or "one rank", []).append(best)
    return {layout: min(seconds) for layout, seconds in found.items()}


def show(result: dict[str, Any]) -> None:
    """Print as tables."""
    print(f"MiB an epoch, {result['steps']} steps, edge-life {result['edge_life']}, {result['hidden']} channels")
    kinds = list(dict.fromkeys(kind for cut in result["cuts"] for kind in cut["bytes"]))
    print(f"{'timeline':<12} {'ranks':>5} {'model':<8}" + "".join(f" {kind:>19}" for kind in kinds))
    for cut in result["cuts"]:
        cells = (f"{cut['bytes'][kind] / 2**20:19.2f}" if kind in cut["bytes"] else f"{'-':>19}" for kind in kinds)
        print(f"{cut['timeline']:<12} {cut['ranks']:>5} {cut['model']:<8} " + " ".join(cells))
    if "speed" in result:
        one = result["speed"]["one rank"]
        for layout, seconds in result["speed"].items():
            print(f"{layout:<24} {seconds:7.2f} s an epoch, {one / seconds:.2f} times one rank of one thread")
