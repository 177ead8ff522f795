"""Bytes an epoch of a cut by vertex (halo, redistribute), the pipeline and the hybrid, and how fast two ranks are.

Bytes come from the formulas that the ledger of a run equals (tests require it); nothing is trained for them. Speed is
measured with `trisect train`: one rank of one thread against two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from trisect.data.load import load
from trisect.data.records import StaticRecord
from trisect.errors import DataError, LayoutError
from trisect.graph.graph import Graph
from trisect.layout import Layout
from trisect.nn.base import Model
from trisect.nn.models.registry import build
from trisect.partition import cut_graph, quality
from trisect.plan.build import schedule_of
from trisect.plan.plan import make_plan
from trisect.plan.stages import layer_costs, stage_bounds
from trisect.plan.volume import volume
from trisect.schedule.action import Action, Verb
from trisect.train.run.run_directory import RunDirectory
from trisect.views.exchange import LETTERS
from trisect.views.redistribute import RedistributeRows
from trisect.views.timecut import equal_shares
from trisect.views.trace import trace_of
from trisect_bench._runs import Job, finished

GRAPHS: dict[str, dict[str, Any]] = {
    "community": {"generate": "community", "vertices": 20_000},
    "squirrel": {"name": "squirrel"},
    "ego-twitter": {"name": "ego-twitter"},
    "amazon0601": {"name": "amazon0601"},
}
MODELS = ("gcn", "sage", "gcnii", "resgcn+")
KINDS = ("halo", "redistribute", "pipeline", "hybrid")


def run(
    graphs: Sequence[str] = tuple(GRAPHS),
    models: Sequence[str] = MODELS,
    layers: int = 32,
    hidden: int = 100,
    ranks: Sequence[int] = (8, 64),
    hybrid_parts: int = 2,
    data_dir: str | None = None,
    speed: bool = False,
    classes: int = 10,
    within: float = 0.7,
    rounds: int = 2,
    recompute: bool = False,
) -> dict[str, Any]:
    """Bytes an epoch for each graph, model and layout; with `speed`, seconds an epoch on one and on two ranks; with
    `recompute`, what a deep model holds with and without `layout.recompute`.

    Args:
        ranks: for each of these worlds, all layouts that are possible.
        hybrid_parts: the parts of the hybrid, whose stages are ranks / hybrid_parts.
        classes, within, rounds: of `speed` (see `measure_speed`).
    """
    worlds = {count: layouts_of(count, hybrid_parts, layers) for count in ranks}
    parts = sorted({layout.vertex for cuts in worlds.values() for layout in cuts.values() if layout.spatial == "halo"})
    result: dict[str, Any] = {
        "layers": layers,
        "hidden": hidden,
        "hybrid_parts": hybrid_parts,
        "graphs": {},
        "skipped": {},
    }
    for name in graphs:
        try:
            record = load(GRAPHS[name], data_dir=None if data_dir is None else Path(data_dir))
        except DataError as error:
            result["skipped"][name] = str(error)
            continue
        if not isinstance(record, StaticRecord):
            raise DataError(f"{name} is a timeline; bench layouts measures static graphs.")
        graph = Graph.from_record(record)
        remote = {count: _remote(graph, count) for count in parts}
        rows: dict[str, Any] = {}
        for model in models:
            built = build(model, hidden, 8, layers=layers, hidden=hidden)
            if isinstance(built, Model):
                rows[model] = {str(count): _volumes(built, graph, cuts, remote) for count, cuts in worlds.items()}
        result["graphs"][name] = {
            "vertices": graph.vertices,
            "edges": graph.edges,
            "remote_share": {str(count): rows_read / graph.vertices for count, rows_read in remote.items()},
            "bytes": rows,
        }
    if speed:
        result["speed"] = measure_speed(classes=classes, within=within, rounds=rounds)
    if recompute:
        result["recompute"] = measure_recompute()
    return result


def layouts_of(ranks: int, hybrid_parts: int, layers: int) -> dict[str, Layout]:
    """Give the layouts of so many ranks that a model of so many layers can be cut by."""
    layouts = {
        "halo": Layout(vertex=ranks, spatial="halo"),
        "redistribute": Layout(vertex=ranks, spatial="redistribute"),
    }
    if ranks <= layers:
        layouts["pipeline"] = Layout(layer=ranks, spatial="halo")
    if ranks % hybrid_parts == 0 and 1 < ranks // hybrid_parts <= layers:
        layouts["hybrid"] = Layout(layer=ranks // hybrid_parts, vertex=hybrid_parts, spatial="halo")
    return layouts


def _remote(graph: Graph, parts: int) -> int:
    """Rows that all parts together read from others."""
    if parts == 1:
        return 0
    partition = cut_graph(graph.adjacency, parts)
    owner = torch.empty(graph.vertices, dtype=torch.int64)
    for part in range(parts):
        owner[partition.order[slice(*partition.part(part))]] = part
    return int(quality(graph.adjacency, owner, parts).volume)


def _volumes(model: Model, graph: Graph, layouts: Mapping[str, Layout], remote: Mapping[int, int]) -> dict[str, int]:
    """Bytes of every layout that the model can use; as in a run, the first layer's sum over neighbours is kept."""
    outline = [trace_of(layer, timeline=False) for layer in model.stack]
    summed = all(RedistributeRows.refusal(layer) is None for layer in outline if layer.spatial)
    volumes: dict[str, int] = {}
    for name, layout in layouts.items():
        if layout.spatial == "redistribute" and not summed:
            continue
        plan = make_plan(
            model.stack,
            None,
            layout,
            bounds=stage_bounds(layer_costs(outline, aggregated=outline[0].preaggregates), layout.layer),
            # halos depend on the parts by their remote rows alone, so that equal parts stand for all
            rows=[high - low for low, high in pairwise(equal_shares(graph.vertices, layout.vertex))],
            remote=(remote.get(layout.vertex, 0),),
            aggregated=outline[0].preaggregates,
        )
        volumes[name] = sum(volume(plan, schedule_of(plan)).values())
    return volumes


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
    last epoch that ranks waited for other parts (`vertex`) and stages (`layer`), on average. Last, the limit of the
    machine: two processes that train a graph of half the size each, at the same time.

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
    by_vertex = ("vertex=2,spatial=halo", "vertex=2,spatial=redistribute")
    cuts = ("", *by_vertex, "layer=2,chunks=16", "layer=2,chunks=32")
    runs: dict[str, list[Job]] = {layout or "one rank": [(config, layout)] for layout in cuts}
    runs["two halves apart"] = [(half, "")] * 2  # what cores that share caches and memory allow
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, jobs in runs.items():
            with finished(*jobs) as done:
                measured[name].append(max(map(_measured, done), key=_seconds))
    return {name: min(each, key=_seconds) for name, each in measured.items()}


