"""How far a run is: a live bar in a terminal or a notebook, a line now and then elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.table import Table

from trisect.api.bar import TerminalBar, times
from trisect.api.notebook import Cell, in_notebook
from trisect.api.pace import Pace
from trisect.report.quantities import seconds, size
from trisect.tasks.base import SPLITS
from trisect.tasks.metrics import why_undefined
from trisect.train.rules import spoken
from trisect.train.run.summary import compare_with_rules, is_undefined

_LINES = 10
_LONGEST_SILENCE = 15.0  # seconds


class Progress:
    """Shows epochs as they end.

    Args:
        epochs: how many the whole run has.
        live: a bar that is redrawn; by default where the output is a terminal or the cell of a notebook.
    """

    def __init__(self, epochs: int, live: bool | None = None) -> None:
        self.epochs = epochs
        self._console = Console(soft_wrap=True, highlight=False, markup=False)
        self._cell = Cell(epochs) if live is None and in_notebook() else None
        live = self._console.is_terminal if live is None else live
        self._pace = Pace(epochs)
        self._bar = TerminalBar(epochs, self._pace, self._console) if live and self._cell is None else None
        self._monitor: str | None = None
        self._beside = ""
        self._figures: dict[str, float] = {}
        self._last_line = -math.inf
        self._undefined: set[str] = set()

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        """Print a sentence above the bar, or as a line."""
        if self._bar is not None:
            self._console.print(text)
        else:
            print(text, flush=True)

    def watch(self, monitor: str, beside: str = "") -> None:
        """Show this measure beside the loss, and beside it the best simple rule."""
        self._monitor, self._beside = monitor, beside

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Show that one more epoch has ended."""
        number = int(record["epoch"])
        self._say_undefined({split: record.get(split) for split in SPLITS})
        self._pace.epoch(number, record.get("seconds"))
        # splits are measured now and then; until the next time, their last figures stay in sight
        self._figures.update(figures(record, self._monitor))
        shown = "  ".join((*self._shown_figures(), *_costs(record)))
        if self._bar is not None:
            self._bar.epoch(number, shown)
            return
        shown = f"{shown}  {times(self._pace, ended=number == self.epochs)}".rstrip()
        if self._cell is not None:
            self._cell.epoch(number, shown)
            return
        every = max(1, self.epochs // _LINES)
        if (
            number == 1
            or number % every == 0
            or number == self.epochs
            or time.time() - self._last_line > _LONGEST_SILENCE
        ):
            self._last_line = time.time()
            print(f"epoch {number}/{self.epochs}  {shown}", flush=True)

    def _shown_figures(self) -> Iterator[str]:
        watched = (self._monitor or "").replace(".", " ")
        for name, value in self._figures.items():
            yield f"{name} {value:.4g}" + (f" ({self._beside})" if self._beside and name == watched else "")

    def metrics(self, summary: Mapping[str, Any]) -> None:
        """Print the figures at the end, a column a split, and how simple rules do on the same test."""
        median = summary["seconds_per_epoch"]["median"]
        epoch, monitor = summary.get("best_epoch"), str(summary.get("monitor"))
        tail = "" if epoch is None else f", best epoch {epoch}"
        if epoch is not None and is_undefined(summary["metrics"], monitor):
            tail = f", latest epoch {epoch} ({monitor} had no value)"
        each = "" if median is None else f", {seconds(median)} each"
        print(f"{len(summary['loss'])} epochs{each}{tail}", flush=True)
        self._say_undefined(summary["metrics"])
        self._table({name: dict(_numbers(measures)) for name, measures in summary["metrics"].items() if measures})
        rules = summary.get("baselines", {}).get("test") or {}
        self._table({f"test, {spoken(name)} alone": dict(measures) for name, measures in rules.items() if measures})
        verdict = compare_with_rules(summary)
        if verdict:
            self.say(verdict)

    def _say_undefined(self, measured: Mapping[str, Any]) -> None:
        """Print once for each measure of a split that it has no value, and why."""
        for split, measures in measured.items():
            for name, value in (measures or {}).items():
                if value is None and f"{split} {name}" not in self._undefined:
                    self._undefined.add(f"{split} {name}")
                    self.say(f"{split} {name} is undefined ({why_undefined(name)}); null stands for it.")
                    if f"{split}.{name}" == self._monitor:
                        self.say(
                            f"{split} {name} decides which epoch is the best, and has no value: the latest epoch is"
                            " kept, and train.patience has no effect; set train.monitor to another measure."
                        )

    def _table(self, columns: Mapping[str, Mapping[str, float | None]]) -> None:
        """Show a table on a terminal and in a notebook, and elsewhere a line a column."""
        if not columns:
            return
        names = list(dict.fromkeys(name for measures in columns.values() for name in measures))
        rows = {name: [_cell(measures.get(name)) for measures in columns.values()] for name in names}
        lines = [
            f"{column}: " + "  ".join(f"{name} {_cell(value)}" for name, value in measures.items() if value is not None)
            for column, measures in columns.items()
        ]
        if self._cell is not None:
            self._cell.table(list(columns), rows, "\n".join(lines))
        elif sys.stdout.isatty():
            table = Table("", *columns)
            for name, values in rows.items():
                table.add_row(name, *values)
            self._console.print(table)
        else:
            print("\n".join(lines), flush=True)


def figures(record: Mapping[str, Any], monitor: str | None = None) -> dict[str, float]:
    """Give the numbers that a line shows: the loss, and what is monitored (or the first measure of val)."""
    loss = record["loss"]
    result = {"loss": math.nan if loss is None else float(loss)}
    split, _, wanted = (monitor or "val.").partition(".")
    for name, value in _numbers(record.get(split) or {}):
        if name == wanted or (not wanted and name != "loss"):
            result[f"{split} {name}"] = value
            break
    return result


def _costs(record: Mapping[str, Any]) -> Iterator[str]:
    """Say what left all ranks in an epoch, and how much memory the rank holds that holds most."""
    sent, held = record.get("sent_bytes"), record.get("peak_rss_bytes")
    if sent:
        yield f"{size(sent)} sent"
    if held:
        yield f"{size(held)} memory{' a rank' if sent else ''}"


def _numbers(measures: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in measures.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield name, float(value)


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
