"""The run directory: nothing is overwritten, files grow line by line, a continuation must be of the same run."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from trisect.config import apply_overrides, parse_config
from trisect.errors import CheckpointError, FaultError
from trisect.train.processes.resources import explaining_limits
from trisect.train.run.recorder import RunRecorder
from trisect.train.run.run_directory import RunDirectory, fingerprint, read_config

BASE = {
    "data": {"generate": "community", "vertices": 100},
    "model": {"name": "gcn", "layers": 4},
    "task": "node-classification",
}


def config(*overrides: str):
    return parse_config(apply_overrides(BASE, overrides))


def record(directory: RunDirectory, epochs: range) -> None:
    recorder = RunRecorder(directory)
    for epoch in epochs:
        recorder.event("0F0", 1000.0 + epoch, 0.5, epoch=epoch)
        recorder.epoch({"epoch": epoch, "loss": 1 / epoch, "val": {"accuracy": 0.5}})
        if epoch % 2 == 0:
            recorder.checkpoint({"w": torch.full((2,), float(epoch))}, {"epoch": epoch}, best=False)
    recorder.close()


def contents(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_events_are_lines_of_json(tmp_path: Path):
    told = [("0F0", 1.5, 0.1, {"epoch": 1}), ('say "so"', 2e9 + 1 / 3, 1e-7, {"epoch": 1}), ("0B0", 3.0, 0.0, {})]
    told += [("guard", 4.0, 0.0, {"epoch": 2, "why": "α", "then": None}), ("0F0", 5.0, 1.0, {"epoch": 3})]
    with RunDirectory.writing(tmp_path / "run", config()) as directory:
        recorder = RunRecorder(directory)
        for name, start, seconds, fields in told:
            recorder.event(name, start, seconds, **fields)
        recorder.close()
    lines = (tmp_path / "run" / "events" / "rank-0.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"name": name, "start": start, "seconds": seconds, **fields} for name, start, seconds, fields in told
    ]


def test_files_of_a_run(tmp_path: Path):
    with RunDirectory.writing(tmp_path / "run", config()) as directory:
        record(directory, range(1, 4))
        directory.write_summary({"epochs": 3})
    assert read_config(tmp_path / "run") == config()
    assert [line["epoch"] for line in directory.metrics()] == [1, 2, 3]
    assert json.loads((tmp_path / "run" / "summary.json").read_bytes()) == {"epochs": 3}
    with pytest.raises(CheckpointError, match=r"summary.json is damaged: it says world: None, and that must be"):
        directory.summary()
    trace = json.loads((tmp_path / "run" / "trace.json").read_bytes())
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["tid"] == 0]
    assert [(span["ts"], span["dur"], span["args"]["epoch"]) for span in spans] == [
        (0.0, 5e5, 1),
        (1e6, 5e5, 2),
        (2e6, 5e5, 3),
    ]
    assert not (tmp_path / "run" / ".lock").exists()


@pytest.mark.parametrize("kind", ["run", "other", "file"])
def test_a_used_place_is_refused_and_left_alone(tmp_path: Path, kind: str):
    path = tmp_path / "run"
    if kind == "run":
        RunDirectory.create(path, config())
    elif kind == "other":
        path.mkdir()
        (path / "thesis.txt").write_text("precious")
    else:
        path.write_text("precious")
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match="choose another --out"):
        RunDirectory.create(path, config("train.epochs=7"))
    assert contents(tmp_path) == before


def test_an_empty_directory_is_fine(tmp_path: Path):
    assert RunDirectory.create(tmp_path, config()).path == tmp_path


def test_two_writers_are_refused(tmp_path: Path):
    with (
        RunDirectory.writing(tmp_path / "run", config()),
        pytest.raises(CheckpointError, match="Another process is writing"),
        RunDirectory.writing(tmp_path / "run", config(), resume=True),
    ):
        pass


def test_a_run_that_begins_twice_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Both find an empty directory, and the second gets in when the first has ended."""
    with RunDirectory.writing(tmp_path / "run", config()) as directory:
        record(directory, range(1, 4))
    before = contents(tmp_path)
    refused = RunDirectory.refuse_used
    looks: list[Path] = []

    def late(path: Path) -> None:
        looks.append(path)
        if len(looks) > 1:
            refused(path)

    monkeypatch.setattr(RunDirectory, "refuse_used", staticmethod(late))
    with (
        pytest.raises(CheckpointError, match="already holds a run"),
        RunDirectory.writing(tmp_path / "run", config("train.epochs=7")),
    ):
        pass
    assert contents(tmp_path) == before


