"""A full-graph epoch of GCN, SAGE, GCNII and, with features of edges, GATv2: Trisect's trainer, PyG, and plain torch.

Forward, loss, backward and Adam step on an R-MAT graph. Each candidate has its own process, turns are interleaved.
PyG is measured in several forms, as a user runs it and with torch's allocator asking for huge pages
(THP_MEM_ALLOC_ENABLE=1); the fastest counts. GATv2 has sizes of its own, since PyG keeps several numbers for each edge
and feature, and does not enter the means. `pyg-gcn` and `pyg-sage` are PyG's own model objects, `GCN` and `GraphSAGE`,
run by plain PyG and by `trisect.parallelize`; they have means of their own where they are asked for alone.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

from trisect.errors import RunError
from trisect_bench._harness import Candidate, Timing, geometric_mean, race
from trisect_bench._pyg_objects import KINDS

MODELS = ("gcn", "sage", "gcnii", "gatv2")
EDGE_SIZES = {"vertices": 100_000, "edges": 1_000_000, "hidden": 64, "layers": 2, "heads": 8, "edge_features": 8}
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
_HERE = "trisect_bench.epoch:trisect"
_PEERS = "trisect_bench._static_peers"
_OBJECTS = "trisect_bench._pyg_objects"


def trisect(model: str, order: str = "auto", heads: int | None = None, **sizes: Any) -> Callable[[], float]:
    """One epoch of Trisect's trainer, without evaluation and files."""
    from trisect.config import TrainOptions
    from trisect.nn.models.registry import build
    from trisect.train.loop import Trainer
    from trisect.train.recorders import NoRecorder
    from trisect.train.setup import Setup
    from trisect_bench._static_graph import problem

    data = problem(model, **sizes)
    chosen: dict[str, Any] = {"layers": data.layers, "hidden": data.hidden, "dropout": data.dropout}
    if heads is not None:
        chosen.update(heads=heads, edge_channels=data.graph.edge_channels)
    network = build(model, data.x.shape[1], data.classes, **chosen)
    options = TrainOptions(epochs=1_000_000, lr=data.lr, order=order)  # type: ignore[arg-type]
    trainer = Trainer(Setup.of(network, data.graph, "node-classification", options), options, NoRecorder())
    number = 0

    def epoch() -> float:
        nonlocal number
        number += 1
        return trainer.train_epoch(number)

    return epoch


def run(
    models: Sequence[str] = MODELS,
    rounds: int = 5,
    threads: int = 2,
    forms: Sequence[str] | None = None,
    **sizes: Any,
) -> dict[str, Any]:
    """Measure; `sizes` are those of `_static_graph.problem` (vertices, edges, features, hidden, layers, …).

    Args:
        forms: in which forms PyG gets the graph; by default all that are not known to be many times slower.
    """
    result: dict[str, Any] = {"threads": threads, "rounds": rounds, "sizes": sizes, "models": {}}
    for model in models:
        timings = race(_candidates(model, forms, sizes), rounds=rounds, threads=threads, report=print)
        if "trisect" not in timings:
            raise RunError(f"Trisect itself could not run {model}; the line above says why.")
        result["models"][model] = {name: timing.to_json() for name, timing in timings.items()}
        result["models"][model].update(_compared(timings))
    summed = [model for model in models if model not in ("gatv2", *KINDS)] or models
    for key in ("speedup", "speedup_huge_pages", "speedup_plain", "memory_share"):
        values = [result["models"][model][key] for model in summed if result["models"][model].get(key) is not None]
        result[key] = geometric_mean(values) if len(values) == len(summed) else None
    return result


def _candidates(model: str, forms: Sequence[str] | None, sizes: dict[str, Any]) -> list[Candidate]:
    arguments = {"model": model, **sizes}
    if model in KINDS:
        forms = ("edge_index", "csr") if forms is None else forms
        plain = [Candidate(f"pyg {form}", f"{_OBJECTS}:plain", {**arguments, "form": form}) for form in forms]
        huge = [Candidate(f"{c.name}, huge pages", c.factory, c.arguments, HUGE_PAGES) for c in plain]
        return [Candidate("trisect", f"{_OBJECTS}:trisect", arguments), *plain, *huge]
    if model == "gatv2":
        arguments = {**EDGE_SIZES, **arguments}
        peers = [
            Candidate("pyg edge_index", f"{_PEERS}:pyg_edges", arguments),
            Candidate("pyg edge_index, huge pages", f"{_PEERS}:pyg_edges", arguments, HUGE_PAGES),
        ]
        there = importlib.util.find_spec("torch_geometric") is not None
        return [Candidate("trisect", _HERE, arguments), *(peers if there else [])]
    candidates = [Candidate("trisect", _HERE, arguments), Candidate("torch", f"{_PEERS}:plain", arguments)]
    if importlib.util.find_spec("torch_geometric") is None:
        return candidates
    if forms is None:
        forms = ["csr", *(["csr-sum"] if model == "sage" else [])]
        forms += ["sparse"] if importlib.util.find_spec("torch_sparse") is not None else []
    for form in forms:
        with_form = {**arguments, "form": form}
        candidates.append(Candidate(f"pyg {form}", f"{_PEERS}:pyg", with_form))
        candidates.append(Candidate(f"pyg {form}, huge pages", f"{_PEERS}:pyg", with_form, HUGE_PAGES))
    return candidates


def _compared(timings: dict[str, Timing]) -> dict[str, float | None]:
    """How many times faster than the fastest of each kind, by the best turns; and the memory against PyG's smallest."""
    ours = timings["trisect"]
    huge = {name: timing for name, timing in timings.items() if name.endswith("huge pages")}
    usual = {name: timing for name, timing in timings.items() if name.startswith("pyg") and name not in huge}
    pyg = [*usual.values(), *huge.values()]
    return {
        "speedup": min(timing.best for timing in usual.values()) / ours.best if usual else None,
        "speedup_median": min(timing.median for timing in usual.values()) / ours.median if usual else None,
        "speedup_huge_pages": min(timing.best for timing in huge.values()) / ours.best if huge else None,
        "speedup_plain": timings["torch"].best / ours.best if "torch" in timings else None,
        "memory_share": ours.peak_rss_bytes / min(timing.peak_rss_bytes for timing in pyg) if pyg else None,
    }


def show(result: dict[str, Any]) -> None:
    """Print the figures as a table."""
    print(f"{'model':<7} {'candidate':<24} {'best s':>8} {'median s':>9} {'peak GiB':>9} {'times ours':>11}")
    for model, candidates in result["models"].items():
        ours = candidates["trisect"]["best"]
        for name, timing in candidates.items():
            if isinstance(timing, dict):
                memory = timing["peak_rss_bytes"] / 2**30
                ratio = timing["best"] / ours
                print(
                    f"{model:<7} {name:<24} {timing['best']:8.2f} {timing['median']:9.2f} {memory:9.2f} {ratio:11.2f}"
                )
    for key, text in (
        ("speedup", "faster than PyG's fastest form"),
        ("speedup_huge_pages", "faster than PyG with huge pages"),
        ("speedup_plain", "faster than plain torch"),
    ):
        if result[key] is not None:
            print(f"geometric mean: {result[key]:.2f} times {text}")
    if result["memory_share"] is not None:
        print(f"geometric mean: {100 * result['memory_share']:.0f} % of the memory of PyG's smallest form")
