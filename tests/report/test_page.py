"""The page of a run: complete, self-contained, and safe against whatever the files of a run say."""

from __future__ import annotations

import json
import math
import os
import random
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trisect.cli.main import run_command
from trisect.errors import CheckpointError, TrisectError
from trisect.report import render, render_comparison, write_comparison, write_report
from trisect.report.figures import Series, embedded, lines, thin
from trisect.report.markup import join, tag
from trisect.report.page import render_view, render_views
from trisect.report.quantities import number, seconds, share, size
from trisect.report.run_view import RunView
from trisect.report.values import Values
from trisect.train.run.recorder import RunRecorder


class Balanced(HTMLParser):
    """Fails on a tag that is closed out of order, and lists what a page would fetch."""

    VOID = ("meta", "line", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.text: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag, attributes):
        self.fetched += [value for name, value in attributes if name in {"src", "href"} and not value.startswith("#")]
        self.scripts += tag == "script"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if self.open.pop() != tag:
            raise AssertionError(f"</{tag}> is out of order")

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)


def parsed(page: str) -> Balanced:
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    return parser


def words(page: str) -> str:
    return " ".join(parsed(page).text)


def test_the_parser_of_these_tests_notices_a_broken_page():
    with pytest.raises(AssertionError):
        parsed("<p><b></p></b>")


def test_a_finished_run(make_run, tmp_path: Path):
    path = write_report(make_run())
    assert path == tmp_path / "run" / "report.html"
    page = parsed(path.read_text(encoding="utf-8"))
    assert page.fetched == []
    text = " ".join(page.text)
    for expected in (
        "0.625",
        "test accuracy",
        "1.00 s",
        "3 MiB",
        "finished",
        "What each rank did in epoch 3",
        "backward",
        "F1 of class 1",
        "Area under the curve",
        "Confusion matrix on test",
        "Calibration of class 1",
        "activations kept for backward",
        "250 B of 1000 B (25%)",
        "One rank: nothing is sent.",
        "None: every epoch is exact",
    ):
        assert expected in text
    assert "<script>alert(1)" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("epochs", [0, 1, 2])
def test_a_run_that_has_not_ended(make_run, epochs: int):
    text = words(render(make_run(finished=False, epochs=epochs)))
    assert f"not finished, {epochs} of 3 epochs so far" in text
    assert ("Loss" in text) == (epochs > 0)
    assert ("What each rank did" in text) == (epochs > 0)


def test_an_epoch_that_a_crash_cut_off_is_not_drawn(make_run):
    directory = make_run(finished=False, vertex=2, epochs=2)
    for rank in range(2):
        with (directory.path / "events" / f"rank-{rank}.jsonl").open("a") as file:
            file.write('{"name": "0F0.0-1", "start": 1000000300.0, "seconds": 0.5, "epoch": 3}\n{"name": "0F')
    assert "What each rank did in epoch 2" in words(render(directory))


def test_losses_that_are_not_finite_do_not_break_the_page(make_run):
    directory = make_run(finished=False)
    recorder = RunRecorder(directory)
    recorder.epoch({"epoch": 4, "loss": math.nan, "val": {"accuracy": math.inf}})
    recorder.close()
    page = render(directory)
    assert "NaN" not in page
    assert "2 values that are not finite" in page


def test_several_ranks(make_run, forge):
    directory = make_run(vertex=2)
    text = words(render(directory))
    for expected in (
        "Together 4 MiB: a page that ranks share counts once.",
        "vertex (between parts): halo 1 KiB, halo gradients 1 KiB",
        "waiting for another rank",
        "Quality of the cuts",
        "1,010",
        "Predicted and measured",
    ):
        assert expected in text
    forge(directory, "summary.json", lambda s: {**s, "memory": {"peak_rss_bytes": [5, 6], "peak_pss_bytes": None}})
    assert "Together" not in words(render(directory))


def test_bytes_that_differ_from_the_formula_are_seen(make_run, forge):
    directory = make_run(vertex=2)
    before = words(render(directory))
    sent = {"bytes_per_epoch": 3072, "by_axis": {"vertex": 2560, "weights": 512}, "formula_bytes_per_epoch": 2560}
    forge(directory, "summary.json", lambda s: {**s, "communication": sent})
    assert "+512 B" not in before
    assert words(render(directory)).count("+512 B") == 2  # of the axis, and of all together


def test_a_summary_whose_parts_are_null_is_shown(make_run):
    empty = dict.fromkeys(("baselines", "partition", "staleness", "layout", "best_epoch", "monitor"))
    assert "finished" in words(render(make_run(more=empty)))


def test_without_a_best_epoch_the_latest_is_named(make_run):
    assert "which was the best by val.accuracy." in words(render(make_run(more={"monitor": "val.accuracy"})))
    undefined = {"metrics": {"train": {"loss": 0.5}, "val": {"auc": None}}, "monitor": "val.auc"}
    text = words(render(make_run("undefined", more=undefined)))
    assert "With the parameters of epoch 2, the latest; val.auc had no value." in text


