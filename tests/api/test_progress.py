"""Progress: what is shown of an epoch, in lines, in a terminal of any width, and in the cell of a notebook."""

from __future__ import annotations

import io
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from trisect.api import pace
from trisect.api.bar import TerminalBar, duration
from trisect.api.notebook import in_notebook
from trisect.api.progress import Progress, figures
from trisect.train.run.summary import compare_with_rules

RECORD = {"epoch": 1, "loss": 0.5, "seconds": 0.1, "val": {"loss": 0.4, "map": 0.1, "auc": 0.9}, "test": {"auc": 0.8}}
SUMMARY: dict[str, Any] = {
    "seconds_per_epoch": {"best": 0.1, "median": 0.1},
    "loss": [0.5],
    "best_epoch": 1,
    "monitor": "val.auc",
    "metrics": {"train": {}, "val": {"map": 0.1, "auc": 0.9}, "test": {"map": 0.3, "auc": 0.87}},
    "baselines": {"test": {"edgebank": {"map": 0.2, "auc": 0.92}, "recency": {"map": 0.1, "auc": 0.9}}},
}


def test_the_monitored_measure_is_shown() -> None:
    assert figures(RECORD, "val.auc") == {"loss": 0.5, "val auc": 0.9}
    assert figures(RECORD, "test.auc") == {"loss": 0.5, "test auc": 0.8}
    assert figures(RECORD, "val.loss") == {"loss": 0.5, "val loss": 0.4}
    assert figures(RECORD) == {"loss": 0.5, "val map": 0.1}


