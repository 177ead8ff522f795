"""summary.json: a whole run in one object, with the same keys under every layout and from `fit`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from trisect import __version__
from trisect.layout import Layout
from trisect.tasks import SPLITS
from trisect.train.loop import Result


def summarise(
    result: Result,
    layout: Layout,
    *,
    parameters: int,
    partition: Mapping[str, Any] | None = None,
    expected: Mapping[str, Any] | None = None,
    seconds: Iterable[float] | None = None,
) -> dict[str, Any]:
    """Put a finished run into one object.

    Args:
        layout: as it was run.
        parameters: how many numbers were trained, on all ranks together.
        partition: the quality of the cut; None for one rank.
        expected: what the planner said of the run (`Estimate.plain`); None where it said nothing.
        seconds: of all epochs, a resumed run's earlier ones included; None: those of this process.
    """
    return {
        "version": __version__,
        "layout": layout.plain(),
        "world": layout.world,
        "epochs": result.epochs,
        "stopped_early": result.stopped_early,
        "seconds_per_epoch": seconds_per_epoch(result.seconds if seconds is None else seconds),
        "loss": result.loss,
        "metrics": {split: result.metrics.get(split, {}) for split in SPLITS},
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