def test_restarts_are_said(make_run):
    assert "finished, started again 2 times after faults." in words(render(make_run(more={"restarts": 2})))


def test_classes_have_their_names(make_run):
    directory = make_run()
    before = words(render(directory))
    directory.name_classes(["honest", "fraud", "<u>"])
    text = words(render(directory))
    for name in ("F1 of fraud", "is honest", "as fraud", "were taken for fraud"):
        assert name in text
        assert name not in before
    assert "<u>" not in render(directory)


def test_links_stand_beside_simple_rules(make_run, links):
    text = words(render(make_run(classes=0, more=links)))
    assert "A simple rule is ahead of the model: recency has test map 0.65, the model 0.6, 0.05 less." in text
    assert "MAP on test" in text
    assert "MAP by step" in text
    assert "Calibration of links" in text
    assert "Confusion" not in text


def test_stale_rows_and_the_guard(make_run, forge):
    stale = {
        "chunks": 4,
        "historical_reads": 0.05,
        "drift": 0.8,
        "loss": {"epoch": 40, "exact": 0.9, "stale": 0.8},
        "checks": 2,
        "stepped_in": [{"epoch": 20, "why": "because", "back_to": 10, "then": "exact"}],
    }
    text = words(render(make_run(layer=2, more={"staleness": stale})))
    assert "That is 5.0% of all reads." in text
    assert "The guard stepped in at epoch 20 (because) and went back to epoch 10; then exact." in text


def test_the_page_of_sixty_four_ranks_is_small(make_run):
    page = render(make_run(vertex=64, epochs=2, layers=16))
    assert len(page) < 6 << 20
    assert "rank\N{NO-BREAK SPACE}63" in words(page)


def test_comparison(make_run, tmp_path: Path):
    runs = [make_run("a"), make_run("b", vertex=2, seconds=0.5), make_run("c", finished=False, epochs=1)]
    text = words(write_comparison(runs, tmp_path / "c.html").read_text())
    assert "× 0.5" in text
    assert "Not finished, so that figures are missing: c." in text
    assert "layout.vertex" in text
    with pytest.raises(TrisectError, match="at least two runs"):
        render_comparison(runs[:1])


@pytest.mark.parametrize(
    ("arguments", "file"),
    [(["a"], "a/report.html"), (["a", "b"], "comparison.html"), (["a", "b", "--out", "x.html"], "x.html")],
)
def test_the_command(make_run, tmp_path: Path, monkeypatch, capsys, arguments: list[str], file: str):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        make_run(name)
    assert run_command(["report", *arguments]) == 0
    assert capsys.readouterr().out == f"Report: {file}\n"
    assert Path(file).stat().st_size > 50_000


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere"], "nowhere holds no run: there is no config.yaml in it; give the directory of a run."),
        (["run", "--out", "run"], "--out is run, which is a directory; give a file, such as run/report.html."),
        (["run", "--out", "no/x.html"], "--out is no/x.html, but the directory no does not exist."),
        (["run", "run", "damaged"], "summary.json is damaged: it is not JSON."),
    ],
)
def test_what_the_command_refuses(make_run, tmp_path: Path, monkeypatch, capsys, arguments: list[str], told: str):
    monkeypatch.chdir(tmp_path)
    make_run()
    (make_run("damaged").path / "summary.json").write_text("{")
    assert run_command(["report", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


# Files that somebody else wrote


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("summary.json", "3", "is 3, and must be a mapping"),
        ("summary.json", '{"world": "2"}', "says world: '2', and that must be a whole number"),
        ("summary.json", "[" * 100_000, "is not JSON"),
        ("scores.json", "", "is not JSON"),
        ("scores.json", "[1]", "is [1], and must be a mapping"),
        ("metrics.jsonl", '{"epoch": "1"}\n', "line 1: it says epoch: '1', and that must be"),
        ("metrics.jsonl", '3\n{"epoch": 1}\n', "is damaged at line 1"),
        (
            "plan.json",
            '{"stages": [[0, "x"]]}',
            "says stages[0][1]: 'x', and that must be a whole number of at least 0",
        ),
    ],
)
def test_a_forged_run_directory_is_refused_in_a_sentence(make_run, name: str, text: str, told: str):
    directory = make_run()
    (directory.path / name).write_text(text)
    with pytest.raises(CheckpointError, match=re.escape(told)) as said:
        render(directory)
    assert "\n" not in str(said.value)
    assert str(directory.path / name) in str(said.value)


def test_files_that_are_none_of_ours_are_passed_over(make_run):
    directory = make_run()
    for name in ("rank-x.jsonl", "rank-007.jsonl", "rank-.jsonl", "rank-٣.jsonl"):
        (directory.path / "events" / name).write_text("nonsense")
    assert directory.ranks() == [0]
    assert "What each rank did" in words(render(directory))
    (directory.path / "events" / "rank-0.jsonl").unlink()
    os.mkfifo(directory.path / "events" / "rank-0.jsonl")
    assert "What each rank did" not in words(render(directory))
    (directory.path / "plan.json").unlink()
    os.mkfifo(directory.path / "plan.json")
    with pytest.raises(CheckpointError, match=r"plan.json cannot be read: it is no regular file"):
        render(directory)


