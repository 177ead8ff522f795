"""summary.json: a whole run in one object, with the same keys under every layout and from `fit`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from trisect.layout import Layout
from trisect.tasks import SPLITS
from trisect.tasks.metrics import LOWER_IS_BETTER
from trisect.tasks.rules.links import RULES as LINK_RULES
from trisect.train.loop import Result
from trisect.train.rules import is_number, ranked_rules, spoken
from trisect.version import __version__

_CLOSE, _CLOSE_TO_ONE = 0.001, 0.01  # the model and a rule are level: of the value, of what is missing to 1


def summarise(
    result: Result,
    layout: Layout,
    *,
    parameters: int | None,
    baselines: Mapping[str, Any] | None = None,
    partition: Mapping[str, Any] | None = None,
    expected: Mapping[str, Any] | None = None,
    seconds: Iterable[float] | None = None,
    restarts: int = 0,
    stopped: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Put a run into one object.

    Args:
        layout: as it was run.
        parameters: how many numbers were trained, on all ranks together.
        baselines: what simple rules reach on val and test: split → rule → measures; empty where the task has none.
        partition: the quality of the cut; None for one rank.
        expected: what the planner said of the run (`Estimate.plain`); None where it said nothing.
        seconds: of all epochs, a resumed run's earlier ones included; None: those of this process.
        restarts: how often the run was started again by itself.
        stopped: of a run that was stopped, after which `epoch` of how many (`of`), by which `signal`, and the epoch of
            its newest `checkpoint`; None for one that has ended.
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
        "stopped": None if stopped is None else dict(stopped),
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


def describe_stop(summary: Mapping[str, Any]) -> str | None:
    """Return in words that a run was stopped, after how many epochs, and what was not measured; None: it was not."""
    stopped = summary.get("stopped")
    if stopped is None:
        return None
    signal = {"SIGINT": " by the user", "SIGTERM": " by SIGTERM"}.get(str(stopped.get("signal")), "")
    said = f"Stopped{signal} after {stopped['epoch']:,} of {stopped['of']:,} epochs"
    checkpoint = stopped.get("checkpoint")
    said += (
        "; there is no checkpoint." if checkpoint is None else f"; the newest checkpoint is of epoch {checkpoint:,}."
    )
    unknown = [split for split in SPLITS if not summary["metrics"].get(split)]
    if len(unknown) == len(SPLITS):
        return f"{said} Nothing was evaluated yet."
    if summary.get("best_epoch") is not None:
        said += f" Measures are those of epoch {summary['best_epoch']}, the best so far."
    return f"{said} Not measured: {', '.join(unknown)}." if unknown else said


def seconds_per_epoch(seconds: Iterable[float]) -> dict[str, float | None]:
    """Give the best and the median; None where no epoch was run."""
    finite = [value for value in seconds if math.isfinite(value)]
    if not finite:
        return {"best": None, "median": None}
    return {"best": min(finite), "median": statistics.median(finite)}


def is_undefined(measures: Mapping[str, Any], monitor: str) -> bool:
    """Whether the monitored measure, such as `val.auc`, has no value: no epoch is the best, and the latest is kept."""
    split, _, name = monitor.partition(".")
    return (measures.get(split) or {}).get(name, 0) is None


def compare_with_rules(summary: Mapping[str, Any]) -> str | None:
    """Return a sentence on whether the best simple rule is ahead of the model, and by how much.

    It goes by the monitored measure on test, or on val where there is no test. None where there are no rules.

    Values are level that differ by at most 0.1 % of the larger one; where 1 is the best, as of accuracy and AUC, also
    by at most 1 % of what the better one lacks of it, so that 0.999 is not level with 0.9999.
    """
    monitored = str(summary.get("monitor")).rpartition(".")[2]
    rules = summary.get("baselines") or {}
    for split in ("test", "val"):
        own = summary["metrics"].get(split) or {}
        common = (name for measures in (rules.get(split) or {}).values() for name in measures)
        for measure in (monitored, *common):
            rule, best = next(ranked_rules(rules, f"{split}.{measure}"), ("", math.nan))
            if rule and is_number(own.get(measure)):
                return _verdict(f"{split} {measure}", spoken(rule), best, own[measure], measure in LOWER_IS_BETTER)
    return None


def _verdict(what: str, rule: str, best: float, own: float, lower: bool) -> str:
    apart, largest = abs(own - best), max(abs(own), abs(best))
    close = _CLOSE * largest if lower else min(_CLOSE * largest, _CLOSE_TO_ONE * abs(1 - max(own, best)))
    level = apart <= close
    digits = 4 if level else max(4, 1 + math.ceil(math.log10(largest / apart)))
    shown = f"{rule} has {what} {_shown(best, digits)}, the model {_shown(own, digits)}"
    if level:
        return f"The model is level with the best simple rule: {shown}."
    shown += f", {_shown(apart, 3)} {'less' if own < best else 'more'}"
    if (best < own) != lower:
        return f"The model is ahead of every simple rule: {shown}."
    remedy = " Try more epochs, task.memory, or a longer one." if rule.replace(" ", "_") in LINK_RULES else ""
    return f"A simple rule is ahead of the model: {shown}.{remedy}"


def _shown(value: float, digits: int) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.{digits}g}"
