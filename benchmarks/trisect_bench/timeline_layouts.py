"""Bytes an epoch of each cut of a timeline, and how fast two ranks along time are.

Bytes come from the formulas that the ledger of a run equals (tests require it); nothing is trained for them. Speed is
measured with `trisect train`: one rank of one thread against two, turn by turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from trisect.data.generators.generate import generate
from trisect.data.records import TimelineRecord
from trisect.errors import DataError
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout, Partitioner
from trisect.nn.models.registry import build
from trisect.nn.temporal.dynamic import DynamicModel
from trisect.partition.timeline import cut_timeline, deal, halo_rows, step_work
from trisect.plan.build import schedule_of
from trisect.plan.plan import make_plan
from trisect.plan.volume import volume
from trisect.schedule.action import COMPUTE, Action
from trisect.train.run.run_directory import RunDirectory
from trisect.views.trace import trace_of
from trisect_bench._runs import finished

TIMELINES: dict[str, dict[str, Any]] = {
    "evolving": {"generate": "evolving", "vertices": 20_000, "degree": 8.0, "features": 0},
    "uniform": {"generate": "uniform", "vertices": 20_000, "degree": 4.0},
    "laundering": {"generate": "laundering", "vertices": 20_000},
}
MODELS = ("cd-gcn", "tm-gcn")
SPEED_MODELS = ("cd-gcn", "evolvegcn-o", "tm-gcn")
EXCHANGES = ("redistribute", "carry", "halo")


def run(
    timelines: Sequence[str] = tuple(TIMELINES),
    models: Sequence[str] = MODELS,
    steps: int = 128,
    ranks: Sequence[int] = (4, 8),
    blocks: int = 1,
    edge_life: int = 10,
    layers: int = 2,
    hidden: int = 6,
    methods: Sequence[Partitioner] = ("metis",),
    speed: bool = False,
    speed_models: Sequence[str] = SPEED_MODELS,
    rounds: int = 3,
) -> dict[str, Any]:
    """Bytes an epoch for each timeline, model and cut; with `speed`, seconds an epoch on one and on two ranks.

    Args:
        methods: what cuts vertices: `metis`, `hypergraph` (minutes, where edges are many).
        speed_models, rounds: see `measure_speed`.
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
                    f"vertex ({method})": _bytes(
                        built, timeline, Layout(vertex=count, blocks=blocks, spatial="halo"), remote_rows
                    )
                    for method, remote_rows in remote.items()
                }
                for exchange in EXCHANGES:
                    if exchange != "halo" or trace_of(built.stack[0], timeline=True).state == "window":
                        layout = Layout(time=count, blocks=blocks, temporal=exchange)
                        sizes[exchange] = _bytes(built, timeline, layout, ())
                result["cuts"].append({"timeline": name, "ranks": count, "model": model, "bytes": sizes})
    if speed:
        result["speed"] = measure_speed(speed_models, rounds=rounds)
    return result


def _timeline(options: Mapping[str, Any], steps: int, edge_life: int) -> Timeline:
    options = dict(options)
    record = generate(options.pop("generate"), steps=steps, **options)
    if not isinstance(record, TimelineRecord):
        raise DataError("bench timeline-layouts measures timelines, and the data are one graph.")
    return Timeline.from_record(record, smoothing={"kind": "edge-life", "length": edge_life})


def _remote(timeline: Timeline, parts: int, method: Partitioner) -> list[int]:
    """Rows that all parts together read from others, at each step."""
    partition = cut_timeline(timeline, parts, method=method)
    owner = torch.empty(timeline.vertices, dtype=torch.int64)
    owner[partition.order] = partition.owner_of_positions(torch.arange(timeline.vertices))
    figures: list[int] = halo_rows(timeline, owner, parts).sum(1).tolist()
    return figures


def _bytes(model: DynamicModel, timeline: Timeline, layout: Layout, remote: Sequence[int]) -> int:
    """Without the reduction of the weights, which is the same for all cuts; the first layer's Â·x is kept."""
    plan = make_plan(
        model.stack,
        model.head,
        layout,
        bounds=(0, len(model.stack)),
        runs=deal(step_work(timeline), layout.block_count, layout.time),
        rows=[timeline.vertices // layout.vertex] * layout.vertex,
        remote=remote,
        timeline=True,
        aggregated=True,
    )
    moved = volume(plan, schedule_of(plan))
    return sum(size for (axis, _), size in moved.items() if axis != "weights")


def measure_speed(
    models: Sequence[str] = SPEED_MODELS,
    vertices: int = 30_000,
    steps: int = 64,
    hidden: int = 16,
    epochs: int = 4,
    rounds: int = 3,
) -> dict[str, Any]:
    """Seconds of the best epoch of each model, turn by turn: one rank of one thread, two along time, and the limit of
    the machine: two processes at the same time that train half of the steps each and know nothing of each other.
    """
    figures: dict[str, Any] = {}
    for model in models:
        full, half = (_speed_config(model, vertices, count, hidden, epochs) for count in (steps, steps // 2))
        seconds: dict[str, list[float]] = {}
        waited: list[float] = []
        for _ in range(rounds):
            with finished((full, "")) as one, finished((full, "time=2")) as two:
                waited.append(_waited_fraction(two[0]))
                measured = {"one rank": max(map(_best, one)), "time=2": max(map(_best, two))}
            with finished((half, ""), (half, "")) as halves:
                measured["two halves apart"] = max(map(_best, halves))
            for name, best in measured.items():
                seconds.setdefault(name, []).append(best)
        figures[model] = {
            "seconds": {name: min(several) for name, several in seconds.items()},
            "rounds": seconds,
            "waited": min(waited),
        }
    return figures


def _speed_config(model: str, vertices: int, steps: int, hidden: int, epochs: int) -> dict[str, Any]:
    return {
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


def _best(run: RunDirectory) -> float:
    return float((run.summary() or {})["seconds_per_epoch"]["best"])


def _waited_fraction(run: RunDirectory) -> float:
    """Of all ranks' time in the last epoch, the share in transfers, which is mostly waiting."""
    last, total, waited = (run.summary() or {})["epochs"], 0.0, 0.0
    for rank in run.ranks():
        for event in run.events(rank):
            if event.get("epoch") == last and not event.get("evaluation"):
                total += event["seconds"]
                waited += 0.0 if Action.parse(event["name"]).verb in COMPUTE else event["seconds"]
    return waited / total


def show(result: dict[str, Any]) -> None:
    """Print the figures as tables."""
    print(f"MiB an epoch, {result['steps']} steps, edge-life {result['edge_life']}, {result['hidden']} channels")
    kinds = list(dict.fromkeys(kind for cut in result["cuts"] for kind in cut["bytes"]))
    print(f"{'timeline':<12} {'ranks':>5} {'model':<8}" + "".join(f" {kind:>19}" for kind in kinds))
    for cut in result["cuts"]:
        cells = (f"{cut['bytes'][kind] / 2**20:19.2f}" if kind in cut["bytes"] else f"{'-':>19}" for kind in kinds)
        print(f"{cut['timeline']:<12} {cut['ranks']:>5} {cut['model']:<8} " + " ".join(cells))
    for model, figures in result.get("speed", {}).items():
        one = figures["seconds"]["one rank"]
        for name, seconds in figures["seconds"].items():
            waited = f"; ranks wait {figures['waited']:.1%} of the time" if name == "time=2" else ""
            print(f"{model:<12} {name:<17} {seconds:7.2f} s an epoch, {one / seconds:.2f} times one rank{waited}")
