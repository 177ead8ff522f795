"""What a rank does in a test of the pretend device: it trains on it with the others, and compares with the CPU."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "device"))

import pretend
import torch
from torch import Tensor

from trisect.graph.graph import Graph
from trisect.graph.timeline import Timeline
from trisect.train.fit import Run, fit

pretend.install()
_DATA: dict[str, Graph | Timeline] = {}


def data_of(name: str) -> Graph | Timeline:
    """The graph, or the timeline, of all cases."""
    if not _DATA:
        _DATA["graph"] = Graph.generate("community", vertices=90, seed=1)
        timeline = Timeline.generate("evolving", vertices=40, steps=9, seed=1)
        _DATA["timeline"] = timeline
        classes = torch.arange(40)[None, :] // 20 + torch.arange(9)[:, None] // 4
        _DATA["labelled"] = replace(timeline, y=classes % 3)
    return _DATA[name]


def trained(case: dict[str, Any], device: str, layout: str, **more: Any) -> Run:
    name = case.get("data", "graph")
    task = "link-prediction" if name == "timeline" else "node-classification"
    options = {"epochs": 3, "precision": "float64", "optimiser": "sgd", "lr": 0.05, **case.get("options", {}), **more}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit(case["model"], data_of(name), task, layout, device=device, **options)


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """The largest relative difference of a parameter."""
    assert a.keys() == b.keys()
    worst = 0.0
    for name, value in a.items():
        scale = float(value.abs().max().clamp_min(1e-12))
        worst = max(worst, float((value - b[name]).abs().max()) / scale)
    return worst


def _parameters(run: Run) -> dict[str, Tensor]:
    return {name: value.detach().cpu() for name, value in run.result.modules.state_dict().items()}


def fitted(case: dict[str, Any]) -> dict[str, Any]:
    """Three epochs on the pretend device under a layout, against the CPU: in one process, or under the same layout."""
    layout = case["layout"]
    here = trained(case, "cpu", layout if case.get("same") else "")
    with pretend.counted() as transfers:
        there = trained(case, case.get("device", "sim"), layout, **case.get("broken", {}))
    losses = zip(here.loss, there.loss, strict=True)
    return {
        "loss": max(abs(a - b) / abs(a) for a, b in losses),
        "parameters": distance(_parameters(here), _parameters(there)),
        "metrics": abs(here.metrics["test"]["loss"] - there.metrics["test"]["loss"]),
        "devices": sorted({parameter.device.type for parameter in there.model.parameters()}),
        "to_host": len(transfers.to_host),
        "to_device": len(transfers.to_device),
        "lists": transfers.lists,
        "bytes": there.summary["communication"],
        "torch": torch.__version__,
    }
