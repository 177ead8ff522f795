"""The page of a run: complete, self-contained, and safe against text in names."""

from __future__ import annotations

import json
import math
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from trisect.config import parse_config
from trisect.errors import CheckpointError
from trisect.report import render, write_report
from trisect.report.page import seconds, size
from trisect.train.run.run_directory import RunDirectory, RunRecorder

SUMMARY = {
    "version": "0.1.0",
    "layout": {"time": 1, "layer": 1, "vertex": 1},
    "world": 1,
    "epochs": 3,
    "best_epoch": 2,
    "monitor": "val.accuracy",
    "seconds_per_epoch": {"best": 0.1, "median": 0.25},
    "metrics": {"train": {}, "val": {"loss": 1.0, "accuracy": 0.5}, "test": {"accuracy": 0.625}},
    "communication": {
        "bytes_per_epoch": 0,
        "by_axis": {"vertex": 0, "layer": 0, "time": 0, "weights": 0},
        "formula_bytes_per_epoch": 0,
    },
    "transfer": {"full_bytes": 1000, "sent_bytes": 250},
    "memory": {"peak_rss_bytes": [3 << 20]},
    "staleness": None,
    "plan": None,
}


class Balanced(HTMLParser):
    """Fails on a tag that is closed out of order, and lists what a page would fetch."""

    VOID = ("meta", "line", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.fetched += [value for name, value in attributes if name in {"src", "href"}]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        if self.open.pop() != tag:
            raise AssertionError(f"</{tag}> is out of order")

    def handle_data(self, data):
        self.text.append(data)


def parsed(page: str) -> Balanced:
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    return parser


def test_the_parser_of_these_tests_notices_a_broken_page():
    with pytest.raises(AssertionError):
        parsed("<p><b></p></b>")


def make(path: Path, epochs: int = 3, name: str = "run") -> RunDirectory:
    config = parse_config(
        {
            "data": {"path": "<script>alert(1)</script>"},
            "model": {"name": "gcn", "layers": 2, "hidden": 8},
            "task": "node-classification",
        }
    )
    directory = RunDirectory.create(path / name, config)
    recorder = RunRecorder(directory)
    for epoch in range(1, epochs + 1):
        recorder.event("0F0", 10.0 * epoch, 1.0, epoch=epoch)
        recorder.event("0B0", 10.0 * epoch + 1, 2.0, epoch=epoch)
        recorder.epoch(
            {"epoch": epoch, "loss": 1 / epoch, "seconds": 0.2, "val": {"accuracy": epoch / 4, "per_step": {}}}
        )
    recorder.close()
    return directory


def test_a_finished_run(tmp_path: Path):
    directory = make(tmp_path)
    directory.write_summary(SUMMARY)
    path = write_report(directory)
    assert path == tmp_path / "run" / "report.html"
    page = parsed(path.read_text(encoding="utf-8"))
    assert page.fetched == []
    text = " ".join(page.text)
    for expected in (
        "0.625",
        "test accuracy",
        "250 ms",
        "3 MiB",
        "finished",
        "What each rank did in epoch 3",
        "backward",
    ):
        assert expected in text
    assert "250 B of 1000 B (25%)" in text
    assert "<script>alert(1)" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("epochs", [0, 1, 2])
def test_a_run_that_has_not_ended(tmp_path: Path, epochs: int):
    page = parsed(render(make(tmp_path, epochs)))
    text = " ".join(page.text)
    assert f"not finished, {epochs} of 100 epochs so far" in text
    assert ("Loss" in text) == (epochs > 0)


def test_losses_that_are_not_finite_do_not_break_the_page(tmp_path: Path):
    directory = make(tmp_path)
    recorder = RunRecorder(directory)
    recorder.epoch({"epoch": 4, "loss": math.nan, "val": {"accuracy": math.inf}})
    recorder.close()
    assert "nan," not in render(directory)


def test_several_ranks(tmp_path: Path):
    directory = make(tmp_path)
    recorder = RunRecorder(directory, rank=1)
    recorder.event("1WbF0<0", 31.0, 0.5, epoch=3)
    recorder.close()
    sent = {
        "bytes_per_epoch": 2048,
        "by_axis": {"vertex": 0, "layer": 2048, "time": 0, "weights": 0},
        "formula_bytes_per_epoch": 2048,
    }
    several = {**SUMMARY, "world": 2, "communication": sent}
    memory = {"peak_rss_bytes": [2 << 20, 2 << 20], "peak_pss_bytes": [1 << 20, 2 << 20]}
    directory.write_summary({**several, "memory": {**memory, "peak_pss_bytes": None}})
    assert "Together" not in " ".join(parsed(render(directory)).text)
    directory.write_summary({**several, "memory": memory})
    text = " ".join(parsed(render(directory)).text)
    assert "Together 3 MiB: a page that ranks share counts once." in text
    assert "rank 1" in text
    assert "transfer" in text
    assert "By formula 2 KiB an epoch, counted 2 KiB." in text


def test_how_quantities_are_written():
    assert [size(v) for v in (0, 1023, 1024, 5 << 20, 3 << 40)] == ["0 B", "1023 B", "1 KiB", "5 MiB", "3 TiB"]
    assert [seconds(v) for v in (0.0123, 1.5)] == ["12.3 ms", "1.50 s"]


def test_a_forged_summary_is_shown_and_not_run(tmp_path: Path):
    directory = make(tmp_path)
    directory.write_summary({**SUMMARY, "best_epoch": "<script>alert(1)</script>", "version": "<script>x</script>"})
    page = write_report(directory).read_text()
    assert "<script>alert" not in page
    assert "<script>x" not in page
    assert "&lt;script&gt;alert" in page


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("summary.json", "3", "is 3, and must be a mapping"),
        ("summary.json", json.dumps({**SUMMARY, "memory": 5}), "says memory: 5, and that must be a mapping"),
        ("summary.json", json.dumps({**SUMMARY, "world": "2"}), "says world: '2', and that must be a whole number"),
        ("summary.json", json.dumps({**SUMMARY, "transfer": None}), "says transfer: None, and that must be a mapping"),
        ("summary.json", "[" * 100_000, "is not JSON"),
        ("metrics.jsonl", '{"epoch": "1"}\n', "line 1: it says epoch: '1', and that must be"),
        ("metrics.jsonl", '3\n{"epoch": 1}\n', "is damaged at line 1"),
        ("events/rank-0.jsonl", '{"name": "0F0", "start": "x", "seconds": 1}\n', "line 1: it says start: 'x'"),
        ("events/rank-0.jsonl", '{"name": "0F0", "start": 1, "seconds": Infinity}\n', "must be a finite number"),
        ("plan.json", '{"halves": [1]}', "says halves[0]: 1, and that must be a text"),
    ],
)
def test_a_forged_run_directory_is_refused_in_a_sentence(tmp_path: Path, name: str, text: str, words: str):
    directory = make(tmp_path)
    directory.write_summary(SUMMARY)
    (directory.path / name).write_text(text)
    with pytest.raises(CheckpointError, match=re.escape(words)) as said:
        render(directory)
    assert "\n" not in str(said.value)
    assert str(directory.path / name) in str(said.value)


def test_files_that_are_none_of_ours_are_passed_over(tmp_path: Path):
    directory = make(tmp_path)
    for name in ("rank-x.jsonl", "rank-007.jsonl", "rank-.jsonl", "rank-٣.jsonl"):
        (directory.path / "events" / name).write_text("nonsense")
    assert directory.ranks() == [0]
    os.mkfifo(directory.path / "plan.json")
    with pytest.raises(CheckpointError, match=r"plan.json cannot be read: it is no regular file"):
        render(directory)