@pytest.mark.parametrize("text", ["", "[1]\n3\n", "nothing\nno", "[[]]\n{}\n"])
def test_damaged_events_leave_the_rest_and_are_said(make_run, text: str):
    directory = make_run(vertex=2)
    (directory.path / "events" / "rank-1.jsonl").write_text(text)
    (directory.path / "plan.json").write_text("{}")
    page = words(render(directory))
    assert "What each rank did" not in page
    assert ("1 line of the files in events/ are no events" in page) == bool(text)
    assert "The sizes are not known, so that equal shares are drawn." in page


ODD: list[Any] = [None, True, -1, 0, 1e308, 10**400, "<b>", "", [], {}, [None], [[1]], {"a": {}}, [1, "x"], math.nan]


def mutated(value: Any, draw: random.Random, chance: float) -> Any:
    if draw.random() < chance:
        return draw.choice(ODD)
    if isinstance(value, dict):
        kept = {k: mutated(v, draw, chance) for k, v in value.items() if draw.random() > chance / 3}
        return {**kept, "<i>": 1} if draw.random() < chance else kept
    if isinstance(value, list):
        return [mutated(v, draw, chance) for v in value if draw.random() > chance / 3]
    return value


@pytest.mark.parametrize("seed", range(24))
def test_forged_values_give_a_page_all_the_same(make_run, links, seed: int):
    draw = random.Random(seed)
    shape = draw.choice([{}, {"vertex": 2}, {"time": 2, "steps": 6, "blocks": 2}, {"layer": 2, "classes": 2}])
    directory = make_run(**shape, epochs=2, more=links if seed % 2 else None)
    chance = draw.choice([0.02, 0.1, 0.4])
    file = directory.path / "events" / "rank-0.jsonl"
    events = [mutated(json.loads(line), draw, chance) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(event) + "\n" for event in events))
    # not through the reader, which refuses most of this
    view = RunView.of(directory)
    forged = {name: Values(mutated(getattr(view, name).plain, draw, chance)) for name in ("summary", "plan", "scores")}
    records = [Values(mutated(record.plain, draw, chance)) for record in view.records]
    view = replace(view, **forged, records=records)
    for page in (render_view(view), render_views([RunView.of(make_run("other")), view])):
        assert parsed(page).scripts == page.count('<script type="application/json">') + 1
        assert "<i>" not in page


def test_a_forged_summary_is_shown_and_not_run(make_run):
    evil = "<script>alert(1)</script>"
    page = render(make_run(more={"best_epoch": evil, "version": evil}))
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page


# The parts


@given(st.text())
def test_text_never_becomes_markup(text: str):
    made = tag("p", text, title=text)
    inner = made.removeprefix("<p").removesuffix("</p>")
    assert inner.count("<") == 0
    assert inner.count(">") == 1
    assert inner.count('"') == 2
    assert join((tag("b", "x"), "<")) == "<b>x</b>&lt;"


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_data_in_a_page_end_no_element_and_come_back(data: Any):
    text = embedded(data)
    assert "<" not in text
    assert json.loads(text) == data


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=3000))
def test_thinning_keeps_the_extremes(values: list[float]):
    kept = thin(values, 100)
    assert len(kept) <= 102
    assert max(values[k] for k in kept) == max(values)
    assert min(values[k] for k in kept) == min(values)
    assert kept == sorted(set(kept))


def test_lines_say_what_they_show():
    assert lines("x", []) is None
    assert lines("x", [Series("a", 0, [])]) is None
    figure = str(lines("Loss", [Series("train", 0, [(1, 2.0), (2, 0.5), (3, 1.0)])]))
    assert "Train goes from 2 to 1; lowest 0.5 at epoch 2, highest 2 at epoch 1." in figure
    assert figure.count("<tr>") == 4


def test_how_quantities_are_written():
    assert [size(v) for v in (0, 1023, 1024, 5 << 20, 3 << 40)] == ["0 B", "1023 B", "1 KiB", "5 MiB", "3 TiB"]
    assert [seconds(v) for v in (0.0123, 1.5, 150, 9000)] == ["12.3 ms", "1.50 s", "2.5 min", "2.5 h"]
    assert [number(v) for v in (0, 0.25, 12345.6, 1e-7)] == ["0", "0.25", "12,346", "1.00e-07"]
    assert [share(v) for v in (0, 0.051, 0.5)] == ["0%", "5.1%", "50%"]


def test_values_take_nothing_for_granted():
    values = Values({"a": {"b": [1, 2.5]}, "c": [1, "x"], "d": True, "e": 10**400, "f": 2.0})
    assert values.at("a", "b").numbers() == [1.0, 2.5]
    assert values.at("c").numbers() == []
    assert values.at("a", "b").counts() == []
    assert [values.at(key).number() for key in "acdez"] == [None] * 5
    assert values.at("f").count() == 2
    assert not values.at("a", "b", "c")
