"""Full disks, used-up memory and too many files end a run in one sentence, and lose nothing that was written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from trisect.errors import RunError
from trisect.train.processes.resources import explain, explaining_limits
from trisect.train.run import checkpoint


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENOMEM])
def test_errors_of_the_system_are_sentences(number: int):
    with (
        pytest.raises(RunError, match=r"\(/disk/file\); .* then go on with trisect train --resume --out run\.$"),
        explaining_limits(Path("run")),
    ):
        raise OSError(number, os.strerror(number), "/disk/file")


def test_the_run_is_named_where_the_file_is_not():
    assert "(run); make room" in (explain(OSError(errno.ENOSPC, "No space left on device"), Path("run")) or "")


def test_memory():
    with pytest.raises(RunError, match=r"The memory is used up .* use a layout of more parts"), explaining_limits():
        torch.empty(1 << 60)
    with pytest.raises(RunError, match="no more could be allocated"), explaining_limits():
        raise MemoryError


def test_other_errors_pass():
    for error in (RuntimeError("shapes differ"), FileNotFoundError(errno.ENOENT, "no", "x"), OSError("odd")):
        with pytest.raises(type(error)) as raised, explaining_limits():
            raise error
        assert raised.value is error


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
