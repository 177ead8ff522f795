"""How far a run is: a live bar in a terminal or a notebook, a line now and then elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from trisect.api.notebook import Cell, in_notebook
from trisect.train.run.summary import compare_with_rules

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
        self._live = self._cell is None and (self._console.is_terminal if live is None else live)
        self._monitor: str | None = None
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._live,
        )
        self._task = self._bar.add_task("epoch", total=epochs, figures="")
        self._figures: dict[str, float] = {}
        self._last_line = -math.inf

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print a sentence above the bar, or as a line."""
        if self._live:
            self._console.print(text)
        else:
            print(text, flush=True)

    def watch(self, monitor: str) -> None:
        """Show this measure beside the loss."""
        self._monitor = monitor

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Show that one more epoch has ended."""
        number = int(record["epoch"])
        # splits are measured now and then; until the next time, their last figures stay in sight
        self._figures.update(figures(record, self._monitor))
        shown = "  ".join(f"{name} {value:.4g}" for name, value in self._figures.items())
        if self._live:
            self._bar.update(self._task, completed=number, figures=shown)
            return
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
            print(f"epoch {number}/{self.epochs}  {shown}  {_seconds(record.get('seconds'))}".rstrip(), flush=True)

    def metrics(self, summary: Mapping[str, Any]) -> None:
        """Print the figures at the end, a column a split, and how simple rules do on the same test."""
        median = summary["seconds_per_epoch"]["median"]
        tail = "" if summary.get("best_epoch") is None else f", best epoch {summary['best_epoch']}"
        print(f"{len(summary['loss'])} epochs, {_seconds(median)} each{tail}", flush=True)
        self._table({name: dict(_numbers(measures)) for name, measures in summary["metrics"].items() if measures})
        rules = summary.get("baselines", {}).get("test") or {}
        self._table({f"test, {name} alone": dict(measures) for name, measures in rules.items() if measures})
        verdict = compare_with_rules(summary)
        if verdict:
            self.say(verdict)

    def _table(self, columns: Mapping[str, Mapping[str, float]]) -> None:
        """Show a table on a terminal and in a notebook, and elsewhere a line a column."""
        if not columns:
            return
        names = list(dict.fromkeys(name for measures in columns.values() for name in measures))
        rows = {name: [_cell(measures.get(name)) for measures in columns.values()] for name in names}
        lines = [
            f"{column}: " + "  ".join(f"{name} {_cell(value)}" for name, value in measures.items())
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
    result = {"loss": float(record["loss"])}
    split, _, wanted = (monitor or "val.").partition(".")
    for name, value in _numbers(record.get(split) or {}):
        if name == wanted or (not wanted and name != "loss"):
            result[f"{split} {name}"] = value
            break
    return result


def _numbers(measures: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in measures.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield name, float(value)


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.3g} ms"