def test_a_continuation_drops_what_came_after_the_checkpoint(tmp_path: Path):
    directory = RunDirectory.create(tmp_path / "run", config())
    record(directory, range(1, 6))
    with (directory.path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 6, "lo')  # a crash in the middle of a line
    again = RunDirectory.reopen(tmp_path / "run", config("train.epochs=9"))
    checkpoint = again.checkpoints.latest()
    assert checkpoint is not None
    assert checkpoint.epoch == 4
    again.continue_from(checkpoint)
    assert [line["epoch"] for line in again.metrics()] == [1, 2, 3, 4]
    assert [event["epoch"] for event in again.events(0)] == [1, 2, 3, 4]
    assert read_config(tmp_path / "run").train.epochs == 9
    again.continue_from(None)
    assert again.metrics() == []


def test_restarts_are_counted_over_all_commands(tmp_path: Path):
    directory = RunDirectory.create(tmp_path / "run", config())
    recorder = RunRecorder(directory)
    for count in (2, 3, 1):  # the first start of the first command wrote nothing
        recorder.restarted(count)
    recorder.close()
    directory.continue_from(None)
    assert directory.restarts() == 4
    recorder = RunRecorder(directory)
    for count, command in ((1, "a"), (2, "b"), (3, "b"), (2, "c")):  # also of the second and the third command
        recorder.restarted(count, command)
    recorder.close()
    assert directory.restarts() == 4 + 1 + 3 + 2


def test_a_damaged_line_in_the_middle_is_an_error(tmp_path: Path):
    directory = RunDirectory.create(tmp_path / "run", config())
    (directory.path / "metrics.jsonl").write_text('{"epoch": 1\n{"epoch": 2}\n')
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is damaged at line 1"):
        directory.metrics()


def test_another_run_is_not_continued(tmp_path: Path):
    RunDirectory.create(tmp_path / "run", config())
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=r"model\.layers is 8, but the run in .* was made with 4"):
        RunDirectory.reopen(tmp_path / "run", config("model.layers=8"))
    with pytest.raises(CheckpointError, match=r"data\.noise is 1\.0, but .* was made with None"):
        RunDirectory.reopen(tmp_path / "run", config("data.noise=1.0"))
    assert contents(tmp_path) == before
    with pytest.raises(CheckpointError, match="holds no run"):
        RunDirectory.reopen(tmp_path)


def test_what_is_in_the_way_is_named_and_not_waited_for(tmp_path: Path):
    path = RunDirectory.create(tmp_path / "run", config()).path
    (path / "checkpoints").write_text("a file")
    with (
        pytest.raises(CheckpointError, match="checkpoints is no directory"),
        RunDirectory.writing(path, config(), resume=True),
    ):
        pass
    (path / "config.yaml").unlink()
    os.mkfifo(path / "config.yaml")
    with pytest.raises(CheckpointError, match=r"config\.yaml cannot be read: it is no regular file"):
        read_config(path)


def test_a_run_directory_that_was_removed_does_not_come_back(tmp_path: Path):
    directory = RunDirectory.create(tmp_path / "run", config())
    shutil.rmtree(directory.path)
    with pytest.raises(FaultError, match="it was removed while the run needed it"), explaining_limits(directory.path):
        directory.checkpoints.draft(1)
    assert not directory.path.exists()


def test_fingerprints_follow_what_is_computed():
    assert fingerprint(config()) == fingerprint(config("train.epochs=7", "train.keep=5", "layout.vertex=2"))
    assert fingerprint(config()) == fingerprint(config("train.rules=false"))
    assert fingerprint(config()) != fingerprint(config("train.seed=1"))
    assert fingerprint(config()) != fingerprint(config("data.vertices=101"))


@pytest.mark.parametrize("name", ["checkpoints", "events", "metrics.jsonl", "events/rank-0.jsonl"])
def test_links_out_of_a_run_are_refused(tmp_path: Path, name: str):
    with RunDirectory.writing(tmp_path / "run", config()) as directory:
        record(directory, range(1, 4))
    (tmp_path / "run" / name).rename(tmp_path / "outside")
    (tmp_path / "run" / name).symlink_to(tmp_path / "outside")
    before = contents(tmp_path)
    with (
        pytest.raises(CheckpointError, match="is a symbolic link"),
        RunDirectory.writing(tmp_path / "run", config(), resume=True),
    ):
        pass
    assert contents(tmp_path) == before


def test_a_draft_of_a_file_does_not_follow_a_link(tmp_path: Path):
    (tmp_path / "outside").write_text("kept")
    with RunDirectory.writing(tmp_path / "run", config()) as directory:
        (directory.path / ".summary.json.draft").symlink_to(tmp_path / "outside")
        directory.write_summary({"epochs": 3})
    assert (tmp_path / "outside").read_text() == "kept"


def test_what_a_run_that_was_ended_left_is_put_in_order_and_said(tmp_path: Path):
    directory = RunDirectory.create(tmp_path / "run", config())
    record(directory, range(1, 6))
    checkpoints = directory.checkpoints.directory
    (checkpoints / ".epoch-000006.draft").mkdir()
    (checkpoints / ".epoch-000004.old").mkdir()
    (checkpoints / "epoch-000009").write_text("a file")
    with (directory.path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 6, "lo')
    said: list[str] = []
    directory.tidy(said.append)
    assert sorted(path.name for path in checkpoints.iterdir()) == [
        "epoch-000002",
        "epoch-000004",
        "epoch-000009.damaged",
    ]
    assert [sentence.split(" ")[0] for sentence in said] == ["epoch-000009", "The"]
    assert "was cut off" in said[1]
    again: list[str] = []
    directory.continue_from(directory.checkpoints.latest())
    directory.tidy(again.append)
    assert again == []
