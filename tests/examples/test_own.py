"""The examples of one's own loop and training: the same losses on one rank and on two."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"


def printed(*command: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return "\n".join(line for line in done.stdout.splitlines() if re.match("epoch|test", line))


def test_a_loop_of_ones_own_prints_the_same_under_torchrun() -> None:
    pytest.importorskip("torch_geometric")
    script = str(FOLDER / "own_loop.py")
    alone = printed(sys.executable, script)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    assert printed(*torchrun, script) == alone
    losses = [float(value) for value in re.findall(r"loss ([\d.]+)", alone)]
    assert losses[-1] < 0.5 * losses[0]  # of epochs 10 and 40: it learns


@pytest.mark.parametrize("layout", ["vertex=2", "layer=2"])
def test_a_training_of_ones_own_prints_the_same_under_a_layout(layout: str) -> None:
    pytest.importorskip("cloudpickle")
    script = str(FOLDER / "lightning_style.py")
    alone = printed(sys.executable, script)
    assert printed(sys.executable, script, layout) == alone
    assert float(alone.rpartition("top2 ")[2]) > 0.9
