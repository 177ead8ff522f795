"""What a run was expected to cost beside what it did: rows of predicted, measured and error; and the planned epoch.

All of it is read from plan.json and summary.json, which may be another's: what is no number is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trisect.plan.cluster import origin_of
from trisect.report.markup import Markup, note, table, tag
from trisect.report.quantities import seconds, size
from trisect.report.run_view import RunView

# Ranks that have a row each; of more, the one that takes most has one.
_RANKS = 8


@dataclass(frozen=True)
class Compared:
    """Something that was predicted and measured.

    Attributes:
        unit: what both are counted in.
        exact: whether the prediction is a formula that the run must meet, and no estimate.
    """

    name: str
    unit: Literal["seconds", "bytes"]
    predicted: float
    measured: float
    exact: bool = False

    @property
    def error(self) -> float | None:
        """Give by which share the prediction lies above what was measured; None where nothing was."""
        if self.measured == 0:
            return 0.0 if self.predicted == 0 else None
        return self.predicted / self.measured - 1.0


def compare(plan: Mapping[str, Any], summary: Mapping[str, Any]) -> list[Compared]:
    """Give seconds and bytes of an epoch and the memory of each rank, predicted and measured.

    Args:
        plan: of plan.json.
        summary: of summary.json; empty where the run has not ended, and then nothing can be compared.
    """
    expected = _inner(plan, "expected")
    median = _inner(summary, "seconds_per_epoch").get("median")
    sent, exact = _inner(summary, "communication").get("bytes_per_epoch"), expected.get("bytes_are_exact") is True
    rows = [
        *_compared("Time of an epoch", "seconds", expected.get("seconds_per_epoch"), median),
        *_compared("Sent an epoch", "bytes", expected.get("bytes_per_epoch"), sent, exact=exact),
    ]
    needed, peaks = expected.get("memory_by_rank"), _inner(summary, "memory").get("peak_rss_bytes")
    if isinstance(needed, list) and isinstance(peaks, list) and len(needed) == len(peaks):
        pairs = [(f"Peak memory of rank {rank}", *pair) for rank, pair in enumerate(zip(needed, peaks, strict=True))]
        pairs = [(name, a, b) for name, a, b in pairs if _number(a) is not None and _number(b) is not None]
        if len(pairs) > _RANKS:
            pairs = [max(pairs, key=lambda pair: float(pair[2]))]
        rows += [row for name, a, b in pairs for row in _compared(name, "bytes", a, b)]
    return rows


def _compared(
    name: str, unit: Literal["seconds", "bytes"], predicted: Any, measured: Any, *, exact: bool = False
) -> list[Compared]:
    a, b = _number(predicted), _number(measured)
    return [] if a is None or b is None else [Compared(name, unit, a, b, exact)]


def _number(value: Any) -> float | None:
    fine = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if fine and math.isfinite(value) else None


def _inner(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = values.get(key)
    return inner if isinstance(inner, Mapping) else {}


def planned_spans(plan: Mapping[str, Any]) -> list[list[tuple[str, float, float]]]:
    """Give the planned epoch: of each rank (action, start, seconds); empty where plan.json has none."""
    schedule = plan.get("schedule")
    if not isinstance(schedule, list):
        return []
    ranks = []
    for rank in schedule:
        spans = []
        for entry in rank if isinstance(rank, list) else []:
            words = entry.split() if isinstance(entry, str) else []
            try:
                name, start, took = words[0], float(words[1]), float(words[2])
            except (IndexError, ValueError):
                continue
            if math.isfinite(start) and 0 <= start < 1e9 and 0 <= took < 1e9:
                spans.append((name, start, took))
        ranks.append(spans)
    return ranks if any(ranks) else []


def rests_on(plan: Mapping[str, Any]) -> str:
    """Say in a sentence where the rates of the prediction come from."""
    cluster = _inner(_inner(plan, "expected"), "cluster")
    return origin_of(str(cluster.get("name", "this machine")), str(cluster.get("source"))) if cluster else ""


def predictions(run: RunView) -> Markup | None:
    """Give the table predicted | measured | error; nothing where there is nothing to compare."""
    rows = compare(run.plan.mapping(), run.summary.mapping())
    if not rows:
        return None
    cells = []
    for row in rows:
        show = seconds if row.unit == "seconds" else size
        error = "–" if row.error is None else "none" if row.error == 0 else f"{row.error:+.1%}"
        cells.append([row.name, show(row.predicted), show(row.measured), error])
    return tag(
        "div",
        tag("h3", "Predicted and measured"),
        table(["", "predicted", "measured", "error"], cells, caption="Predicted and measured"),
        note(
            "The planner predicted this before the first epoch. An error above zero means that it expected more than"
            f" was measured. {rests_on(run.plan.mapping())}"
        ),
        class_="card",
    )
