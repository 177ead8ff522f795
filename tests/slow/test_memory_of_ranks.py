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

# what every rank has to itself, whatever its share is; trisect loads torch only when it is needed
LIBRARIES = """
import torch, trisect.train.ranks
torch.optim.Adam([torch.zeros(1, requires_grad=True)])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("RssAnon")))
"""


def memory(folder: Path, *layout: str) -> dict[str, list[int] | None]:
    out = folder / "-".join(["run", *layout]).replace(",", "-")
    command = [sys.executable, "-m", "trisect", "train", "c.yaml", "--out", str(out), *layout]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return dict(json.loads((out / "summary.json").read_text())["memory"])


def peak(folder: Path, *layout: str) -> int:
    """Of the largest rank; pages that ranks share count once."""
    found = memory(folder, *layout)["peak_pss_bytes"]
    if found is None:
        pytest.skip("the system does not tell which pages are shared")
    return max(found)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("axis", ["vertex", "layer"])
@pytest.mark.parametrize("transport", ["auto", "network"])
def test_peak_memory_falls_as_ranks_are_added(tmp_path: Path, axis: str, transport: str) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG)
    empty = subprocess.run([sys.executable, "-c", LIBRARIES], capture_output=True, text=True, check=True)
    base = int(empty.stdout) * 1024
    alone = peak(tmp_path) - base
    two, four = (peak(tmp_path, "--layout", f"{axis}={ranks},transport={transport}") - base for ranks in (2, 4))
    assert two < 0.8 * alone, (alone, two, four)
    assert four < 0.8 * two, (alone, two, four)


@pytest.mark.slow
def test_a_stage_with_history_holds_less_than_one_process(tmp_path: Path) -> None:
    """Four stages, on a graph beside which the libraries are small; what a stage holds is in docs/how.md."""
    larger = CONFIG.replace("hidden: 100", "hidden: 100, dropout: 0.5")
    (tmp_path / "c.yaml").write_text(larger)
    found, alone = (memory(tmp_path, *words)["peak_rss_bytes"] for words in (["--layout", "layer=4,chunks=16"], []))
    assert found is not None
    assert alone is not None
    assert max(found) < 0.8 * max(alone)


WIDE = """
data: {generate: community, vertices: 8000, degree: 15, features: 4714, classes: 4}
model: {name: gcn, layers: 2, hidden: 64}
task: node-classification
train: {epochs: 3, eval_every: 1}
"""
MANY = """
data: {generate: community, vertices: 40000, degree: 10, features: 32, classes: 500, per_class: 5}
model: {name: gcn, layers: 2, hidden: 16}
task: node-classification
train: {epochs: 3, eval_every: 1}
"""
TIMELINE = """
data: {generate: evolving, vertices: 20000, steps: 24, degree: 6, features: 16}
model: {name: cd-gcn, layers: 2, hidden: 32}
task: {name: node-classification, split: [0.3, 0.3, 0.4]}
train: {epochs: 2, eval_every: 1}
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("config", "layout"),
    [(text, cut) for text in (WIDE, MANY) for cut in ("vertex=1", "vertex=2", "layer=2,chunks=8")]
    + [(TIMELINE, "vertex=1"), (TIMELINE, "blocks=4"), (TIMELINE, "time=2")],
)
def test_what_is_predicted_covers_reading_training_and_evaluation(tmp_path: Path, config: str, layout: str) -> None:
    (tmp_path / "c.yaml").write_text(config)
    measured = memory(tmp_path, "--layout", layout)["peak_rss_bytes"]
    run = next(tmp_path.glob("run-*"))
    predicted = json.loads((run / "summary.json").read_text())["plan"]["memory_bytes"]
    assert measured is not None
    assert predicted > 0.92 * max(measured), (predicted, measured)
