"""Accuracy of the stale pipeline: exact training, our recipe for history and the paper's, paired by seed.

Every run is full-batch training of a deep model with exact evaluation; what differs is what a chunk reads of chunks
that are not done yet. The computation is that of the pipeline (`engine: layers` does all chunks of a layer at once,
`engine: chunks` is the pipeline itself on one rank; both give the same numbers). A finished run is kept in `cache`, so
that a long measurement can be continued.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trisect.comm.mesh import connect
from trisect.config import TrainOptions
from trisect.data.load import load
from trisect.data.records import StaticRecord
from trisect.errors import ConfigError, DataError, RunError, unknown
from trisect.graph.graph import Graph
from trisect.layout import Layout
from trisect.layout.history import History
from trisect.nn.base import Model
from trisect.partition import cut_graph
from trisect.partition.order import choose_order
from trisect.shards.graph_files import read_cut
from trisect.tasks import TaskContext, make_task
from trisect.train.fit import model_maker
from trisect.train.loop import Trainer
from trisect.train.ranks import cut_data
from trisect.train.recorders import NoRecorder
from trisect.train.run.checkpoint import write_atomically
from trisect.train.setup import Setup
from trisect_bench._layerwise import LayerwiseProgram

# the smaller graphs first; width and epochs keep the whole grid at about an hour of one core
GRAPHS: dict[str, dict[str, Any]] = {
    "cora": {"data": {"name": "cora"}, "hidden": 32, "epochs": 120},
    "squirrel_filtered": {"data": {"name": "squirrel_filtered"}, "hidden": 32, "epochs": 100, "splits": True},
    "citation": {"data": {"generate": "citation", "vertices": 5000}, "hidden": 32, "epochs": 80},
    "minesweeper": {"data": {"name": "minesweeper"}, "hidden": 16, "epochs": 100, "splits": True},
    "pubmed": {"data": {"name": "pubmed"}, "hidden": 16, "epochs": 60},
    "tolokers": {"data": {"name": "tolokers"}, "hidden": 16, "epochs": 60, "splits": True},
}
MODELS: dict[str, dict[str, Any]] = {
    "gcnii": {"lr": 0.01, "dropout": 0.5},
    "resgcn+": {"lr": 0.003, "dropout": 0.3},
}
TOLERANCE = 0.5
EVALUATIONS = 20
WATCH_ONLY = 1e9  # a margin that no loss exceeds: the guard compares and does nothing


def run(
    graphs: Sequence[str] = tuple(GRAPHS),
    models: Sequence[str] = tuple(MODELS),
    chunks: Sequence[int] = (8, 32),
    recipes: Sequence[str] | Mapping[str, Any] = ("default", "gnnpipe"),
    seeds: int = 3,
    layers: int = 32,
    epochs: int | None = None,
    hidden: int | None = None,
    engine: str = "layers",
    data_dir: str | None = None,
    cache: str = "bench-history",
    minutes: float | None = None,
) -> dict[str, Any]:
    """Train every combination, exact runs first.

    Args:
        recipes: names, or a mapping of names to parts of a recipe ({mine: {scale: 2.0}}).
        seeds: how many; of graphs with several splits, seed s takes split s.
        epochs, hidden: for all graphs, instead of those of each.
        cache: a directory with a file a finished run.
        minutes: begin no further run after so many.
    """
    named: dict[str, Any] = {name: name for name in recipes} if not isinstance(recipes, Mapping) else dict(recipes)
    for name in graphs:
        if name not in GRAPHS:
            raise ConfigError(unknown("graph of bench history:", name, GRAPHS))
    for name in models:
        if name not in MODELS:
            raise ConfigError(unknown("model of bench history:", name, MODELS))
    folder = Path(cache)
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    result: dict[str, Any] = {"layers": layers, "recipes": {}, "runs": [], "skipped": {}, "left": 0}
    parsed = {name: Layout(chunks=2, history=text).recipe for name, text in named.items()}
    result["recipes"] = {name: None if one is None else one.parts() for name, one in parsed.items()}
    for graph in graphs:
        settings = {**GRAPHS[graph], **({} if epochs is None else {"epochs": epochs})}
        settings.update({} if hidden is None else {"hidden": hidden})
        for model in models:
            for seed in range(seeds):
                cases: list[tuple[str, int, History | None]] = [("exact", 1, None)]
                cases += [(name, count, one) for count in chunks for name, one in parsed.items()]
                for name, count, one in cases:
                    case = _case(graph, settings, model, layers, seed, count, one, engine)
                    path = folder / f"{_name(case)}.json"
                    if not path.exists():
                        if minutes is not None and time.monotonic() - begin > 60 * minutes:
                            result["left"] += 1
                            continue
                        try:
                            measured = train_case(case, data_dir)
                        except DataError as error:
                            result["skipped"][graph] = str(error)
                            continue
                        write_atomically(path, json.dumps({"case": case, "result": measured}).encode())
                    measured = json.loads(path.read_text())["result"]
                    measured["diverged"] = measured["diverged"] or diverged(measured["loss"], measured["checks"])
                    row = {"graph": graph, "model": model, "seed": seed, "chunks": count, "recipe": name}
                    result["runs"].append({**row, **{key: case[key] for key in ("hidden", "epochs")}, **measured})
    result["table"] = table(result["runs"])
    return result


def _case(
    graph: str,
    settings: Mapping[str, Any],
    model: str,
    layers: int,
    seed: int,
    chunks: int,
    history: History | None,
    engine: str,
) -> dict[str, Any]:
    data = dict(settings["data"])
    if settings.get("splits"):
        data["split"] = seed
    return {
        "graph": graph,
        "data": data,
        "hidden": settings["hidden"],
        "epochs": settings["epochs"],
        "model": model,
        **MODELS[model],
        "layers": layers,
        "seed": seed,
        "chunks": chunks,
        "history": None if history is None else history.parts(),
        "engine": engine,
    }


def _name(case: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(case, sort_keys=True).encode()).hexdigest()[:12]
    return f"{case['graph']}-{case['model']}-{case['chunks']}-{case['seed']}-{digest}"


def train_case(case: Mapping[str, Any], data_dir: str | None = None) -> dict[str, Any]:
    """One run: its test measure at the best epoch of validation, and the losses."""
    torch.set_num_threads(1)
    record = load(dict(case["data"]), data_dir=None if data_dir is None else Path(data_dir))
    if not isinstance(record, StaticRecord):
        raise DataError(f"{case['graph']} is a timeline; bench history measures static graphs.")
    options = TrainOptions(
        epochs=case["epochs"],
        lr=case["lr"],
        seed=case["seed"],
        eval_every=max(1, case["epochs"] // EVALUATIONS),
        precision=case.get("precision", "float32"),
    )
    history = None if case["history"] is None else History(**case["history"])
    if history is not None and history.guard == 0:
        history = replace(history, guard=10, margin=WATCH_ONLY)
    graph = Graph.from_record(record)
    model = {"layers": case["layers"], "hidden": case["hidden"], "dropout": case["dropout"]}
    maker = model_maker(case["model"], model, case["seed"])
    if case["engine"] != "chunks":
        return _trained(layerwise_setup(graph, maker, case["chunks"], options, history), options)
    with _pipeline(graph, maker, case, options, history) as setup:
        return _trained(setup, options)


def _trained(setup: Setup, options: TrainOptions) -> dict[str, Any]:
    trainer = Trainer(setup, options, NoRecorder())
    start = time.perf_counter()
    try:
        result = trainer.run()
    except RunError as error:
        return {"diverged": str(error), "test": math.nan, "loss": list(trainer.loss), "checks": []}
    measure = setup.task.monitor.partition(".")[2]
    checks = [] if trainer.guard is None else trainer.guard.checks
    return {
        "diverged": None,
        "measure": measure,
        "test": result.metrics["test"][measure],
        "val": result.metrics["val"][measure],
        "best_epoch": result.best_epoch,
        "loss": result.loss,
        "checks": checks,
        "stepped_in": [] if trainer.guard is None else trainer.guard.actions,
        "seconds": round(time.perf_counter() - start, 2),
    }


def diverged(loss: Sequence[float], checks: Sequence[Mapping[str, float]]) -> str | None:
    """Why a run that ended counts as diverged, or None: its exact training loss is half as much again as the stale one,
    or above that of the first epoch.
    """
    if not checks:
        return None
    last = checks[-1]
    if last["exact"] > min(1.5 * last["stale"], loss[0]):
        return f"exact loss {last['exact']:.3g}, stale {last['stale']:.3g} at epoch {last['epoch']}"
    return None


def layerwise_setup(graph: Graph, maker: Any, chunks: int, options: TrainOptions, history: History | None) -> Setup:
    """The model on the graph in partition order, all chunks of a layer at once."""
    order = choose_order(graph)
    graph = graph if order is None else graph.reordered(order)
    partition = cut_graph(graph.adjacency, 1, chunks)
    graph = graph.reordered(partition.order)
    vertices = graph.order
    if vertices is None:
        raise RuntimeError("a reordered graph has an order")
    bound = make_task("node-classification").bind(graph, TaskContext(options.seed, vertices))
    x = graph.features().to(options.dtype)
    model = maker(x.shape[1], bound.channels)
    if not isinstance(model, Model):
        raise ConfigError("bench history needs a static model.")
    model.to(options.dtype)
    values = torch.float64 if options.dtype == torch.float64 else torch.float32
    adjacency = graph.normalised(model.normalisation, self_loops=model.self_loops, dtype=values)
    chunk_of = torch.repeat_interleave(torch.arange(chunks), torch.tensor(partition.starts).diff())
    program = LayerwiseProgram(
        model, bound, options.seed, vertices, x, adjacency, chunk_of, chunks, history if chunks > 1 else None
    )
    return Setup(program, bound, nn.ModuleDict({"model": model}), vertices, 1, False)


@contextmanager
def _pipeline(
    graph: Graph, maker: Any, case: Mapping[str, Any], options: TrainOptions, history: Any
) -> Iterator[Setup]:
    """The pipeline on one rank, whose shards are read where they are needed first and last as long as the run."""
    layout = Layout(chunks=case["chunks"], history="exact" if history is None else history)
    with tempfile.TemporaryDirectory(prefix="trisect-bench-") as folder:
        cut_data(graph, maker, "node-classification", layout, options, Path(folder))
        mesh = connect(layout, torch.device("cpu"))
        yield Setup.of(maker, read_cut(Path(folder)), "node-classification", options, layout, mesh=mesh)


def table(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each graph, model, number of chunks and recipe: points of difference to the exact runs, by seed."""
    exact = {(r["graph"], r["model"], r["seed"]): 100 * r["test"] for r in runs if r["recipe"] == "exact"}
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for one in runs:
        if one["recipe"] != "exact" and (one["graph"], one["model"], one["seed"]) in exact:
            groups.setdefault((one["graph"], one["model"], one["chunks"], one["recipe"]), []).append(one)
    rows = []
    for (graph, model, chunks, name), group in groups.items():
        base = [exact[graph, model, one["seed"]] for one in group]
        differences = [100 * one["test"] - b for one, b in zip(group, base, strict=True)]
        spread = max(base) - min(base)
        mean = statistics.fmean(differences)
        rows.append(
            {
                "graph": graph,
                "model": model,
                "chunks": chunks,
                "recipe": name,
                "seeds": len(group),
                "exact": statistics.fmean(base),
                "spread": spread,
                "difference": mean,
                "differences": differences,
                "within": bool(mean >= -max(TOLERANCE, spread)),
                "within_tolerance": bool(mean >= -TOLERANCE),
                "diverged": sum(one["diverged"] is not None for one in group),
                "guarded": sum(bool(one.get("stepped_in")) for one in group),
            }
        )
    return rows