def test_lines_where_nothing_can_be_redrawn(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(1) as progress:
        progress.watch("val.auc")
        progress.say("a sentence")
        progress.epoch(RECORD)
    progress.metrics(SUMMARY)
    shown = capsys.readouterr().out
    assert "a sentence\nepoch 1/1  loss 0.5  val auc 0.9  100 ms an epoch\n" in shown
    assert "test, edgebank alone: map 0.2000  auc 0.9200" in shown
    told = "A simple rule is ahead of the model: edgebank has test auc 0.92, the model 0.87, 0.05 less."
    assert f"{told} Try more epochs, task.memory" in shown


def test_the_best_rule_stands_beside_the_monitored_measure(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(2) as progress:
        progress.watch("val.auc", "edgebank 0.92")
        progress.epoch(RECORD)
        progress.epoch({"epoch": 2, "loss": 0.4})
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("epoch 1/2  loss 0.5  val auc 0.9 (edgebank 0.92)  ")
    assert second.startswith("epoch 2/2  loss 0.4  val auc 0.9 (edgebank 0.92)")


COSTS = {"sent_bytes": 34 << 20, "peak_rss_bytes": 512 << 20}


def test_lines_say_what_an_epoch_costs_and_how_long_the_rest_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(11) as progress:
        progress.epoch({**RECORD, **COSTS, "seconds": 30.0})
        progress.epoch({**RECORD, "epoch": 2, "sent_bytes": 0, "peak_rss_bytes": 3 << 30})
    first, second = capsys.readouterr().out.splitlines()
    tail = "34 MiB sent  512 MiB memory a rank  30.00 s an epoch, 5 min 0 s left"
    assert first == f"epoch 1/11  loss 0.5  val map 0.1  {tail}"
    assert "  3 GiB memory  " in second  # one process sends nothing


def test_time_left_counts_evaluations_and_what_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(pace.time, "monotonic", lambda: now[0])
    clock = pace.Pace(10)
    assert (clock.each, clock.left, clock.elapsed) == (None, None, 0.0)
    for epoch in (5, 6, 7):  # the others were done before the run was resumed
        now[0] += 4.0
        clock.epoch(epoch, 1.0)
    assert (clock.each, clock.left) == (1.0, 12.0)
    now[0] += 5.0
    assert clock.left == 7.0
    now[0] += 50.0
    assert clock.left == 0.0
    read = pace.Pace(10)  # of a run that is watched: all at once, out of its file
    for epoch in (1, 2, 3):
        read.epoch(epoch, 2.0)
    assert read.left == 14.0
    assert [duration(value) for value in (0.4, 59.4, 125.0, 11523.0)] == ["0 s", "59 s", "2 min 5 s", "3 h 12 min"]


@pytest.mark.parametrize("width", [20, 39, 80, 200])
def test_no_line_of_the_bar_is_wider_than_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(
        "trisect.api.progress.Console",
        lambda **more: Console(file=written, force_terminal=True, width=width, height=25, **more),
    )
    record = {**RECORD, **COSTS, "epoch": 123, "seconds": 0.123, "val": {"f1_macro": 0.8123}, "loss": 0.12345}
    with Progress(1000) as progress:
        assert isinstance(progress._bar, TerminalBar)
        _, lines = drawn(progress._bar, width)
        assert lines[0].startswith("epoch 0/1000 ")
        assert lines[0].endswith(" 0 s so far" if width > 20 else " 0 s so…")
        progress.epoch(record)
        longest, lines = drawn(progress._bar, width)
    assert longest <= width
    assert "\x1b[?25h" in written.getvalue()  # the cursor is shown again
    if width >= 80:
        assert lines[0].startswith("epoch 123/1000 ━━━")
        assert lines[0].endswith(" 123 ms an epoch, 1 min 48 s left")
        assert lines[1] == "loss 0.1235  val f1_macro 0.8123  34 MiB sent  512 MiB memory a rank"


def drawn(bar: TerminalBar, width: int) -> tuple[int, list[str]]:
    """Give the width of the longest line, and the lines without what is blank at their ends."""
    console = Console(file=io.StringIO(), width=width, soft_wrap=True)
    lines = ["".join(part.text for part in line) for line in console.render_lines(bar._draw(), pad=False)]
    return max(map(len, lines)), [line.rstrip() for line in lines]


def test_a_model_that_is_ahead_is_told_so() -> None:
    better = {**SUMMARY, "metrics": {"test": {"map": 0.1, "auc": 0.93}}}
    told = "The model is ahead of every simple rule: edgebank has test auc 0.92, the model 0.93, 0.01 more."
    assert compare_with_rules(better) == told
    assert compare_with_rules({**SUMMARY, "baselines": {}}) is None


@pytest.mark.parametrize(
    ("measure", "rule", "own", "told"),
    [
        (
            "auc",
            0.92,
            0.9196,
            "The model is level with the best simple rule: mean has test auc 0.92, the model 0.9196.",
        ),
        (
            "auc",
            0.92,
            0.919,
            "A simple rule is ahead of the model: mean has test auc 0.92, the model 0.919, 0.001 less.",
        ),
        ("map", 0.93751, 0.93749, "level .* map 0.9375, the model 0.9375"),
        ("map", 0.0004, 0.0001, "A simple rule is ahead .* map 0.0004, the model 0.0001, 0.0003 less"),
        ("auc", 0.999, 0.9999, "The model is ahead .* auc 0.999, the model 0.9999, 0.0009 more"),
        ("auc", 0.99990, 0.99995, "The model is ahead .* auc 0.9999, the model 0.99995, 5e-05 more"),
        ("auc", 1.0, 1.0, "level .* auc 1, the model 1"),
        ("rmse", 0.0001, 0.0004, "A simple rule is ahead .* rmse 0.0001, the model 0.0004, 0.0003 more"),
        ("rmse", 5000.6, 5000.4, "level .* rmse 5,001, the model 5,000"),
        ("mae", 100.2, 99.9996, "The model is ahead .* mae 100.2, the model 100, 0.2 less"),
        ("loss", 0.0, 0.0, "level .* loss 0, the model 0"),
    ],
)
def test_the_verdict_goes_by_values(measure: str, rule: float, own: float, told: str) -> None:
    summary = {"monitor": f"val.{measure}", "metrics": {"test": {measure: own}}}
    verdict = compare_with_rules({**summary, "baselines": {"test": {"mean": {measure: rule}}}})
    assert re.search(told, str(verdict)), verdict


def test_without_a_best_epoch_the_latest_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(1) as progress:
        progress.metrics(SUMMARY)
        progress.metrics({**SUMMARY, "metrics": {"val": {"map": 0.1, "auc": None}}})
    shown = capsys.readouterr().out
    assert "1 epochs, 100 ms each, best epoch 1\n" in shown
    assert "1 epochs, 100 ms each, latest epoch 1 (val.auc had no value)\n" in shown


def test_of_errors_the_lower_one_is_ahead() -> None:
    errors = {"monitor": "val.loss", "baselines": {"test": {"mean": {"loss": 2.0}, "last_value": {"loss": 0.5}}}}
    behind = compare_with_rules({**errors, "metrics": {"test": {"loss": 0.75}}})
    assert behind == "A simple rule is ahead of the model: last value has test loss 0.5, the model 0.75, 0.25 more."
    assert "The model is ahead" in str(compare_with_rules({**errors, "metrics": {"test": {"loss": 0.25}}}))


class Handle:
    def __init__(self) -> None:
        self.updates: list[dict[str, str]] = []

    def update(self, content: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.updates.append(content)


def test_a_bar_in_the_cell_of_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []
    handle = Handle()

    def display(content: dict[str, str], *, raw: bool, display_id: bool = False) -> Handle | None:
        assert raw
        shown.append(content)
        return handle if display_id else None

    ipython, inner = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    inner.display = display  # type: ignore[attr-defined]
    assert not in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", inner)
    assert in_notebook()
    with Progress(2) as progress:
        progress.watch("val.auc")
        progress.epoch(RECORD)
        progress.epoch({**RECORD, "epoch": 2})
    progress.metrics(SUMMARY)
    assert shown[0]["text/plain"] == "epoch 1/2  loss 0.5  val auc 0.9  100 ms an epoch, 0 s left"
    assert '<progress value="2" max="2"' in handle.updates[0]["text/html"]
    assert "<th>auc</th><td>0.9000</td><td>0.8700</td>" in shown[1]["text/html"]
