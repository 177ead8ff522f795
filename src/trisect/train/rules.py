"""Simple rules beside a run: measured once, before the first epoch, by a process that has all of the data."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.settings.writing import to_json
from trisect.tasks import BoundTask
from trisect.tasks.metrics import LOWER_IS_BETTER
from trisect.train.assemble import context_of
from trisect.train.job import Job
from trisect.train.processes.threads import limited_threads

FILE = "rules.json"
_MANY = 1 << 25  # features of vertices and neighbours that take more than a moment to read
Measures = Mapping[str, Mapping[str, Mapping[str, float | None]]]


@dataclass(frozen=True)
class Rules:
    """The measures of simple rules; the same under every layout, and in a run that is resumed.

    Attributes:
        measures: split → rule → measures; empty where the task has no rules, or none are wanted.
        notes: how the work was bounded, a phrase each.
    """

    measures: dict[str, dict[str, dict[str, float | None]]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def measure(
        cls, job: Job, data: Graph | Timeline, say: Callable[[str], None], task: BoundTask | None = None
    ) -> Rules:
        """Measure the rules of a job that trains, in the user's order of vertices and by one thread.

        A run does not depend on them: an error is shown as a warning, and there are none.

        Args:
            say: is told that they are measured, where that may take seconds.
            task: of the run, where it is bound to these data on the CPU; pairs are then drawn once for rules and run.
        """
        if job.verb not in ("train", "fit") or not job.options.rules:
            return cls()
        if task is None:
            task = job.task.bind(data, context_of(job.options, data.order))
        if not task.cheap or _numbers_read(data) > _MANY:
            say("Measuring simple rules on val and test.")
        try:
            with limited_threads(1):
                measured = task.simple_rules(data)
                measures = {
                    str(split): {name: task.rule_metrics(statistics) for name, statistics in rules.items()}
                    for split, rules in measured.statistics.items()
                }
        except Exception as error:
            said = f"{type(error).__name__}: {str(error)[:200]}"
            warnings.warn(f"Simple rules could not be measured ({said}); the run goes on without them.", stacklevel=2)
            return cls()
        return cls(measures, measured.notes)

    def write(self, folder: Path) -> None:
        """Write the rules beside the shards of ranks."""
        (folder / FILE).write_text(to_json({"measures": self.measures, "notes": self.notes}))

    @classmethod
    def read(cls, folder: Path) -> Rules:
        """Read what `write` wrote; there are none where nothing was written."""
        if not (folder / FILE).exists():
            return cls()
        plain = json.loads((folder / FILE).read_text())
        return cls(plain["measures"], tuple(plain["notes"]))

    def describe(self, monitor: str) -> str | None:
        """Return a sentence on all rules by a measure such as `val.map`, the best first; None where there are none.

        Where no rule has this measure, see `beside`.
        """
        shown = _shown_measure(self.measures, monitor)
        ranked = list(ranked_rules(self.measures, shown))
        if not ranked:
            return None
        told = ", ".join(f"{spoken(name)} {value:.4g}" for name, value in ranked)
        return f"Simple rules, {shown.replace('.', ' ')}: {told}{''.join(f'; {note}' for note in self.notes)}."


def ranked_rules(measures: Measures, monitor: str) -> Iterator[tuple[str, float]]:
    """Yield the rules that have a measure such as `val.map`, and its value, the best first."""
    split, _, measure = monitor.partition(".")
    rules = measures.get(split) or {}
    values = {
        name: value for name, own in rules.items() if (value := own.get(measure)) is not None and is_number(value)
    }
    yield from sorted(values.items(), key=lambda item: item[1], reverse=measure not in LOWER_IS_BETTER)


def beside(measures: Measures, monitor: str) -> str:
    """Return the best rule by a measure such as `val.map`, as a line of progress shows it; else nothing.

    Where no rule has the monitored measure, it is the same one on val or test, or else the first that rules have there,
    and is named.
    """
    shown = _shown_measure(measures, monitor)
    named = "" if shown == monitor else f"{shown.replace('.', ' ')} "
    return next((f"{spoken(name)} {named}{value:.4g}" for name, value in ranked_rules(measures, shown)), "")


def _shown_measure(measures: Measures, monitor: str) -> str:
    """Return the monitored measure, or else the one that rules are shown by."""
    name = monitor.partition(".")[2]
    there = [
        (split, measure) for split in ("val", "test") for own in (measures.get(split) or {}).values() for measure in own
    ]
    shown = [monitor, f"val.{name}", f"test.{name}", *(f"{split}.{measure}" for split, measure in there)]
    return next((each for each in shown if any(ranked_rules(measures, each))), monitor)


def _numbers_read(data: Graph | Timeline) -> int:
    """Return how many features rules read, those of neighbours included."""
    events = data.total_events if isinstance(data, Timeline) else data.edges
    return 0 if data.x is None else data.x.numel() + events * data.x.shape[-1]


def is_number(value: Any) -> bool:
    """Whether a measure has a value that can be compared."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def spoken(rule: str) -> str:
    """Return the name of a rule as it is shown."""
    return rule.replace("_", " ")
