"""GNNPipe's table by the planner: seconds and bytes of graph, pipeline and hybrid layouts on 2 hosts of 4 A5000.

The models are made of Trisect's layers so that they multiply and sum up in the order in which GNNPipe's engine does:
its last convolution sums up neighbours before it narrows rows to the classes, and nothing is summed up beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trisect.config import TrainOptions
from trisect.layout import Layout
from trisect.nn.base import Layer, Model
from trisect.nn.conv.convolution import DropoutLayer
from trisect.nn.conv.gcn import GCNLayer
from trisect.nn.conv.sage import SAGELayer
from trisect.nn.models.source import NamedModel
from trisect.plan.cluster import Cluster
from trisect.plan.estimate import Estimate, estimate
from trisect.plan.memory import MemoryModel
from trisect.plan.presets import PRESETS
from trisect.plan.timing import epoch_seconds
from trisect.plan.workload import Workload
from trisect.train.workloads import DescribedData, workload_of_description
from trisect.views.view import View
from trisect_bench._paper_figures import DEPTH, GRAPHS, LAYOUTS, MORE_ROWS, ROWS, STRONG, STRONG_HALO, PaperRow

PRESET = "2x4-a5000"
# Rates of the device, as factors of the preset's, that were fitted (`fit`) to the rows of two of the four models.
CONSTANTS = {"gather": 2.8284, "flops": 0.25, "half": 1.2968}


class _FirstGCN(GCNLayer):
    """A graph convolution that sums up in every epoch, also where it reads the data's features."""

    def forward(self, x: Tensor, g: View) -> Tensor:
        """Return the layer's output, [rows, out_channels]."""
        return super().forward(x.view_as(x), g)


class _LastGCN(GCNLayer):
    """A graph convolution that sums up first, however narrow its output is."""

    def forward(self, x: Tensor, g: View) -> Tensor:
        """Return the layer's output, [rows, out_channels]."""
        return self.after_fused(g.dense(g.aggregate(x), self.weight, **self.fused), x, g)


class _LastSAGE(SAGELayer):
    """The same of GraphSAGE."""

    def forward(self, x: Tensor, g: View) -> Tensor:
        """Return the layer's output, [rows, out_channels]."""
        root = None if self.weight_root is None else g.dense(x, self.weight_root)
        return self.after_fused(g.dense(g.aggregate(x), self.weight, add=root, **self.fused), x, g)


def model_of(name: str, features: int, classes: int, layers: int, hidden: int) -> Any:
    """Give one of GNNPipe's models, without memory for its parameters."""
    if name in ("gcnii", "resgcn+"):
        dropout = {"input_dropout": 0.5} if name == "gcnii" else {}
        return NamedModel(name, {"layers": layers, "hidden": hidden, **dropout}, 0)
    first, kind, last = (_FirstGCN, GCNLayer, _LastGCN) if name == "gcn" else (SAGELayer, SAGELayer, _LastSAGE)
    inner: dict[str, Any] = {"activation": "relu", "dropout": 0.5}
    with torch.device("meta"):
        stack: list[Layer] = [first(features, hidden, **inner)]
        stack += [kind(hidden, hidden, **inner) for _ in range(layers - 2)]
        stack.append(last(hidden, classes))
        if name == "sage":
            return Model([DropoutLayer(features, 0.5), *stack], normalisation="row")
        return Model(stack)


def workload(graph: str, model: str, layers: int = 32, halo: dict[int, float] | None = None) -> Workload:
    """Give a row of the table as a workload."""
    sizes = GRAPHS[graph]
    described = DescribedData(
        vertices=sizes.vertices,
        edges=(sizes.entries - sizes.vertices) // 2,
        features=sizes.features,
        classes=sizes.classes,
        halo=sizes.halo if halo is None else halo,
    )
    made = model_of(model, sizes.features, sizes.classes, layers, sizes.hidden)
    return workload_of_description(made, described, TrainOptions())


