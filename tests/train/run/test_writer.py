"""Checkpoints that a thread writes: copies of the state, one at a time, whole or not there, and failures are raised."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from trisect.comm.notes import OwnNotes
from trisect.train.run import writer as module
from trisect.train.run.checkpoint import Checkpoints
from trisect.train.run.writer import CheckpointWriter


def everything(name: str) -> bool:
    return True


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Nothing is written before it is opened."""
    opened = threading.Event()
    honest = module.write_shard

    def write(*arguments):
        assert opened.wait(30)
        return honest(*arguments)

    monkeypatch.setattr(module, "write_shard", write)
    return opened


def test_the_state_is_that_of_the_call_and_copies_are_used_again(tmp_path: Path, gate: threading.Event):
    checkpoints = Checkpoints(tmp_path, run="r")
    writer = CheckpointWriter(checkpoints)
    state, best = torch.zeros(5), torch.ones(5)
    writer.begin({"model.w": state, "best.model.w": best}, everything, {"epoch": 1}, best=True)
    state.fill_(7.0)  # the next epoch, while the thread waits
    assert checkpoints.paths() == []
    gate.set()
    writer.wait()
    first = checkpoints.latest()
    assert first is not None
    assert first.tensors["model.w"].equal(torch.zeros(5))
    assert first.tensors["best.model.w"].equal(best)
    buffer = writer._buffers["model.w"].data_ptr()
    writer.begin({"model.w": state}, everything, {"epoch": 2}, best=False)
    writer.wait()
    second = checkpoints.latest()
    assert second is not None
    assert second.tensors["model.w"].equal(state)
    assert writer._buffers["model.w"].data_ptr() == buffer


def test_the_next_checkpoint_waits_for_the_one_before(tmp_path: Path, gate: threading.Event):
    writer = CheckpointWriter(Checkpoints(tmp_path, run="r"))
    writer.begin({"w": torch.zeros(2)}, everything, {"epoch": 1}, best=False)
    threading.Timer(0.2, gate.set).start()
    writer.begin({"w": torch.zeros(2)}, everything, {"epoch": 2}, best=False)
    assert (tmp_path / "epoch-000001").exists()
    writer.wait()
    assert (tmp_path / "epoch-000002").exists()


def test_without_room_for_copies_the_checkpoint_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "free_bytes", lambda device: 10)
    writer = CheckpointWriter(Checkpoints(tmp_path, run="r"))
    writer.begin({"w": torch.zeros(20)}, everything, {"epoch": 1}, best=False)
    assert (tmp_path / "epoch-000001" / "manifest.json").exists()
    assert writer._buffers == {}
    writer.begin({"w": torch.zeros(20)}, everything, {"epoch": 2}, best=False, offered=True)
    writer.wait()
    assert not (tmp_path / "epoch-000002").exists()


def test_a_failure_is_raised_at_the_next_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*arguments):
        raise OSError(28, "No space left on device", "x")

    monkeypatch.setattr(module, "write_shard", fail)
    writer = CheckpointWriter(Checkpoints(tmp_path, run="r"))
    writer.begin({"w": torch.zeros(2)}, everything, {"epoch": 1}, best=False)
    with pytest.raises(OSError, match="No space left"):
        writer.wait()
    with pytest.raises(OSError, match="No space left"):
        writer.check()


@pytest.mark.parametrize("fails", [False, True])
def test_ranks_agree_without_an_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool):
    honest = module.write_shard

    def write(draft: Path, rank: int, tensors):
        if fails and rank == 1:
            raise OSError(5, "Input/output error", "x")
        return honest(draft, rank, tensors)

    monkeypatch.setattr(module, "write_shard", write)
    notes, checkpoints = OwnNotes(), Checkpoints(tmp_path, run="r")
    writers = [CheckpointWriter(checkpoints, rank=rank, world=3, notes=notes, compare=True) for rank in range(3)]
    for rank, writer in reversed(list(enumerate(writers))):
        tensors = {"model.w": torch.ones(3), f"program.rank-{rank}": torch.full((2,), float(rank))}
        writer.begin(tensors, lambda name, rank=rank: rank == 0 or name != "model.w", {"epoch": 4}, best=False)
    if fails:
        with pytest.raises(OSError, match="Input/output"):
            writers[1].wait()
        writers[0].wait()
        writers[2].wait()
        assert checkpoints.paths() == []
        return
    for writer in writers:
        writer.wait()
    whole = checkpoints.latest()
    assert whole is not None
    assert sorted(whole.tensors) == ["model.w", *(f"program.rank-{rank}" for rank in range(3))]


def test_ranks_that_differ_make_no_checkpoint(tmp_path: Path):
    notes, checkpoints = OwnNotes(), Checkpoints(tmp_path, run="r")
    writers = [CheckpointWriter(checkpoints, rank=k, world=2, notes=notes, compare=True) for k in range(2)]
    for rank, writer in enumerate(writers):
        writer.begin({"model.w": torch.full((3,), 1.0 + rank)}, everything, {"epoch": 4}, best=False)
    with pytest.raises(Exception, match="rank 1 holds other parameters than rank 0 after epoch 4"):
        writers[0].wait()
    writers[1].wait()
    assert checkpoints.paths() == []


def test_a_rank_that_does_not_answer_is_not_waited_for_for_ever(tmp_path: Path):
    writer = CheckpointWriter(Checkpoints(tmp_path, run="r"), world=2, notes=OwnNotes(), timeout=0.3)
    writer.begin({"w": torch.zeros(2)}, everything, {"epoch": 1}, best=False)
    with pytest.raises(RuntimeError, match="Timed out"):
        writer.wait()


def test_what_is_offered_is_whole_where_all_ranks_offer_it_and_dropped_otherwise(tmp_path: Path):
    notes, checkpoints = OwnNotes(), Checkpoints(tmp_path, run="r", keep=9)
    writers = [CheckpointWriter(checkpoints, rank=k, world=2, notes=notes) for k in range(2)]
    for epoch, offering in ((3, writers), (5, writers[:1])):
        for writer in offering:
            writer.begin({"model.w": torch.zeros(3)}, everything, {"epoch": epoch}, best=False, offered=True)
        if epoch == 3:
            for writer in writers:
                writer.wait()
    time.sleep(0.05)
    for writer in writers:  # nobody waits for the offer of rank 0
        writer.begin({"program.x": torch.zeros(3)}, lambda name: False, {"epoch": 6}, best=False)
    for writer in writers:
        writer.wait()
    assert [path.name for path in checkpoints.paths()] == ["epoch-000003", "epoch-000006"]
    assert not list(tmp_path.glob(".epoch-000005*"))


def test_a_wait_that_is_interrupted_leaves_a_checkpoint_that_is_being_written(tmp_path: Path, gate: threading.Event):
    checkpoints = Checkpoints(tmp_path, run="r")
    writer = CheckpointWriter(checkpoints)
    writer.begin({"w": torch.zeros(2)}, everything, {"epoch": 1}, best=False)
    threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        writer.wait()
    assert writer.writing
    gate.set()
    writer.wait()
    assert not writer.writing
    assert checkpoints.latest() is not None
