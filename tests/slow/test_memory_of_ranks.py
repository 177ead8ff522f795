"""Each rank holds its share alone: the most memory of a rank falls as ranks are added."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = """
data: {generate: community, vertices: 120000, degree: 12, features: 32}
model: {name: gcn, layers: 16, hidden: 100}
task: node-classification
train: {epochs: 2, eval_every: 2, threads: 1}
"""

# what every rank loads, whatever its share is; trisect itself loads torch only when it is needed
LIBRARIES = """
import resource, torch, trisect.train.ranks
torch.optim.Adam([torch.zeros(1, requires_grad=True)])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak(folder: Path, *layout: str) -> int:
    out = folder / "-".join(["run", *layout]).replace(",", "-")
    command = [sys.executable, "-m", "trisect", "train", "c.yaml", "--out", str(out), *layout]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return max(json.loads((out / "summary.json").read_text())["memory"]["peak_rss_bytes"])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("axis", ["vertex", "layer"])
def test_peak_memory_falls_as_ranks_are_added(tmp_path: Path, axis: str) -> None:
    """With `auto` rows in memory that two ranks share are in the figure of both."""
    (tmp_path / "c.yaml").write_text(CONFIG)
    empty = subprocess.run([sys.executable, "-c", LIBRARIES], capture_output=True, text=True, check=True)
    base = int(empty.stdout) * 1024
    alone = peak(tmp_path) - base
    for transport, bound in (("network", 0.8), ("auto", 0.85)):
        two, four = (peak(tmp_path, "--layout", f"{axis}={ranks},transport={transport}") - base for ranks in (2, 4))
        assert two < bound * alone, (transport, alone, two, four)
        assert four < bound * two, (transport, alone, two, four)


@pytest.mark.slow
def test_a_stage_with_history_holds_less_than_one_process(tmp_path: Path) -> None:
    """Four stages, on a graph beside which the libraries are small; what a stage holds is in docs/how.md."""
    larger = CONFIG.replace("hidden: 100", "hidden: 100, dropout: 0.5")
    (tmp_path / "c.yaml").write_text(larger)
    assert peak(tmp_path, "--layout", "layer=4,chunks=16") < 0.8 * peak(tmp_path)
