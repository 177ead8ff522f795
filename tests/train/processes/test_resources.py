"""Full disks, used-up memory and too many files: each error of the system becomes one sentence."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trisect.errors import RunError
from trisect.train.processes.resources import explain, explaining_limits


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENOMEM])
def test_errors_of_the_system_are_sentences(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    for remedy in ("[^;]*", ".* then go on with trisect train --resume --out run"):
        with pytest.raises(RunError, match=rf"\(/disk/file\); {remedy}\.$"), explaining_limits(Path("run")):
            raise OSError(number, os.strerror(number), "/disk/file")
        Path("run", "config.yaml").touch()  # from here on there is a run to go on with


def test_the_run_is_named_where_the_file_is_not():
    assert "(run); make room" in (explain(OSError(errno.ENOSPC, "No space left on device"), Path("run")) or "")


def test_memory():
    with pytest.raises(RunError, match=r"The memory is used up .* use a layout of more parts"), explaining_limits():
        torch.empty(1 << 60)
    with pytest.raises(RunError, match="no more could be allocated"), explaining_limits():
        raise MemoryError


def test_an_array_that_does_not_fit_on_the_disk(tmp_path: Path):
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (600, -1)); import numpy as np;"
    code += "from trisect.train.processes.resources import explain\n"
    code += "try: np.save('a.npy', np.zeros(1000))\nexcept OSError as error: print(explain(error))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("A file could not be written whole (1000 requested and "), done.stdout


def test_other_errors_pass():
    for error in (RuntimeError("shapes differ"), FileNotFoundError(errno.ENOENT, "no", "x"), OSError("odd")):
        with pytest.raises(type(error)) as raised, explaining_limits():
            raise error
        assert raised.value is error