def show(result: dict[str, Any]) -> None:
    """Print the figures as a table."""
    print(f"{result['layers']} layers; test measure in points, difference to exact training paired by seed")
    sizes = {run["graph"]: f"{run['graph']} {run['hidden']} wide, {run['epochs']} epochs" for run in result["runs"]}
    print("; ".join(sizes.values()))
    print("K chunks; spread: largest less smallest exact run; within: at most 0.5 points or the spread below exact")
    head = f"{'graph':<18} {'model':<8} {'K':>3} {'recipe':<10} {'exact':>6} {'spread':>6} {'difference':>10}  by seed"
    print(head)
    for row in result["table"]:
        verdict = "within" if row["within"] else "OUTSIDE"
        verdict += "" if row["within_tolerance"] or not row["within"] else " the spread"
        notes = f", {row['diverged']} of {row['seeds']} diverged" if row["diverged"] else ""
        notes += f", guard stepped in {row['guarded']} times" if row["guarded"] else ""
        by_seed = " ".join(f"{value:+.2f}" for value in row["differences"])
        print(
            f"{row['graph']:<18} {row['model']:<8} {row['chunks']:>3} {row['recipe']:<10} {row['exact']:6.2f} "
            f"{row['spread']:6.2f} {row['difference']:+10.2f}  {by_seed:<22} {verdict}{notes}"
        )
    for name, reason in result["skipped"].items():
        print(f"{name}: left out. {reason}")
    if result["left"]:
        print(f"{result['left']} runs are left; the same command goes on with them.")