def layout_of(kind: str, devices: int = 8) -> Layout:
    """Give the layout that GNNPipe runs: 4 chunks a device; hybrid: pairs of ranks share a stage and its chunks."""
    if kind == "graph":
        return Layout(vertex=devices, spatial="halo" if devices > 1 else "auto")
    if kind == "pipeline":
        return Layout(layer=devices, chunks=4 * devices)
    return Layout(layer=devices // 2, vertex=2, chunks=2 * devices, spatial="halo")


def cluster(gather: float = 1.0, flops: float = 1.0, half: float = 1.0) -> Cluster:
    """Give the preset with three of its rates scaled."""
    preset = PRESETS[PRESET]
    device = replace(
        preset.device,
        gather={width: rate * gather for width, rate in preset.device.gather.items()},
        flops=preset.device.flops * flops,
        half=preset.device.half * half,
    )
    return replace(preset, device=device)


def predict(row: PaperRow, machine: Cluster) -> dict[str, Any]:
    """Give what the planner says of a row, beside what was measured."""
    work = workload(row.graph, row.model)
    memory = MemoryModel(work)
    made = {kind: estimate(work, layout_of(kind), machine, memory) for kind in LAYOUTS}
    return {
        "graph": row.graph,
        "model": row.model,
        "seconds": [total_seconds(made[kind]) for kind in LAYOUTS],
        "paper_seconds": list(row.seconds),
        "gib": [made[kind].total_bytes / 2**30 for kind in LAYOUTS],
        "paper_gib": list(row.gib),
        "winner": min(LAYOUTS, key=lambda kind: total_seconds(made[kind])),
        "paper_winner": row.winner,
    }


def total_seconds(made: Estimate) -> float:
    """Give the seconds of an epoch."""
    return math.nan if made.seconds is None else made.seconds.total


def table(rows: Iterable[PaperRow] = (*ROWS, *MORE_ROWS)) -> list[dict[str, Any]]:
    """Give the table with the constants that were fitted."""
    machine = cluster(**CONSTANTS)
    return [predict(row, machine) for row in rows]


def strong_scaling() -> dict[str, dict[int, float]]:
    """Give the seconds of reddit GCN by the number of GPUs."""
    machine, work = cluster(**CONSTANTS), workload("reddit", "gcn", halo=STRONG_HALO)
    memory = MemoryModel(work)
    return {
        kind: {
            devices: total_seconds(estimate(work, layout_of(kind, devices), machine, memory))
            for devices in (1, 2, 4, 8, 16)
        }
        for kind in STRONG
    }


def depth() -> dict[str, dict[str, dict[int, float]]]:
    """Give the seconds of GCNII on 8 GPUs by the number of layers."""
    machine = cluster(**CONSTANTS)
    result: dict[str, dict[str, dict[int, float]]] = {}
    for graph, curves in DEPTH.items():
        result[graph] = {kind: {} for kind in curves}
        for layers in (8, 16, 32, 64, 128):
            work = workload(graph, "gcnii", layers)
            memory = MemoryModel(work)
            for kind in curves:
                result[graph][kind][layers] = total_seconds(estimate(work, layout_of(kind), machine, memory))
    return result


# Models whose rows the constants are fitted to: the one with the fewest kernels in a layer, and the one with the most.
FITTED = ("gcn", "resgcn+")


def fit(rounds: int = 2) -> dict[str, float]:
    """Find the constants for which the logarithms of predicted and measured seconds differ least.

    An epoch is about linear in the time of an operation, of a gathered byte and of half a layer. Its slopes are found
    by the simulator, the constants on a grid of factors of 2^(1/8) between a quarter and eight times the preset's; the
    second round begins where the first ended.
    """
    rows = [row for row in ROWS if row.model in FITTED]
    cases = []
    for row in rows:
        work = workload(row.graph, row.model)
        cases += [(work, work.plan(layout_of(kind)), mine) for kind, mine in zip(LAYOUTS, row.seconds, strict=True)]
    paper = np.array([seconds for _, _, seconds in cases])

    def seconds(values: dict[str, float]) -> np.ndarray[Any, Any]:
        machine = cluster(**values)
        return np.array([epoch_seconds(work, plan, machine).total for work, plan, _ in cases])

    # what time is linear in: the inverse of a rate, and the overhead itself
    powers = {"gather": -1.0, "flops": -1.0, "half": 1.0}
    factors = [2.0 ** (k / 8) for k in range(-16, 25)]
    chosen = dict.fromkeys(CONSTANTS, 1.0)
    for _ in range(rounds):
        base = seconds(chosen)
        slopes = {}
        for name, power in powers.items():
            there = {**chosen, name: chosen[name] * 2.0}
            slopes[name] = (seconds(there) - base) / (there[name] ** power - chosen[name] ** power)
        losses = {}
        for values in product(factors, repeat=len(powers)):
            trial = dict(zip(powers, values, strict=True))
            moved = sum(slopes[name] * (trial[name] ** power - chosen[name] ** power) for name, power in powers.items())
            losses[values] = float(np.abs(np.log(np.maximum(base + moved, 1e-6) / paper)).sum())
        best = min(losses, key=lambda values: losses[values])
        chosen = dict(zip(powers, best, strict=True))
    return chosen
