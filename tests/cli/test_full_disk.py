"""A disk that fills up ends a run in one sentence, and loses nothing that was written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from trisect.train.run import checkpoint


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fills_up_keeps_the_checkpoints_before(
    trisect, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
):
    written = checkpoint.write_synced

    def fail(path: Path, content: bytes) -> None:
        if path.parent.name == ".epoch-000004.draft":
            raise OSError(number, os.strerror(number), str(path))
        written(path, content)

    monkeypatch.setattr(checkpoint, "write_synced", fail)
    shown = trisect("train", small, "--out", "run")
    assert shown.code == 1
    assert shown.err.startswith(f"trisect: {os.strerror(number)} (")
    assert "go on with trisect train --resume --out run" in shown.err
    assert "Traceback" not in shown.err
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert trisect("train", "--resume", "--out", "run").code == 0
    assert trisect("train", small, "--out", "straight").code == 0
    name = "checkpoints/epoch-000006/rank-00000.safetensors"
    assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()
    assert not [path.name for path in (tmp_path / "run" / "checkpoints").iterdir() if path.name.startswith(".")]
