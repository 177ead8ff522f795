"""What a rank does in a test of the pretend device: it trains on it with the others, and compares with the CPU."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "device"))

import numpy as np
import pretend
import torch
from torch import Tensor

from trisect.data.records import TimelineRecord
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.plan.volume import volume
from trisect.schedule.action import Pass, Verb
from trisect.train.fit import Run, fit
from trisect.train.loop import Trainer
from trisect.train.program import Program

pretend.install()


@cache
def data_of(name: str) -> Graph | Timeline:
    """The graph, or the timeline, of all cases."""
    if name == "graph":
        return Graph.generate("community", vertices=90, seed=1)
    vertices, steps, draw = 40, 9, np.random.default_rng(0)
    sizes = draw.integers(40, 70, steps)
    sizes[2] = 0  # a step without events
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    src = draw.integers(0, vertices, offsets[-1])
    record = TimelineRecord(
        vertices=vertices,
        src=src,
        dst=(src + draw.integers(1, 9, offsets[-1])) % vertices,
        offsets=offsets,
        x=draw.standard_normal((vertices, 5)).astype(np.float32),
        y=(np.arange(vertices)[None, :] // 20 + np.arange(steps)[:, None] // 4) % 3,
        edge_y=(src < vertices // 2).astype(np.int64),
    )
    return Timeline.from_record(record)


@dataclass
class Epoch:
    """What one epoch copied, and what its schedule says, on this rank."""

    transfers: pretend.Transfers
    posts: int
    waits: int
    weights: int
    planned: int
    brought: int = 0
    gradients: dict[str, Tensor] = field(default_factory=dict)


@contextmanager
def watched(spoil: Callable[[Program], None] | None = None) -> Iterator[list[Epoch]]:
    """The epochs that are trained in the context.

    Args:
        spoil: called in each epoch, where the optimiser is about to step.
    """
    finish, train, epochs = Program.finish, Trainer.train_epoch, list[Epoch]()

    def finished(program: Program, **named: Any) -> float:
        epochs[-1].gradients = _gradients(program)
        if spoil is not None:
            spoil(program)
        return finish(program, **named)

    def trained_epoch(trainer: Trainer, number: int) -> float:
        program = trainer.program
        with pretend.counted() as transfers:
            epochs.append(Epoch(transfers, 0, 0, 0, 0))
            loss = train(trainer, number)
            coming = getattr(getattr(program.shard, "matrices", None), "_next", None)
            if coming is not None:
                coming[1].result()
        epoch, schedule = epochs[-1], program._schedule(program._epoch_plan, Pass.TRAIN)
        verbs = [action.verb for action in schedule.ranks[program.mesh.rank]]
        epoch.posts, epoch.waits = verbs.count(Verb.POST), verbs.count(Verb.WAIT)
        epoch.weights = sum(gradient.numel() for gradient in epoch.gradients.values())
        epoch.brought = program.ledger.sent_bytes
        moved = volume(program._epoch_plan, schedule)
        epoch.planned = program.formula_bytes - moved.get(("weights", "reduce"), 0)
        return loss

    Program.finish, Trainer.train_epoch = finished, trained_epoch  # type: ignore[method-assign]
    try:
        yield epochs
    finally:
        Program.finish, Trainer.train_epoch = finish, train  # type: ignore[method-assign]


def _gradients(program: Program) -> dict[str, Tensor]:
    """Those of this rank's layers, looked at without a copy."""
    modules = {"model": program.model, **({} if program.decoder is None else {"decoder": program.decoder})}
    return {
        f"{kind}.{name}": getattr(parameter.grad, "host", parameter.grad).clone()
        for kind, module in modules.items()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }


def trained(case: dict[str, Any], device: str, layout: str, **more: Any) -> Run:
    options = {"epochs": 3, "precision": "float64", "optimiser": "sgd", "lr": 0.05, **case.get("options", {}), **more}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        task = case.get("task", "node-classification")
        return fit(case["model"], data_of(case.get("data", "graph")), task, layout, device=device, **options)


_REFERENCES: dict[str, tuple[Run, list[Epoch]]] = {}


def reference(case: dict[str, Any], layout: str) -> tuple[Run, list[Epoch]]:
    """The same on the CPU; once for all cases that differ in their layout alone."""
    key = repr([case["model"], case.get("data"), case.get("task"), case.get("options"), layout])
    if key not in _REFERENCES:
        with watched() as epochs:
            _REFERENCES[key] = trained(case, "cpu", layout), epochs
    return _REFERENCES[key]


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """The largest relative difference of a tensor of `b`."""
    assert b.keys() <= a.keys()
    worst = 0.0
    for name, value in b.items():
        scale = float(a[name].abs().max().clamp_min(1e-12))
        worst = max(worst, float((value - a[name]).abs().max()) / scale)
    return worst


def _parameters(run: Run) -> dict[str, Tensor]:
    return {name: value.detach().cpu() for name, value in run.result.modules.state_dict().items()}


def _measures(run: Run) -> dict[str, Tensor]:
    return {
        f"{split}.{name}": torch.tensor(value, dtype=torch.float64).nan_to_num()
        for split, measures in run.metrics.items()
        for name, value in measures.items()
        if isinstance(value, int | float)
    }


def fitted(case: dict[str, Any]) -> dict[str, Any]:
    """Three epochs on the pretend device under a layout, against the CPU: in one process, or under the same layout."""
    layout = case["layout"]
    os.environ["TRISECT_MEMORY"] = case.get("memory", "4GiB")
    here, epochs_here = reference(case, layout if case.get("same") else "")
    with watched(_additional_copy if case.get("copies") else None) as epochs:
        there = trained(case, "sim", layout, **case.get("broken", {}))
    last = epochs[-1]
    return {
        "loss": max(abs(a - b) / abs(a) for a, b in zip(here.loss, there.loss, strict=True)),
        "gradients": max(distance(a.gradients, b.gradients) for a, b in zip(epochs_here, epochs, strict=True)),
        "parameters": distance(_parameters(here), _parameters(there)),
        "metrics": distance(_measures(here), _measures(there)),
        "devices": sorted({parameter.device.type for parameter in there.model.parameters()}),
        "communication": there.summary["communication"],
        "posts": last.posts,
        "waits": last.waits,
        "weights": last.weights,
        "planned": last.planned,
        "brought": last.brought,
        **{f"copies_{name}": value for name, value in vars(last.transfers).items()},
    }


def _additional_copy(program: Program) -> None:
    next(program.model.parameters()).detach().cpu()
