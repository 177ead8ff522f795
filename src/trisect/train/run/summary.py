"""summary.json: a whole run in one object, with the same keys under every layout and from `fit`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from trisect.layout import Layout
from trisect.tasks import SPLITS
from trisect.train.loop import Result
from trisect.version import __version__


def summarise(
    result: Result,
    layout: Layout,
    *,
    parameters: int,
    baselines: Mapping[str, Any] | None = None,
    partition: Mapping[str, Any] | None = None,
    expected: Mapping[str, Any] | None = None,
    seconds: Iterable[float] | None = None,
    restarts: int = 0,
) -> dict[str, Any]:
    """Put a finished run into one object.

    Args:
        layout: as it was run.
        parameters: how many numbers were trained, on all ranks together.
        baselines: what simple rules reach on the same pairs: split → rule → measures; empty where the task has none.
        partition: the quality of the cut; None for one rank.
        expected: what the planner said of the run (`Estimate.plain`); None where it said nothing.
        seconds: of all epochs, a resumed run's earlier ones included; None: those of this process.
        restarts: how often the run was started again by itself.
    """
    return {
        "version": __version__,
        "layout": {
            **layout.plain(),
            "history": layout.history if layout.history == "exact" else layout.history.parts(),
        },
        "world": layout.world,
        "epochs": result.epochs,
        "stopped_early": result.stopped_early,
        "restarts": restarts,
        "seconds_per_epoch": seconds_per_epoch(result.seconds if seconds is None else seconds),
        "loss": result.loss,
        "metrics": {split: result.metrics.get(split, {}) for split in SPLITS},
        "baselines": dict(baselines or {}),
        "monitor": result.monitor,
        "best_epoch": result.best_epoch,
        "parameters": parameters,
        "communication": result.communication,
        "transfer": result.transfer,
        "memory": result.memory,
        "staleness": result.staleness,
        "partition": partition if layout.world > 1 else None,
        "plan": {
            "seconds_per_epoch": None if expected is None else expected["seconds_per_epoch"],
            "bytes_per_epoch": result.communication["formula_bytes_per_epoch"],
            "memory_bytes": None if expected is None else expected["memory_bytes"],
        },
    }


def seconds_per_epoch(seconds: Iterable[float]) -> dict[str, float | None]:
    """Give the best and the median; None where no epoch was run."""
    finite = [value for value in seconds if math.isfinite(value)]
    if not finite:
        return {"best": None, "median": None}
    return {"best": min(finite), "median": statistics.median(finite)}


def compare_with_rules(summary: Mapping[str, Any]) -> str | None:
    """Say whether a simple rule is ahead of the model on test (on val where there is no test), and in which measures;
    None where there are no rules.
    """
    for split in ("test", "val"):
        own = summary["metrics"].get(split) or {}
        rules = (summary.get("baselines") or {}).get(split) or {}
        if own and any(rules.values()):
            break
    else:
        return None
    ahead: list[str] = []
    behind: list[str] = []
    for measure in next(filter(None, rules.values())):
        if not isinstance(own.get(measure), (int, float)):
            continue
        values = {rule: _finite(measures.get(measure)) for rule, measures in rules.items()}
        rule = max(values, key=lambda name: values[name])
        if values[rule] == -math.inf:
            continue
        told = f"{rule} has {split} {measure} {values[rule]:.3f}, the model {own[measure]:.3f}"
        (ahead if values[rule] > own[measure] else behind).append(told)
    if not ahead and not behind:
        return None
    if ahead:
        return f"A simple rule is ahead of the model: {'; '.join(ahead)}. Try task.memory, or a longer one."
    return f"The model is ahead of every simple rule: {'; '.join(behind)}."


def _finite(value: float | None) -> float:
    """Give a measure, or less than any where there is none."""
    return -math.inf if value is None or math.isnan(value) else value
