"""Progress: the measure that is monitored, in lines, and in the cell of a notebook."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from trisect.api.notebook import in_notebook
from trisect.api.progress import Progress, figures
from trisect.train.run.summary import compare_with_rules

RECORD = {"epoch": 1, "loss": 0.5, "seconds": 0.1, "val": {"loss": 0.4, "map": 0.1, "auc": 0.9}, "test": {"auc": 0.8}}
SUMMARY: dict[str, Any] = {
    "seconds_per_epoch": {"best": 0.1, "median": 0.1},
    "loss": [0.5],
    "best_epoch": 1,
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
    assert "a sentence\nepoch 1/1  loss 0.5  val auc 0.9  100 ms\n" in shown
    assert "test, edgebank alone: map 0.2000  auc 0.9200" in shown
    assert "A simple rule is ahead of the model: edgebank has test auc 0.920, the model 0.870. Try task.memory" in shown


def test_a_model_that_is_ahead_is_told_so() -> None:
    better = {**SUMMARY, "metrics": {"test": {"map": 0.3, "auc": 0.93}}}
    told = compare_with_rules(better)
    assert told is not None
    assert told.startswith("The model is ahead of every simple rule: edgebank has test map 0.200, the model 0.300;")
    assert compare_with_rules({**SUMMARY, "baselines": {}}) is None


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
    assert shown[0]["text/plain"] == "epoch 1/2  loss 0.5  val auc 0.9"
    assert '<progress value="2" max="2"' in handle.updates[0]["text/html"]
    assert "<th>auc</th><td>0.9000</td><td>0.8700</td>" in shown[1]["text/html"]
