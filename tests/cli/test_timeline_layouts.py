"""`trisect train --layout …` on timelines: the result of one process, bytes as by formula, resume to the bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from trisect.cli.main import run_command

CARRY = "time=2,temporal=carry,blocks=2"
DATA = {
    "generate": "evolving",
    "vertices": 60,
    "steps": 13,
    "communities": 3,
    "features": 5,
    "smoothing": {"kind": "edge-life", "length": 3},
}
TRAIN = {"epochs": 4, "lr": 0.02, "eval_every": 2, "checkpoint_every": 2}
LINKS = {"name": "link-prediction", "eval_negatives": 5, "decoder": "mlp", "hidden": 8}
CONFIGS: dict[str, dict[str, Any]] = {
    "links": {"model": {"name": "cd-gcn", "layers": 2, "hidden": 4, "dropout": 0.2}, "task": LINKS},
    "window": {"model": {"name": "tm-gcn", "layers": 2, "hidden": 4, "window": 4}, "task": "node-classification"},
    "evolving": {"model": {"name": "evolvegcn-h", "layers": 2, "hidden": 4}, "task": "node-classification"},
    "deep": {"model": {"name": "gcnii", "layers": 2, "hidden": 4}, "task": "node-classification"},
    "static": {"model": {"name": "gcn", "layers": 2, "hidden": 4, "dropout": 0.2}, "task": "node-classification"},
}


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "trisect", *arguments]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)


def summary(folder: Path, config: str, out: str, *arguments: str) -> dict[str, Any]:
    done = command(folder, "train", f"{config}.yaml", "--out", out, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads((folder / out / "summary.json").read_text()))


def here(folder: Path, config: str, out: str, *arguments: str) -> dict[str, Any]:
    """The same in this process; for one rank."""
    assert run_command(["train", str(folder / f"{config}.yaml"), "--out", str(folder / out), *arguments]) == 0
    return dict(json.loads((folder / out / "summary.json").read_text()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("timelines")
    for name, settings in CONFIGS.items():
        (path / f"{name}.yaml").write_text(yaml.safe_dump({"data": DATA, "train": TRAIN, **settings}))
    return path


@pytest.fixture(scope="module")
def alone(folder: Path) -> Callable[[str], dict[str, Any]]:
    """The summary of a configuration in one process, made once."""
    found: dict[str, dict[str, Any]] = {}

    def of(config: str) -> dict[str, Any]:
        if config not in found:
            found[config] = here(folder, config, f"alone-{config}")
        return found[config]

    return of


CASES = [
    ("links", "blocks=4"),
    ("links", CARRY),
    ("links", "vertex=2"),
]
LONGER = [
    ("links", "time=2,temporal=redistribute"),
    ("links", "layer=2,blocks=3"),
    ("links", "time=2,vertex=2"),
    ("links", "time=2,layer=2,blocks=2"),
    ("links", "time=2,layer=2,vertex=2,blocks=2"),
    ("window", "time=3,temporal=halo"),
    ("window", "vertex=2,blocks=2"),
    ("evolving", "time=2,blocks=2"),
    ("evolving", "vertex=2"),
    ("static", "time=2"),
    ("static", "layer=2,vertex=2"),
]


@pytest.mark.parametrize(
    ("config", "layout"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in LONGER)]
)
def test_every_layout_has_the_result_of_one(
    folder: Path, alone: Callable[[str], dict[str, Any]], config: str, layout: str
) -> None:
    run = here if layout.startswith("blocks") else summary
    found, expected = run(folder, config, f"{config}-{layout}", "--layout", layout), alone(config)
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    for split, measures in expected["metrics"].items():
        for name, value in measures.items():
            if isinstance(value, float):
                assert found["metrics"][split][name] == pytest.approx(value, rel=1e-3), (split, name)
    sent = found["communication"]
    assert sent["bytes_per_epoch"] == sum(sent["by_axis"].values()) == sent["formula_bytes_per_epoch"]
    for axis in ("time", "layer", "vertex"):
        assert (sent["by_axis"][axis] > 0) == (found["layout"][axis] > 1 and _crosses(config, axis))
    assert found["transfer"].keys() == {"full_bytes", "sent_bytes"}
    assert len(found["memory"]["peak_rss_bytes"]) == found["world"]
    pss = found["memory"]["peak_pss_bytes"]
    assert pss is None or (len(pss) == found["world"] and 0 < sum(pss) <= sum(found["memory"]["peak_rss_bytes"]))
    target = folder / f"{config}-{layout}"
    assert len(list(target.glob("events/rank-*.jsonl"))) == found["world"]
    assert json.loads((target / "trace.json").read_text())["traceEvents"]


def _crosses(config: str, axis: str) -> bool:
    return config != "static" or axis != "time"


def test_another_seed_has_another_result(folder: Path, alone: Callable[[str], dict[str, Any]]) -> None:
    found = here(folder, "links", "seed", "--layout", "blocks=4", "--set", "train.seed=1")
    assert found["loss"] != pytest.approx(alone("links")["loss"], rel=1e-5)


RESUMED = [
    ("links", "time=2,temporal=redistribute"),
    ("links", "vertex=2"),
    ("links", "layer=2,blocks=2"),
    ("links", "vertex=2,time=2"),
    ("links", "layer=2,time=2"),
    ("links", "vertex=2,layer=2,time=2,blocks=2"),
    ("window", "time=2,temporal=halo"),
    ("evolving", "time=2,blocks=2"),
]


@pytest.mark.parametrize(
    ("config", "cut"), [("links", CARRY), *(pytest.param(*case, marks=pytest.mark.slow) for case in RESUMED)]
)
def test_resume_is_to_the_bit_and_may_change_the_layout(folder: Path, config: str, cut: str) -> None:
    layout = ["--layout", cut]
    straight = folder / f"{config}-{cut}"
    expected = (
        json.loads((straight / "summary.json").read_text())
        if straight.exists()
        else summary(folder, config, straight.name, *layout)
    )
    halves = f"halves-{config}-{cut}"
    summary(folder, config, halves, *layout, "--set", "train.epochs=2")
    done = command(folder, "train", f"{config}.yaml", "--resume", "--out", halves, *layout)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / halves / "summary.json").read_text())["loss"] == expected["loss"]
    optimised = False
    for rank in range(expected["world"]):
        name = f"checkpoints/epoch-000004/rank-{rank:05d}.safetensors"
        one, two = load_file(straight / name), load_file(folder / halves / name)
        assert one.keys() == two.keys()
        optimised |= any(key.startswith("optimiser.") for key in one)
        assert all(one[key].equal(two[key]) for key in one)
    assert optimised
    longer = here(folder, config, halves, "--resume", "--set", "train.epochs=5")
    assert longer["loss"][:4] == expected["loss"]
    assert len(longer["loss"]) == 5


@pytest.mark.parametrize(
    ("config", "layout", "said"),
    [
        ("links", "time=9", "layout.time is 9, but the timeline has 8 training steps"),
        ("links", "blocks=9", "layout.blocks is 9, but the timeline has 8 training steps"),
        ("links", "blocks=none", "layout.blocks is 'none', but must be a whole number of at least 1, or auto"),
        (
            "links",
            "time=2,temporal=halo",
            "layout.temporal is halo, but layer 0 of the model cannot use it: it remembers all steps",
        ),
        (
            "evolving",
            "time=2,temporal=redistribute",
            "layout.temporal is redistribute, but layer 0 of the model cannot use it: its state is a weight",
        ),
        ("links", "layer=3", "layout.layer is 3, and the model has 2 layers"),
        ("links", "vertex=99", "layout.vertex is 99, more than the timeline's 60 vertices"),
    ],
)
@pytest.mark.parametrize("verb", ["train", "check"])
def test_a_layout_that_does_not_fit_is_refused_before_ranks_start(
    trisect: Any, folder: Path, verb: str, config: str, layout: str, said: str
) -> None:
    out = folder / "refused"
    done = trisect(verb, folder / f"{config}.yaml", "--out", out, "--layout", layout)
    assert done.code == 2
    assert said in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not out.exists()


def test_blocks_are_chosen_by_memory(folder: Path, alone: Callable[[str], dict[str, Any]]) -> None:
    found = here(folder, "links", "auto", "--layout", "blocks=auto")
    assert found["layout"]["blocks"] == 1
    assert found["loss"] == alone("links")["loss"]
