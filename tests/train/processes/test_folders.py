"""Temporary folders: removed by their owner, or by the next process where the owner was killed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from trisect.train.processes.folders import remove_abandoned, temporary_folder
from trisect.train.run.lock import LOCK


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def aged(folder: Path) -> Path:
    os.utime(folder, (0, 0))
    return folder


def left(folder: Path) -> Path:
    """What a process that was killed leaves: the file of its lock, which nobody holds."""
    folder.mkdir()
    (folder / LOCK).touch()
    (folder / "shard").write_text("large")
    return aged(folder)


def test_a_folder_ends_with_its_owner(temporary: Path):
    with temporary_folder("trisect-job-") as folder:
        assert folder.parent == temporary
        assert folder.stat().st_mode & 0o077 == 0
        (folder / "shard").write_text("large")
    assert not list(temporary.iterdir())


def test_what_a_killed_run_left_is_removed_by_the_next(temporary: Path):
    left(temporary / "trisect-job-a")
    left(temporary / "trisect-shards-b")
    with temporary_folder("trisect-job-") as folder:
        assert list(temporary.iterdir()) == [folder]


def test_what_may_be_anothers_stays(temporary: Path):
    with temporary_folder("trisect-job-") as alive:
        aged(alive)
        kept = {left(temporary / "trisect-other"), left(temporary / "else"), left(temporary / "trisect-job-young")}
        os.utime(temporary / "trisect-job-young")
        bare = left(temporary / "trisect-job-bare")
        (bare / LOCK).unlink()
        aged(bare)
        link = temporary / "trisect-job-link"
        link.symlink_to(temporary / "else")
        assert remove_abandoned() == []
        assert set(temporary.iterdir()) == {alive, bare, link, *kept}
