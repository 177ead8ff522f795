"""Runs that are started again after a fault, stopped by SIGTERM, or continued under another layout: nothing is lost.

Faults are put at (rank, epoch) by tests/ranks/faults/sitecustomize.py, and each is asserted to have fired.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from trisect.train.run.run_directory import RunDirectory

GRAPH = """
data: {generate: community, vertices: 301, classes: 3, features: 9, per_class: 10}
model: {name: gcnii, layers: 3, hidden: 7, dropout: 0.3}
task: node-classification
train: {epochs: 9, lr: 0.01, optimiser: adamw, eval_every: 2, checkpoint_every: 3, timeout: 5, lr_schedule: plateau}
"""
TIMELINE = """
data: {generate: evolving, vertices: 61, steps: 9, communities: 3, features: 5}
model: {name: cd-gcn, layers: 3, hidden: 5}
task: {name: link-prediction, eval_negatives: 5}
train: {epochs: 7, lr: 0.01, eval_every: 2, checkpoint_every: 2, timeout: 5}
"""
FAULTS = Path(__file__).resolve().parents[1] / "ranks" / "faults"

VARYING = ("seconds", "peak_rss_bytes")


def environment(folder: Path, faults: list[dict[str, Any]]) -> dict[str, str]:
    (folder / "tmp").mkdir(exist_ok=True)
    paths = os.pathsep.join((str(FAULTS), *filter(None, [os.environ.get("PYTHONPATH")])))
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder / "tmp"),
        "PYTHONPATH": paths,
        "TRISECT_TEST_FAULTS": json.dumps(faults),
    }


def train(
    folder: Path, *words: str, faults: list[dict[str, Any]] | None = None, launcher: tuple[str, ...] = (), code: int = 0
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *launcher, "-m", "trisect", "train", *words]
    done = subprocess.run(
        command, cwd=folder, env=environment(folder, faults or []), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert not list((folder / "tmp").glob("*trisect*"))
    return done


def fault(folder: Path, rank: int | str, epoch: int, kind: str) -> dict[str, Any]:
    return {"rank": rank, "epoch": epoch, "kind": kind, "fired": str(folder / f"fired-{rank}-{epoch}-{kind}")}


def require_fired(faults: list[dict[str, Any]]) -> None:
    assert all(Path(one["fired"]).exists() for one in faults)


def metrics(run: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in VARYING} for record in records]


def summary(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "summary.json").read_text()))


def require_equal(one: Path, two: Path) -> None:
    """Compare parameters, optimiser and history by bytes, and all that was measured."""
    assert metrics(one) == metrics(two)
    last = sorted((one / "checkpoints").glob("epoch-*"))[-1].name
    shards = sorted(path.name for path in (one / "checkpoints" / last).glob("rank-*"))
    assert shards == sorted(path.name for path in (two / "checkpoints" / last).glob("rank-*"))
    for name in shards:
        assert (one / "checkpoints" / last / name).read_bytes() == (two / "checkpoints" / last / name).read_bytes()
    first, second = summary(one), summary(two)
    for key in ("loss", "metrics", "best_epoch", "epochs", "parameters"):
        assert first[key] == second[key]


def straight(folder: Path, text: str, layout: str, *more: str) -> Path:
    (folder / "c.yaml").write_text(text)
    train(folder, "c.yaml", "--out", "straight", "--layout", layout, *more)
    return folder / "straight"


@pytest.mark.parametrize(
    ("text", "layout", "points"),
    [
        (GRAPH, "vertex=2", [(1, 5, "SIGKILL")]),
        pytest.param(GRAPH, "vertex=1", [(0, 2, "SIGKILL"), (0, 8, "disk")], marks=pytest.mark.slow),
        pytest.param(GRAPH, "layer=2,chunks=3", [(0, 5, "SIGSTOP"), (1, 8, "memory")], marks=pytest.mark.slow),
        pytest.param(GRAPH, "vertex=2,layer=2", [(3, 1, "SIGKILL"), (0, 9, "SIGKILL")], marks=pytest.mark.slow),
        pytest.param(TIMELINE, "time=2", [(0, 4, "SIGKILL"), (1, 7, "disk")], marks=pytest.mark.slow),
        pytest.param(TIMELINE, "vertex=2,time=2", [(2, 5, "SIGSTOP")], marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_by_itself_and_ends_as_if_nothing_had_been(
    tmp_path: Path, text: str, layout: str, points: list[tuple[int, int, str]]
) -> None:
    undisturbed = straight(tmp_path, text, layout)
    faults = [fault(tmp_path, *point) for point in points]
    done = train(tmp_path, "c.yaml", "--out", "run", "--layout", layout, "--restarts", "3", faults=faults)
    require_fired(faults)
    require_equal(tmp_path / "run", undisturbed)
    assert summary(tmp_path / "run")["restarts"] == len(points)
    assert summary(undisturbed)["restarts"] == 0
    assert f"Restart {len(points)} of 3." in done.stdout
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))
    shard = sorted(undisturbed.glob("checkpoints/epoch-*/rank-00000.safetensors"))[-1]
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(AssertionError):  # the comparison can fail
        require_equal(tmp_path / "run", undisturbed)


def test_what_would_come_again_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(GRAPH)
    words = ("c.yaml", "--restarts", "3", "--layout", "vertex=1")
    done = train(tmp_path, *words, "--out", "guard", "--set", "train.lr=1e6", code=1)
    assert "more than 10,000 times that of the first epoch" in done.stderr
    assert "Restart" not in done.stdout


@pytest.mark.slow
def test_what_nobody_foresaw_is_tried_again_once(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(GRAPH)
    bug = fault(tmp_path, 0, 2, "bug")
    words = ("c.yaml", "--restarts", "3", "--layout", "vertex=1")
    done = train(tmp_path, *words, "--out", "bug", faults=[bug], code=1)
    assert done.stdout.count("Restart ") == 1  # once, in case it was an accident
    assert "rank 0: ValueError: a bug" in done.stderr


@pytest.mark.parametrize(
    ("layout", "at"),
    [("vertex=2", "cut"), ("vertex=1", "config"), pytest.param("vertex=2", "config", marks=pytest.mark.slow)],
)
def test_a_full_disk_at_the_start_is_tried_again(tmp_path: Path, layout: str, at: str) -> None:
    (tmp_path / "c.yaml").write_text(GRAPH)
    full = {**fault(tmp_path, 0, 1, "ENOSPC"), "at": at}
    words = ("c.yaml", "--out", "run", "--layout", layout, "--set", "train.epochs=2")
    done = train(tmp_path, *words, "--restarts", "2", faults=[full])
    require_fired([full])
    assert "No space left on device" in done.stdout
    assert done.stdout.count("Restart 1 of 2.") == 1
    assert "Restart 2" not in done.stdout
    assert len(metrics(tmp_path / "run")) == 2
    # and without restarts it ends in a sentence
    Path(full["fired"]).unlink()
    done = train(tmp_path, *words[:2], "other", *words[3:], faults=[full], code=1)
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_torchrun_tries_a_full_disk_at_the_start_again(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(GRAPH)
    full = {**fault(tmp_path, 0, 1, "ENOSPC"), "at": "cut"}
    words = ("c.yaml", "--out", "run", "--layout", "vertex=2", "--set", "train.epochs=2")
    train(tmp_path, *words, faults=[full], launcher=torchrun(2, 2))
    require_fired([full])
    assert len(metrics(tmp_path / "run")) == 2


@pytest.mark.slow
def test_no_more_restarts_than_allowed(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(GRAPH)
    faults = [fault(tmp_path, 1, epoch, "SIGKILL") for epoch in (2, 5)]
    words = ("c.yaml", "--out", "run", "--layout", "vertex=2")
    done = train(tmp_path, *words, "--restarts", "1", faults=faults, code=1)
    assert "rank 1 was ended by signal 9" in done.stderr
    require_fired(faults)


@pytest.mark.parametrize(
    ("layout", "rank"),
    [
        ("vertex=2", 1),
        pytest.param("vertex=1", 0, marks=pytest.mark.slow),
        pytest.param("layer=2,chunks=3", 0, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_asked_to_end_keeps_its_epoch(tmp_path: Path, layout: str, rank: int) -> None:
    """One rank is asked; all stop after the same epoch, which is checkpointed."""
    undisturbed = straight(tmp_path, GRAPH, layout)
    asked = fault(tmp_path, rank, 5, "SIGTERM")
    words = ("--out", "run", "--layout", layout)
    done = train(tmp_path, "c.yaml", *words, "--restarts", "2", faults=[asked], code=143)
    require_fired([asked])
    # on a busy machine torch warns that a peer was slow to answer
    said = [line for line in done.stderr.splitlines() if not line.startswith("[W")]
    assert said == ["trisect: Stopped; continue with: trisect train --resume --out run"]
    assert "Restart" not in done.stdout
    assert [line["epoch"] for line in metrics(tmp_path / "run")] == [1, 2, 3, 4, 5]
    done = train(tmp_path, "--resume", *words)
    assert "Continuing after epoch 5." in done.stdout
    require_equal(tmp_path / "run", undisturbed)


def test_ctrl_c_while_ranks_write_a_checkpoint_leaves_no_draft(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(GRAPH)
    asked = {**fault(tmp_path, 1, 3, "launcher SIGINT"), "at": "shard"}
    words = ("--out", "run", "--layout", "vertex=2")
    done = train(tmp_path, "c.yaml", *words, faults=[asked], code=130)
    require_fired([asked])
    assert done.stderr == "trisect: Stopped; continue with: trisect train --resume --out run\n"
    assert not list((tmp_path / "run").rglob(".*"))
    stopped = summary(tmp_path / "run")["stopped"]
    assert (stopped["of"], stopped["signal"], stopped["checkpoint"]) == (9, "SIGINT", None)
    assert f"Stopped by the user after {stopped['epoch']} of 9 epochs; there is no checkpoint." in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_torchrun_that_is_stopped_leaves_a_summary(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "c.yaml").write_text(GRAPH)
    words = ("train", "c.yaml", "--out", "run", "--layout", "vertex=2", "--set", "train.epochs=100000")
    words += ("--set", "train.timeout=60")
    process = subprocess.Popen(
        [sys.executable, *torchrun(2), "-m", "trisect", *words],
        cwd=tmp_path,
        env=environment(tmp_path, []),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while process.poll() is None and not list(tmp_path.glob("run/checkpoints/epoch-*")):
            time.sleep(0.05)
        process.send_signal(number)
        shown, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert errors.count("trisect: Stopped; continue with: trisect train --resume --out run") == 1, errors
    stopped = summary(tmp_path / "run")["stopped"]
    assert (stopped["of"], stopped["signal"]) == (100000, number.name)
    assert f" after {stopped['epoch']:,} of 100,000 epochs" in (tmp_path / "run" / "report.html").read_text()
    assert "Report: run/report.html" in shown
    assert not list((tmp_path / "run").rglob(".*"))


DOUBLE = ("--set", "train.precision=float64")


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        (GRAPH, "vertex=2,layer=2", "vertex=1"),
        pytest.param(GRAPH, "layer=3", "vertex=2", marks=pytest.mark.slow),
        pytest.param(GRAPH, "vertex=3", "layer=2", marks=pytest.mark.slow),
        pytest.param(GRAPH, "layer=2,chunks=3", "vertex=3,chunks=2", marks=pytest.mark.slow),
        pytest.param(TIMELINE, "time=2", "time=2,vertex=2", marks=pytest.mark.slow),
        pytest.param(TIMELINE, "time=2,layer=2", "vertex=3", marks=pytest.mark.slow),
        pytest.param(TIMELINE, "vertex=1", "time=3", marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_under_another_layout_with_the_state_that_it_had(
    tmp_path: Path, text: str, before: str, after: str
) -> None:
    (tmp_path / "c.yaml").write_text(text)
    train(tmp_path, "c.yaml", "--out", "run", "--layout", before, *DOUBLE, "--set", "train.epochs=5")
    saved = RunDirectory.reopen(tmp_path / "run").checkpoints.latest()
    assert saved is not None
    dumped = fault(tmp_path, "every", 6, "dump")
    words = ("--resume", "--out", "run", "--layout", after, "--set", "train.epochs=7")
    done = train(tmp_path, *words, faults=[dumped])
    assert (
        f"Continuing after epoch 5 under another layout ({'one rank' if after == 'vertex=1' else after}" in done.stdout
    )
    if "chunks" in before:
        assert "history is that of another layout or cut" in done.stderr
    loaded: dict[str, torch.Tensor] = {}
    for file in sorted(Path(dumped["fired"]).glob("*.safetensors")):
        for name, value in load_file(file).items():
            if not name.startswith("program."):
                # ranks that hold the same stage hold the same state
                assert name not in loaded or loaded[name].equal(value)
                loaded[name] = value
        meta = json.loads(file.with_suffix(".json").read_text())
        assert {**saved.meta, "guard": None} == {**saved.meta, **meta, "guard": None}
    wanted = {name: value for name, value in saved.tensors.items() if not name.startswith(("program.", "good."))}
    loaded = {name: value for name, value in loaded.items() if not name.startswith("good.")}
    assert loaded.keys() == wanted.keys()
    assert any(name.startswith("optimiser.exp_avg_sq.") for name in wanted)
    assert any(name.startswith("best.") for name in wanted)
    assert all(loaded[name].equal(wanted[name]) for name in wanted)
    if "chunks" in before:
        return
    # and it ends as a run that never changed, to the last bits of float64
    train(tmp_path, "c.yaml", "--out", "alone", *DOUBLE, "--set", "train.epochs=7")
    assert summary(tmp_path / "run")["loss"] == pytest.approx(summary(tmp_path / "alone")["loss"], rel=1e-10)
    assert summary(tmp_path / "run")["loss"] != pytest.approx(summary(tmp_path / "alone")["loss"][::-1], rel=1e-10)


def torchrun(ranks: int, restarts: int = 0) -> tuple[str, ...]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ("--nproc-per-node", str(ranks), "--master-addr", "127.0.0.1", "--master-port", str(port))
    return ("-m", "torch.distributed.run", *words, "--max-restarts", str(restarts))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["SIGKILL", "SIGSTOP", "disk"])
def test_torchrun_starts_the_ranks_again(tmp_path: Path, kind: str) -> None:
    undisturbed = straight(tmp_path, GRAPH, "vertex=2")
    faults = [fault(tmp_path, 1, 5, kind)]
    words = ("c.yaml", "--out", "run", "--layout", "vertex=2")
    done = train(tmp_path, *words, faults=faults, launcher=torchrun(2, 2))
    require_fired(faults)
    # the checkpoint of epoch 3 may still have been under way
    assert "Continuing after epoch 3." in done.stdout or "There is no checkpoint in" in done.stdout
    require_equal(tmp_path / "run", undisturbed)
    assert summary(tmp_path / "run")["restarts"] == 1


@pytest.mark.slow
def test_torchrun_restarts_do_not_take_a_run_of_another_for_their_own(tmp_path: Path) -> None:
    undisturbed = straight(tmp_path, GRAPH, "vertex=2")
    before = {path: path.read_bytes() for path in undisturbed.rglob("*") if path.is_file()}
    words = ("c.yaml", "--out", "straight", "--layout", "vertex=2", "--set", "train.epochs=20")
    done = train(tmp_path, *words, launcher=torchrun(2, 2), code=1)
    assert "already holds a run" in done.stderr
    assert {path: path.read_bytes() for path in undisturbed.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_fewer_ranks_go_on_under_a_layout_of_their_number(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(GRAPH)
    words = ("c.yaml", "--out", "run", "--layout", "auto", "--resume")
    done = train(tmp_path, *words, *DOUBLE, "--set", "train.epochs=4", launcher=torchrun(3))
    assert "There is no run in" in done.stdout
    assert summary(tmp_path / "run")["world"] == 3
    done = train(tmp_path, *words, *DOUBLE, launcher=torchrun(2))
    assert "Continuing after epoch 4 under another layout" in done.stdout
    assert summary(tmp_path / "run")["world"] == 2
    train(tmp_path, "c.yaml", "--out", "alone", *DOUBLE)
    assert summary(tmp_path / "run")["loss"] == pytest.approx(summary(tmp_path / "alone")["loss"], rel=1e-10)


@pytest.mark.slow
def test_torchrun_hands_on_a_request_to_end(tmp_path: Path) -> None:
    """SIGTERM to torchrun, which hands it on to all of its ranks."""
    (tmp_path / "c.yaml").write_text(GRAPH)
    words = ("train", "c.yaml", "--out", "run", "--layout", "vertex=2")
    command = [sys.executable, *torchrun(2), "-m", "trisect", *words, "--set", "train.epochs=100000"]
    process = subprocess.Popen(
        [*command, "--set", "train.checkpoint_every=100000"],
        cwd=tmp_path,
        env=environment(tmp_path, []),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        while not next(line for line in process.stdout).startswith("epoch 1/"):
            pass
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        process.wait(60)
    finally:
        process.kill()
        process.wait()
    stopped = metrics(tmp_path / "run")[-1]["epoch"]
    last = stopped + 2
    done = train(tmp_path, "--resume", "--out", "run", "--set", f"train.epochs={last}")
    assert f"Continuing after epoch {stopped}." in done.stdout
    train(tmp_path, "c.yaml", "--out", "straight", "--layout", "vertex=2", "--set", f"train.epochs={last}")
    require_equal(tmp_path / "run", tmp_path / "straight")
