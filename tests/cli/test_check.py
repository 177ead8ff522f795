"""`trisect check` counts what the layout saves, and makes the schedules of worlds that are not here."""

from __future__ import annotations

import re

import pytest
import torch

from trisect.train import clusters
from trisect.train.processes import launch

DESCRIBED = """
data: {vertices: 1000000, edges: 20000000, features: 64, classes: 10, halo: 1.5}
model: {name: gcn, layers: 4, hidden: 64}
task: node-classification
"""


@pytest.fixture
def needed(trisect, small_timeline):
    def estimate(*words: str) -> int:
        # steps whose activations take more than what one step takes while it is computed
        sizes = ("data.vertices=20000", "model.hidden=64", "data.steps=24")
        shown = trisect("check", small_timeline, *(word for size in sizes for word in ("--set", size)), *words)
        assert shown.code == 0, shown.err
        return int(re.search(r"memory: about ([\d,]+) MiB", shown.out).group(1).replace(",", ""))

    return estimate


def test_blocks_save_memory(needed):
    whole = needed()
    assert whole == needed("--layout", "blocks=1") > 0
    blocks = needed("--layout", "blocks=3")
    assert blocks < 0.95 * whole
    # of each rank
    assert needed("--layout", "time=2,blocks=3") < blocks


def test_a_world_that_is_not_here(trisect, tmp_path):
    path = tmp_path / "described.yaml"
    path.write_text(DESCRIBED)
    shown = trisect("check", path, "--devices", "128", "--cluster", "8xa100", "--layout", "vertex=128")
    assert shown.code == 0, shown.err
    assert "nothing was read" in shown.out
    assert "schedule: 128 ranks" in shown.out
    wrong = trisect("check", path, "--devices", "64", "--cluster", "8xa100", "--layout", "vertex=128")
    assert wrong.code == 2
    assert "--devices is 64, but the layout vertex=128 has 128 ranks" in wrong.err


def test_what_will_not_fit_is_refused_before_it_is_made(trisect, tmp_path):
    path = tmp_path / "large.yaml"
    path.write_text(DESCRIBED.replace("vertices: 1000000, edges: 20000000", "vertices: 900000000, edges: 2000000000"))
    shown = trisect("check", path)
    assert shown.code == 2
    assert re.search(r"needs [\d.,]+ of [\d.,]+ GiB: \w+ [\d.,]+", shown.err)
    generated = tmp_path / "generated.yaml"
    generated.write_text(
        DESCRIBED.replace(re.search(r"data: .*", DESCRIBED)[0], "data: {generate: rmat, vertices: 300000000}")
    )
    shown = trisect("check", generated)
    assert shown.code == 2
    assert "nothing was read" in shown.out


def test_ranks_that_share_cores_are_said(trisect, small, monkeypatch):
    monkeypatch.setattr(clusters, "usable_cores", lambda: 2)
    for module in (clusters, launch):
        monkeypatch.setattr(module, "free_bytes", lambda device, bounded=True: 1 << 40)
    monkeypatch.setenv("TRISECT_CLUSTER", "none.yaml")
    for words in (("--layout", "vertex=64"), ("--devices", "64", "--layout", "vertex=64")):
        shown = trisect("check", small, *words)
        assert shown.code == 0, shown.err
        assert "cores: 64 ranks share 2 cores" in shown.out
    assert "share" not in trisect("check", small, "--layout", "vertex=2").out
    # of 64 devices the planner takes one
    assert "share" not in trisect("check", small, "--devices", "64").out
    # 64 ranks are two hosts of 32 cores there
    assert "share" not in trisect("check", small, "--devices", "64", "--cluster", "cpu-10gb").out


@pytest.mark.parametrize("command", ["check", "plan", "train"])
def test_weights_that_will_not_fit_are_never_made(trisect, small, command):
    """Of 1.2 TB of weights, not even one layer's is drawn or tried."""
    shown = trisect(command, small, "--set", "model.hidden=200000", "--set", "model.layers=8")
    assert shown.code == 2
    assert shown.err.count("\n") == 1
    assert re.search(r"[Nn]o layout of \d+ devices? fits", shown.err)
    assert command == "plan" or re.search(r"needs .*: optimiser [\d,.]+, parameters|\(optimiser [\d,.]+", shown.err)


def test_a_decoder_that_will_not_fit_is_never_made(trisect, small, monkeypatch):
    """Of the 160 GB of a decoder's weights, only the outline is made."""
    sizes = ("task.decoder=mlp", "task.hidden=100000", "model.hidden=400000")
    made = []
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *shape, **more: made.append(zeros(*shape, **more)) or made[-1])
    shown = trisect("check", small, *(word for size in sizes for word in ("--set", size)))
    assert shown.code == 2
    assert re.search(r"[Nn]o layout of \d+ devices? fits", shown.err)
    assert max(tensor.nbytes for tensor in made if tensor.device.type != "meta") < 1 << 30