def measure_recompute(
    vertices: int = 20_000, layers: int = 128, hidden: int = 128, epochs: int = 2
) -> dict[str, dict[str, Any]]:
    """GCNII, deep, on one rank and on two: the most memory of a rank and the seconds of the best epoch, by layout."""
    config: Mapping[str, Any] = {
        "data": {"generate": "community", "vertices": vertices, "degree": 10.0, "features": 64},
        "model": {"name": "gcnii", "layers": layers, "hidden": hidden, "dropout": 0.5},
        "task": "node-classification",
        "train": {"epochs": epochs, "eval_every": 1000, "checkpoint_every": 1000, "threads": 1},
    }
    measured = {}
    for cut in ("", "vertex=2", "layer=2"):
        for layout in (cut, f"{cut},recompute=true".removeprefix(",")):
            with finished((config, layout)) as (run,):
                measured[layout or "one rank"] = _measured(run)
    return measured


def _seconds(measured: Mapping[str, Any]) -> float:
    return float(measured["seconds"])


def _measured(run: RunDirectory) -> dict[str, Any]:
    summary = run.summary() or {}
    waited = {"vertex": 0.0, "layer": 0.0}
    ranks = run.ranks()
    for rank in ranks:
        for event in run.events(rank):
            if event.get("epoch") == summary["epochs"] and not event.get("evaluation"):
                axis = waited_along(event["name"])
                if axis in waited:
                    waited[axis] += event["seconds"] / len(ranks)
    return {
        "seconds": summary["seconds_per_epoch"]["best"],
        "peak_rss_bytes": max(summary["memory"]["peak_rss_bytes"]),
        "waited": waited,
    }


def waited_along(name: str) -> str | None:
    """Give the axis along which an event waited for other ranks; None where it did something else."""
    try:
        action = Action.parse(name)
    except LayoutError:
        return None
    if action.verb is not Verb.WAIT or action.exchange is None:
        return None
    return LETTERS[action.exchange].axis


def show(result: dict[str, Any]) -> None:
    """Print the figures as tables."""
    print(f"GiB an epoch, {result['layers']} layers of {result['hidden']}, hybrids of {result['hybrid_parts']} parts")
    print(f"{'graph':<12} {'model':<8} {'ranks':>5}" + "".join(f" {kind:>12}" for kind in KINDS) + "  halo/pipeline")
    for name, graph in result["graphs"].items():
        for model, worlds in graph["bytes"].items():
            for ranks, sizes in worlds.items():
                cells = (f"{sizes[kind] / 2**30:12.3f}" if kind in sizes else f"{'-':>12}" for kind in KINDS)
                ratio = f"{sizes['halo'] / sizes['pipeline']:15.2f}" if "pipeline" in sizes else f"{'-':>15}"
                print(f"{name:<12} {model:<8} {ranks:>5} " + " ".join(cells) + ratio)
    for name, reason in result["skipped"].items():
        print(f"{name}: left out. {reason}")
    if "speed" in result:
        one = result["speed"]["one rank"]["seconds"]
        for layout, measured in result["speed"].items():
            print(
                f"{layout:<29} {measured['seconds']:7.2f} s an epoch, {one / measured['seconds']:.2f} times one rank of"
                f" one thread; {measured['peak_rss_bytes'] / 2**30:.2f} GiB a rank; waited"
                f" {measured['waited']['vertex']:.2f} s for parts, {measured['waited']['layer']:.2f} s for stages"
            )
    for layout, measured in result.get("recompute", {}).items():
        print(
            f"{layout:<29} {measured['seconds']:7.2f} s an epoch; {measured['peak_rss_bytes'] / 2**30:.2f} GiB a rank"
        )
