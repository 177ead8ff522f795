"""Seconds of training to a validation accuracy: steps of an epoch, of batches, and PyG with METIS cluster batches.

GraphSAGE of three layers with layer norm and dropout, and Adam. The full graph, which makes fewer steps, has a larger
learning rate than batches, which all have the same. Epochs are timed without evaluation and without the cut of the
graph, in wall seconds and in seconds of the processor, which other work on the machine disturbs less. Medians over
seeds.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import trisect
from trisect.data.load import load
from trisect.errors import ConfigError, unknown
from trisect.graph.graph import Graph
from trisect.nn.models.registry import build
from trisect_bench import _cluster_batches

GRAPHS: dict[str, dict[str, Any]] = {
    "pubmed": {"data": {"name": "pubmed"}, "hidden": 256, "target": 0.88},
    "community": {
        "data": {"generate": "community", "vertices": 100_000, "degree": 10.0, "classes": 16, "features": 64},
        "hidden": 128,
        "target": 0.97,
    },
}
CANDIDATES = ("epoch", "history", "drop", "pyg")
_LAYERS, _DROPOUT = 3, 0.5


def run(
    graphs: Sequence[str] = tuple(GRAPHS),
    candidates: Sequence[str] = CANDIDATES,
    seeds: int = 3,
    batches: int = 10,
    clusters: int | None = None,
    epochs: int = 100,
    threads: int = 1,
    target: float | None = None,
    lr: float = 0.003,
    lr_epoch: float = 0.01,
    directory: str | None = None,
) -> dict[str, Any]:
    """Measure.

    Args:
        graphs: of `GRAPHS`; `directory` has named ones.
        candidates: of `epoch` (full graph), `history` and `drop` (steps of batches), and `pyg`.
        batches: of an epoch; `clusters` of which they are drawn, by default as many.
        epochs: after which a run that has not come to the target ends.
        target: the validation accuracy; by default that of the graph.
        lr: of batches; `lr_epoch` of the full graph.
    """
    torch.set_num_threads(threads)
    clusters = batches if clusters is None else clusters
    result: dict[str, Any] = {"seeds": seeds, "batches": batches, "clusters": clusters, "epochs": epochs}
    result |= {"threads": threads, "lr": lr, "lr_epoch": lr_epoch, "graphs": {}}
    for name in graphs:
        if name not in GRAPHS:
            raise ConfigError(unknown("graph", name, GRAPHS))
        chosen = {**GRAPHS[name], **({} if target is None else {"target": target})}
        graph, found = _graph(chosen["data"], directory), dict[str, list[dict[str, Any]]]()
        for seed in range(seeds):
            for candidate in candidates:
                if candidate == "pyg" and importlib.util.find_spec("torch_geometric") is None:
                    continue
                rate = lr_epoch if candidate == "epoch" else lr
                one = _run(candidate, graph, chosen, seed, rate, batches=batches, clusters=clusters, epochs=epochs)
                found.setdefault(candidate, []).append(one)
                print(f"{name} {candidate} seed {seed}: {one}", flush=True)
        result["graphs"][name] = {
            "target": chosen["target"],
            "candidates": {candidate: _median(runs) for candidate, runs in found.items()},
        }
    return result


def _graph(data: dict[str, Any], directory: str | None) -> Graph:
    """Return a graph whose vertices are split 60/20/20 by chance, the same for all candidates and seeds."""
    graph = Graph.from_record(load(data, data_dir=directory))  # type: ignore[arg-type]
    order = torch.randperm(graph.vertices, generator=torch.Generator().manual_seed(0))
    splits, first = {}, 0
    for name, share in (("train", 0.6), ("val", 0.2), ("test", 0.2)):
        last = first + int(share * graph.vertices)
        splits[name] = torch.zeros(graph.vertices, dtype=torch.bool).index_fill(0, order[first:last], value=True)
        first = last
    return Graph(graph.adjacency, graph.x, graph.y, splits)


def _run(candidate: str, graph: Graph, chosen: dict[str, Any], seed: int, lr: float, **sizes: int) -> dict[str, Any]:
    """Train until the target is reached; return seconds, epochs and accuracies."""
    epochs = sizes.pop("epochs")
    more: dict[str, Any] = {"layers": _LAYERS, "lr": lr, "p": _DROPOUT, "seed": seed, **sizes}
    if candidate == "pyg":
        epoch, accuracy = _cluster_batches.trained(graph, chosen["hidden"], **more)
    else:
        epoch, accuracy = _trained(graph, chosen["hidden"], candidate=candidate, **more)
    wall = processor = 0.0
    done, best = 0, 0.0
    while done < epochs and best < chosen["target"]:
        begin, began = time.perf_counter(), time.process_time()
        epoch()
        wall, processor, done = wall + time.perf_counter() - begin, processor + time.process_time() - began, done + 1
        best = max(best, accuracy("val"))
    return {
        "reached": best >= chosen["target"],
        "seconds": round(wall, 3),
        "processor_seconds": round(processor, 3),
        "epochs": done,
        "val": round(best, 4),
        "test": round(accuracy("test"), 4),
    }


def _trained(
    graph: Graph,
    hidden: int,
    *,
    candidate: str,
    layers: int,
    batches: int,
    clusters: int,
    lr: float,
    p: float,
    seed: int,
) -> tuple[Callable[[], None], Callable[[str], float]]:
    """Return an epoch of training with Trisect, and the accuracy on a split."""
    y = graph.y
    assert y is not None
    shape: dict[str, Any] = {"layers": layers, "hidden": hidden, "norm": "layer", "dropout": p}
    model = build("sage", graph.features().shape[1], int(y.max()) + 1, seed=seed, **shape)
    steps: dict[str, Any] = {} if candidate == "epoch" else {"step": "chunk", "batches": batches, "outside": candidate}
    layout = f"chunks={clusters}" if steps and clusters > 1 else ""
    part = trisect.parallelize(model, graph, layout, seed=seed, **steps)
    optimizer, number = torch.optim.Adam(part.parameters(), lr=lr, fused=True), 0

    def loss(out: Tensor, rows: Any) -> Tensor:
        losses = functional.cross_entropy(out[rows.train], rows.y[rows.train], reduction="none")
        return losses.sum() / int(rows.total("train"))

    def epoch() -> None:
        nonlocal number
        number += 1
        part.model.train()
        for batch in part.batches(number) if steps else (None,):
            part.step(loss, batch)
            optimizer.step()
            optimizer.zero_grad()

    def accuracy(split: str) -> float:
        def right(out: Tensor, rows: Any) -> dict[str, float]:
            mask = getattr(rows, split)
            return {"right": float((out[mask].argmax(1) == rows.y[mask]).sum())}

        return part.evaluate(right)["right"] / part.rows.total(split)

    return epoch, accuracy


def _median(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    keys = ("seconds", "processor_seconds", "epochs", "val", "test")
    return {"reached": sum(run["reached"] for run in runs)} | {
        key: statistics.median(run[key] for run in runs) for key in keys
    }


def show(result: dict[str, Any]) -> None:
    """Print the figures as a table."""
    print(f"{result['batches']} batches of {result['clusters']} clusters, medians of {result['seeds']} seeds")
    print(f"{'graph':<10} {'candidate':<10} {'reached':>8} {'seconds':>8} {'processor':>10} {'epochs':>7} {'test':>7}")
    for name, graph in result["graphs"].items():
        for candidate, one in graph["candidates"].items():
            print(
                f"{name:<10} {candidate:<10} {one['reached']:>8} {one['seconds']:>8.2f}"
                f" {one['processor_seconds']:>10.2f} {one['epochs']:>7} {one['test']:>7.4f}"
            )
