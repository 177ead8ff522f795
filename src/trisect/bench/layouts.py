"""Bytes an epoch under graph parallelism, the pipeline and the hybrid, and how fast two ranks are.

Bytes come from the formulas that the ledger of a run equals (tests require it); nothing is trained for them. Speed is
measured with `trisect train`: one rank of one thread against two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from trisect.bench._runs import Job, finished
from trisect.data.load import load
from trisect.data.records import StaticRecord
from trisect.errors import DataError, LayoutError
from trisect.graph.graph import Graph
from trisect.layout import Layout
from trisect.nn.base import Model
from trisect.nn.registry import build
from trisect.partition import cut_graph, quality
from trisect.runtime.volume import static_volume
from trisect.schedule.action import Action, Kind
from trisect.train.cut_program import stage_bounds
from trisect.train.ranks import layer_costs
from trisect.train.run_directory import RunDirectory

GRAPHS: dict[str, dict[str, Any]] = {
    "community": {"generate": "community", "vertices": 20_000},
    "squirrel": {"name": "squirrel"},
    "ego-twitter": {"name": "ego-twitter"},
    "amazon0601": {"name": "amazon0601"},
}
MODELS = ("gcn", "sage", "gcnii", "resgcn+")


def run(
    graphs: Sequence[str] = tuple(GRAPHS),
    models: Sequence[str] = MODELS,
    layers: int = 32,
    hidden: int = 100,
    ranks: int = 8,
    ways: int = 2,
    data_dir: str | None = None,
    speed: bool = False,
    classes: int = 10,
    within: float = 0.7,
    rounds: int = 2,
) -> dict[str, Any]:
    """Bytes an epoch for each graph, model and layout; with `speed`, seconds an epoch on one and on two ranks.

    Args:
        ways: of the hybrid, whose stages are ranks / ways.
        classes, within, rounds: of `speed` (see `measure_speed`).
    """
    layouts = {
        "graph": Layout(vertex=ranks),
        "pipeline": Layout(layer=ranks),
        "hybrid": Layout(layer=ranks // ways, vertex=ways),
    }
    result: dict[str, Any] = {"layers": layers, "hidden": hidden, "ranks": ranks, "graphs": {}, "skipped": {}}
    for name in graphs:
        try:
            record = load(GRAPHS[name], data_dir=None if data_dir is None else Path(data_dir))
        except DataError as error:
            result["skipped"][name] = str(error)
            continue
        if not isinstance(record, StaticRecord):
            raise DataError(f"{name} is a timeline; bench layouts measures static graphs.")
        graph = Graph.from_record(record)
        remote = {parts: _remote(graph, parts) for parts in sorted({layout.vertex for layout in layouts.values()})}
        rows: dict[str, Any] = {}
        for model in models:
            built = build(model, hidden, 8, layers=layers, hidden=hidden)
            if isinstance(built, Model):
                rows[model] = {key: _volume(built, graph, cut, remote[cut.vertex]) for key, cut in layouts.items()}
        result["graphs"][name] = {
            "vertices": graph.vertices,
            "edges": graph.edges,
            "remote_share": {str(parts): sum(found) / graph.vertices for parts, found in remote.items()},
            "bytes": rows,
        }
    if speed:
        result["speed"] = measure_speed(classes=classes, within=within, rounds=rounds)
    return result


def _remote(graph: Graph, parts: int) -> list[int]:
    """Rows that each part reads from others."""
    if parts == 1:
        return [0]
    partition = cut_graph(graph.adjacency, parts)
    owner = torch.empty(graph.vertices, dtype=torch.int64)
    for part in range(parts):
        owner[partition.order[slice(*partition.part(part))]] = part
    return [quality(graph.adjacency, owner, parts).volume]


def _volume(model: Model, graph: Graph, layout: Layout, remote: Sequence[int]) -> int:
    bounds = stage_bounds(layer_costs(model.stack), layout.layer)
    weights = [
        sum(p.numel() * p.element_size() for layer in model.stack[a:b] for p in layer.parameters())
        for a, b in pairwise(bounds)
    ]
    return sum(static_volume(model.stack, bounds, layout, graph.vertices, remote, weights).values())


def measure_speed(
    vertices: int = 200_000,
    degree: float = 20.0,
    layers: int = 16,
    hidden: int = 100,
    epochs: int = 3,
    model: str = "gcn",
    classes: int = 10,
    within: float = 0.7,
    rounds: int = 2,
) -> dict[str, Any]:
    """One rank and two, one thread each: seconds of the best epoch, the most memory of a rank, and the seconds of the
    last epoch that ranks waited for rows of others (`receive`, `halo`), on average. Last, the limit of the machine: two
    processes that train a graph of half the size each, at the same time.

    Args:
        classes, within: communities, and the share of edges inside one. The other edges go anywhere, so that with 0.7
            nearly every vertex reads one of the other part.
        rounds: times that all are measured, one after the other; the best of each counts.
    """
    config: Mapping[str, Any] = {
        "data": {
            "generate": "community",
            "vertices": vertices,
            "degree": degree,
            "features": 64,
            "classes": classes,
            "within": within,
        },
        "model": {"name": model, "layers": layers, "hidden": hidden, "dropout": 0.5},
        "task": "node-classification",
        "train": {"epochs": epochs, "eval_every": 1000, "checkpoint_every": 1000, "threads": 1},
    }
    half = {**config, "data": {**config["data"], "vertices": vertices // 2}}
    cuts = ("", "vertex=2", "layer=2,chunks=16", "layer=2,chunks=32")
    runs: dict[str, list[Job]] = {layout or "one rank": [(config, layout)] for layout in cuts}
    runs["two halves apart"] = [(half, "")] * 2  # what cores that share caches and memory allow
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, jobs in runs.items():
            with finished(*jobs) as done:
                found[name].append(max(map(_measured, done), key=_seconds))
    return {name: min(each, key=_seconds) for name, each in found.items()}


def _seconds(measured: Mapping[str, Any]) -> float:
    return float(measured["seconds"])


def _measured(run: RunDirectory) -> dict[str, Any]:
    summary = run.summary() or {}
    waits = {Kind.RECEIVE: 0.0, Kind.HALO: 0.0}
    ranks = run.ranks()
    for rank in ranks:
        events = [event for event in run.events(rank) if event.get("epoch") == summary["epochs"]]
        for event in events:
            kind = _kind_of(event["name"])
            if kind in waits:
                waits[kind] += event["seconds"] / len(ranks)
    return {
        "seconds": summary["seconds_per_epoch"]["best"],
        "peak_rss_bytes": max(summary["memory"]["peak_rss_bytes"]),
        "waited": {kind.name.lower(): seconds for kind, seconds in waits.items()},
    }


def _kind_of(name: str) -> Kind | None:
    try:
        return Action.parse(name).kind
    except LayoutError:
        return None


def show(result: dict[str, Any]) -> None:
    """Print as tables."""
    print(f"GiB an epoch, {result['layers']} layers of {result['hidden']}, {result['ranks']} ranks")
    print(f"{'graph':<12} {'model':<8} {'graph':>8} {'pipeline':>9} {'hybrid':>8} {'graph/pipeline':>15}")
    for name, found in result["graphs"].items():
        for model, sizes in found["bytes"].items():
            gib = {key: size / 2**30 for key, size in sizes.items()}
            ratio = sizes["graph"] / sizes["pipeline"]
            print(
                f"{name:<12} {model:<8} {gib['graph']:8.3f} {gib['pipeline']:9.3f} {gib['hybrid']:8.3f} {ratio:15.2f}"
            )
    for name, reason in result["skipped"].items():
        print(f"{name}: left out. {reason}")
    if "speed" in result:
        one = result["speed"]["one rank"]["seconds"]
        for layout, found in result["speed"].items():
            print(
                f"{layout:<18} {found['seconds']:7.2f} s an epoch, {one / found['seconds']:.2f} times one rank of one "
                f"thread; {found['peak_rss_bytes'] / 2**30:.2f} GiB a rank; waited "
                f"{found['waited']['halo']:.2f} s for halos, {found['waited']['receive']:.2f} s for chunks"
            )
