"""The lock of a run directory: one holder, whatever files come and go, and nothing outside is touched."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from trisect.errors import CheckpointError
from trisect.train.run.lock import LOCK, locked


def test_one_holder_at_a_time(tmp_path: Path):
    with locked(tmp_path):
        with pytest.raises(CheckpointError, match="Another process is writing"), locked(tmp_path):
            pass
        assert (tmp_path / LOCK).exists()  # the one that was refused has not removed it
        with pytest.raises(CheckpointError, match="Another process is writing"), locked(tmp_path):
            pass
    with locked(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_a_file_that_was_removed_meanwhile_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The holder ends between our opening of its file and our lock on it: that file keeps nobody out."""
    take, calls = fcntl.flock, []

    def flock(handle: int, operation: int) -> None:
        take(handle, operation)
        calls.append(handle)
        if len(calls) == 1:
            (tmp_path / LOCK).unlink()

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(tmp_path):
        assert len(calls) == 2
        with pytest.raises(CheckpointError, match="Another process is writing"), locked(tmp_path):
            pass


def test_a_link_is_not_followed(tmp_path: Path):
    outside = tmp_path / "precious"
    outside.write_text("kept")
    run = tmp_path / "run"
    run.mkdir()
    (run / LOCK).symlink_to(outside)
    with pytest.raises(CheckpointError, match="symbolic link"), locked(run):
        pass
    assert outside.read_text() == "kept"


def test_a_queue_does_not_hold_us_up(tmp_path: Path):
    os.mkfifo(tmp_path / LOCK)
    with locked(tmp_path):
        pass
