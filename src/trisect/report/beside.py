"""What stands beside the figures of a run: simple rules on the same pairs, and what the page leaves out."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trisect.train.run.summary import compare_with_rules


def simple_rules(summary: Mapping[str, Any]) -> str:
    """Give the measures of the model and of each simple rule as a table; empty where the task has no rules."""
    verdict = compare_with_rules(summary) if summary else None
    if verdict is None:
        return ""
    rows = []
    head: list[str] = []
    for split in ("val", "test"):
        rules = summary["baselines"].get(split) or {}
        names = list(next(iter(rules.values()), {}))
        head = head or names
        own = {"model": summary["metrics"].get(split) or {}} if names else {}
        for rule, measures in {**own, **rules}.items():
            cells = "".join(f'<td class="number">{_shown(measures.get(name))}</td>' for name in head)
            rows.append(f"<tr><th>{html.escape(f'{split}, {rule}')}</th>{cells}</tr>")
    titles = "<th></th>" + "".join(f'<th class="number">{html.escape(name)}</th>' for name in head)
    said = f'<p class="note">{html.escape(verdict)}</p>'
    return f'<div class="card"><table><tr>{titles}</tr>{"".join(rows)}</table>{said}</div>'


def left_out(records: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> str:
    """Say what the run directory has and the page does not show."""
    parts = [
        "the actions of other epochs than the one drawn, and of evaluations (trace.json and events/ have them)",
        "the parameters (checkpoints/)",
    ]
    inner = sorted(
        {
            name
            for measures in (summary.get("metrics") or {}).values()
            for name, value in measures.items()
            if isinstance(value, (Mapping, list))
        }
    )
    if inner:
        parts.append(f"measures with a number for each class or step: {', '.join(inner)} (summary.json)")
    lost = sum(1 for record in records for value in _numbers(record) if not math.isfinite(value))
    if lost:
        parts.append(f"{lost} values that are not finite (metrics.jsonl)")
    return f'<p class="note">Left out here: {html.escape("; ".join(parts))}.</p>'


def _numbers(record: Mapping[str, Any]) -> Iterator[float]:
    for value in record.values():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        elif isinstance(value, float):
            yield value


def _shown(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, (int, float)) and math.isfinite(value) else "–"
