"""`trisect predict` on several ranks: each its own rows, and together what one process gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

CONFIG = """
data: {path: graph, features: 8, classes: 3}
model: {name: NAME, layers: 3, hidden: 8, dropout: 0.3}
task: TASK
train: {epochs: 4, lr: 0.01, eval_every: 2}
"""
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "trisect"]


def trisect(folder: Path, *arguments: str, start: tuple[str, ...] = ("-m", "trisect")) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *start, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph with text ids, and runs on it under two layouts: one with a decoder, one without."""
    path = tmp_path_factory.mktemp("predict")
    rng = np.random.default_rng(0)
    rows = [f"v{a},v{b}" for a, b in rng.integers(0, 90, (400, 2)) if a != b]
    (path / "edges.csv").write_text("src,dst\n" + "\n".join(rows) + "\n")
    trisect(path, "data", "ingest", "edges.csv", "--src", "src", "--dst", "dst", "--undirected", "-o", "graph")
    for name, model, task, layout in (
        ("plain", "gcnii", "node-classification", "vertex=2,layer=2,chunks=2"),
        ("decoded", "gcn", "{name: node-classification, decoder: linear}", "layer=2"),
    ):
        (path / f"{name}.yaml").write_text(CONFIG.replace("NAME", model).replace("TASK", task))
        trisect(path, "train", f"{name}.yaml", "--out", name, "--layout", layout)
    return path


def read(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


@pytest.fixture(scope="module", params=["plain", "decoded"])
def run(request: pytest.FixtureRequest, folder: Path) -> tuple[str, dict[str, np.ndarray]]:
    """A run, and what one process gives for it."""
    said = trisect(folder, "predict", request.param, "--out", f"{request.param}.npz", "--layout", "vertex=1")
    assert "(90 rows)" in said
    return request.param, read(folder / f"{request.param}.npz")


@pytest.mark.parametrize(
    "layout",
    [None, pytest.param("vertex=3", marks=pytest.mark.slow), pytest.param("layer=3", marks=pytest.mark.slow)],
)
def test_equal_to_one_process(folder: Path, run: tuple[str, dict[str, np.ndarray]], layout: str | None) -> None:
    name, expected = run
    said = trisect(folder, "predict", name, "--out", "p.npz", *([] if layout is None else ["--layout", layout]))
    assert "(90 rows)" in said
    found = read(folder / "p.npz")
    assert list(found) == list(expected)
    assert np.array_equal(found["vertex"], expected["vertex"])
    assert np.array_equal(found["class"], expected["class"])
    for column in ("embedding", "probability"):
        assert np.allclose(found[column], expected[column], atol=1e-5)
        assert not np.allclose(np.roll(found[column], 1, 0), expected[column], atol=1e-5)
    assert not list(folder.glob(".p.npz*"))


@pytest.mark.slow
def test_a_parquet_file_of_a_cut_run(folder: Path, run: tuple[str, dict[str, np.ndarray]]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    name, expected = run
    trisect(folder, "predict", name)
    table = parquet.read_table(folder / name / "predictions.parquet").to_pydict()
    assert table["vertex"] == expected["vertex"].tolist()
    assert table["class"] == expected["class"].tolist()
    assert np.allclose(np.array(table["embedding"]), expected["embedding"], atol=1e-5)


@pytest.mark.slow
def test_under_torchrun(folder: Path, run: tuple[str, dict[str, np.ndarray]]) -> None:
    name, expected = run
    said = trisect(folder, "predict", name, "--out", "t.npz", "--layout", "vertex=2", start=tuple(TORCHRUN))
    assert said.count("Predictions: t.npz (90 rows)") == 1
    found = read(folder / "t.npz")
    assert np.array_equal(found["vertex"], expected["vertex"])
    assert np.allclose(found["embedding"], expected["embedding"], atol=1e-5)


TIMELINE = """
data: {generate: evolving, vertices: 60, steps: 8, communities: 3, features: 6}
model: {name: cd-gcn, layers: 2, hidden: 4}
task: {name: link-prediction, eval_negatives: 5}
train: {epochs: 2}
"""


OTHERS = ["vertex=2", "layer=2", "time=2,vertex=2", "time=2,layer=2", "layer=2,vertex=2"]


@pytest.mark.parametrize("layout", ["time=2", *(pytest.param(other, marks=pytest.mark.slow) for other in OTHERS)])
def test_timelines(folder: Path, layout: str) -> None:
    (folder / "timeline.yaml").write_text(TIMELINE)
    trisect(folder, "train", "timeline.yaml", "--out", f"timeline-{layout}", "--layout", layout)
    for out, chosen in (("one.npz", ["--layout", "vertex=1"]), ("two.npz", [])):
        said = trisect(folder, "predict", f"timeline-{layout}", "--out", out, "--steps", "all", *chosen)
        assert "(480 rows: steps 0 to 7 of 0 to 7)" in said
    one, two = read(folder / "one.npz"), read(folder / "two.npz")
    assert np.array_equal(one["vertex"], two["vertex"])
    assert two["embedding"].shape[:2] == (8, 60)
    assert np.allclose(one["embedding"], two["embedding"], atol=1e-5)
    assert not np.allclose(one["embedding"], np.roll(two["embedding"], 1, 0), atol=1e-5)
