"""`trisect plan`, and what `train` does with the planner's answer."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

DESCRIBED = """
data: {vertices: 232965, edges: 57424428, features: 602, classes: 41, halo: {8: 2.61}}
model: {name: gcn, layers: 8, hidden: 100}
task: node-classification
"""


@pytest.fixture
def described(tmp_path):
    path = tmp_path / "described.yaml"
    path.write_text(DESCRIBED)
    return path


def test_data_that_are_not_here(trisect, described, tmp_path):
    target = tmp_path / "plan.json"
    shown = trisect("plan", described, "--cluster", "2x4-a5000", "--devices", "4", "--json", target)
    assert shown.code == 0, shown.err
    assert "1. " in shown.out
    assert "a preset, not measured" in shown.out
    assert "approximate" not in shown.out
    plain = json.loads(target.read_text())
    assert plain["cluster"] == {"name": "2x4-a5000", "source": "preset"}
    assert len(plain["best"]) <= 5
    assert set(plain["best"][0]["seconds"]) == {"compute", "communication", "bubble", "overhead"}
    assert plain["best"][0]["bytes_per_epoch"] == sum(plain["best"][0]["bytes_by_axis"].values())
    trained = trisect("train", described, "--out", tmp_path / "run")
    assert trained.code == 2
    assert "can be planned and checked but not trained" in trained.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--devices", "0"], "--devices is 0"),
        (["--cluster", "8xa10"], "did you mean '8xa100'"),
        (["--calibrate", "--cluster", "8xa100"], "give one of them"),
        (["--set", "data.vertexes=3"], "did you mean 'vertices'"),
    ],
)
def test_refused_in_one_sentence(trisect, described, words, said):
    shown = trisect("plan", described, *words)
    assert shown.code == 2
    assert said in shown.err


def test_a_plan_alone_as_json(trisect, described):
    shown = trisect("plan", described, "--cluster", "8xa100", "--devices", "7", "--json", "-")
    assert shown.code == 0, shown.err
    assert json.loads(shown.out)["devices"] == 7


def test_what_cannot_fit_is_not_begun(trisect, tmp_path):
    path = tmp_path / "large.yaml"
    path.write_text(
        "data: {generate: rmat, vertices: 900000000, degree: 10, features: 64}\n"
        "model: {name: gcn, layers: 3, hidden: 64}\ntask: node-classification\n"
    )
    for words in (["--layout", "vertex=2"], ["--layout", "auto"], []):
        shown = trisect("train", path, "--out", tmp_path / "run", *words)
        assert shown.code == 2
        assert "TRISECT_MEMORY_CHECK=0 lets it try" in shown.err
        assert not (tmp_path / "run").exists()
    checked = trisect("check", path)
    assert checked.code == 2
    assert "no layout of" in checked.err


@pytest.mark.parametrize("layout", ["vertex=128", "layer=128", "layer=8,vertex=16"])
def test_schedules_of_a_world_that_is_not_here(trisect, tmp_path, layout):
    path = tmp_path / "deep.yaml"
    path.write_text(DESCRIBED.replace("layers: 8", f"layers: {128 if layout == 'layer=128' else 8}"))
    shown = trisect("check", path, "--devices", "128", "--layout", layout, "--cluster", "8xa100")
    assert shown.code == 0, shown.err
    assert "schedule: 128 ranks, " in shown.out
    assert "stand for all" not in shown.out


def test_a_world_of_many_ranks_is_checked_by_a_part(trisect, described):
    shown = trisect("check", described, "--devices", "1024", "--layout", "vertex=1024", "--cluster", "8xa100")
    assert shown.code == 0, shown.err
    assert "1,024 ranks (2 of them stand for all)" in shown.out


def test_a_cluster_file(trisect, described, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nhosts: 2\ndevices: 2\n"
        "device: {flops: 10 TFLOP/s, gather: 400 GB/s, elementwise: 600 GB/s, memory: 16 GiB, host_link: 12 GB/s}\n"
        "inside: {bandwidth: 20 GB/s, latency: 5 us}\nbetween: {bandwidth: 25 Gb/s, latency: 20 us}\n"
    )
    shown = trisect("plan", described, "--cluster", path)
    assert shown.code == 0, shown.err
    assert shown.out.startswith("4 devices of mine (from its file)")


def test_training_with_the_layout_that_is_picked(trisect, small, tmp_path):
    out = tmp_path / "run"
    # in a process of its own, whose memory is that of the run alone
    command = [sys.executable, "-m", "trisect", "train", str(small), "--devices", "1", "--out", str(out)]
    shown = subprocess.run(command, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "Layout one rank" in shown.stdout
    summary, plan = (json.loads((out / name).read_text()) for name in ("summary.json", "plan.json"))
    assert summary["plan"]["seconds_per_epoch"] == plan["expected"]["seconds_per_epoch"] > 0
    assert summary["plan"]["memory_bytes"] == plan["expected"]["memory_bytes"]
    measured = summary["memory"]["peak_rss_bytes"][0]
    assert 0.5 * measured < summary["plan"]["memory_bytes"] < 1.5 * measured
    both = trisect("train", small, "--devices", "2", "--layout", "vertex=2", "--out", tmp_path / "other")
    assert both.code == 2
    assert "give one of them" in both.err
