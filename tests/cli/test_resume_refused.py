"""A run that cannot go on from its checkpoint is refused before ranks start: one sentence, exit code 2."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from trisect.cli.main import run_command
from trisect.train.run.checkpoint import MANIFEST, VERSION, write_shard
from trisect.train.run.run_directory import RunDirectory

CONFIG: dict[str, Any] = {
    "data": {"generate": "community", "vertices": 120, "classes": 3, "features": 8, "per_class": 8},
    "model": {"name": "gcn", "layers": 3, "hidden": 8},
    "task": "node-classification",
    "layout": {"layer": 1, "chunks": 3},
    "train": {"epochs": 2, "checkpoint_every": 2},
}
Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with history of one rank, which is started like several."""
    folder = tmp_path_factory.mktemp("resumed")
    (folder / "c.yaml").write_text(yaml.safe_dump(CONFIG))
    assert run_command(["train", str(folder / "c.yaml"), "--out", str(folder / "run")]) == 0
    return folder


def changed(path: Path, change: Callable[[Tensors], None], meta: dict[str, Any] | None = None) -> None:
    """Write the run's checkpoint again, sound but with other tensors."""
    checkpoints = RunDirectory.reopen(path).checkpoints
    found = checkpoints.latest()
    assert found is not None
    tensors = dict(found.tensors)
    change(tensors)
    draft = checkpoints.draft(found.epoch)
    shards = [write_shard(draft, 0, tensors)]
    checkpoints.commit(draft, shards, {**found.meta, **(meta or {})}, epoch=found.epoch, best=True)


def renamed(old: str, new: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__setitem__(new, tensors.pop(old))


def put(name: str, *shape: int) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__setitem__(name, torch.zeros(shape))


def put_history(rows: int) -> Callable[[Tensors], None]:
    """In place of what the first segment has."""
    return lambda tensors: tensors.__setitem__(history_of(tensors), torch.zeros(rows, 8))


def history_of(tensors: Tensors) -> str:
    return next(name for name in sorted(tensors) if name.endswith(".rank-0.history.0"))


CASES: list[tuple[Callable[[Tensors], None], str]] = [
    (renamed("model.layers.1.weight", "model.layers.1.w"), "has no tensor 'model.layers.1.weight'"),
    (put("model.layers.1.weight", 2, 2), "'model.layers.1.weight' of shape [2, 2], and the model needs [8, 8]"),
    (put("model.layers.9.weight", 8, 8), "'model.layers.9.weight', for which the model has no place"),
    (put("program.buffer-0", 120, 8), "'program.buffer-0', which this release does not know"),
    (put_history(7), "rank-0.history.0' of shape [7, 8], and the cut needs 120 rows"),
]


@pytest.mark.parametrize(("change", "said"), CASES)
def test_a_checkpoint_that_does_not_fit(
    made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], change: Callable[[Tensors], None], said: str
) -> None:
    shutil.copytree(made / "run", tmp_path / "run")
    changed(tmp_path / "run", change)
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    words = ["train", "--resume", "--out", str(tmp_path / "run"), "--set", "train.epochs=3"]
    capfd.readouterr()
    assert run_command(words) == 2
    shown = capfd.readouterr()
    assert shown.err.count("\n") == 1
    assert said in shown.err
    assert "ranks" not in shown.out
    assert {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()} == before


def test_a_checkpoint_of_an_older_release(made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(made / "run", tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").glob(f"*/{MANIFEST}"):
        path.write_text(path.read_text().replace(f'"version": {VERSION}', f'"version": {VERSION - 1}'))
    capfd.readouterr()
    assert run_command(["train", "--resume", "--out", str(tmp_path / "run"), "--set", "train.epochs=3"]) == 2
    shown = capfd.readouterr()
    assert shown.err.count("\n") == 1
    assert f"; this release reads {VERSION}." in shown.err
    assert "ranks" not in shown.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "model.hidden=9"], "model.hidden is 9, but the run in"),
        (["--set", "train.seed=4"], "train.seed is 4, but the run in"),
        (["--set", "data.vertices=150"], "data.vertices is 150, but the run in"),
    ],
)
def test_other_settings(made: Path, capfd: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    capfd.readouterr()
    assert run_command(["train", str(made / "c.yaml"), "--resume", "--out", str(made / "run"), *words]) == 2
    shown = capfd.readouterr()
    assert shown.err.count("\n") == 1
    assert said in shown.err
    assert "ranks" not in shown.out


def test_one_process_names_the_tensor_too(made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(made / "run", tmp_path / "run")
    words = ["train", "--resume", "--out", str(tmp_path / "run"), "--set", "train.epochs=3", "--layout", "vertex=1"]
    changed(tmp_path / "run", renamed("best.model.layers.0.bias", "best.model.layers.0.b"))
    assert run_command(words) == 2
    shown = capfd.readouterr()
    assert "has no tensor 'best.model.layers.0.bias'" in shown.err
    assert "Traceback" not in shown.err


def test_another_layout_and_another_recipe_go_on(made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """History of another layout is of no use, and of another recipe it is: neither is a mistake."""
    for number, words in enumerate((["--layout", "chunks=2"], ["--set", "layout.history=gnnpipe"])):
        target = tmp_path / str(number)
        shutil.copytree(made / "run", target)
        capfd.readouterr()
        assert run_command(["train", "--resume", "--out", str(target), "--set", "train.epochs=3", *words]) == 0
        anew = "history is that of another layout or cut (layer=1,vertex=1,chunks=3,order=" in capfd.readouterr().err
        assert anew == (number == 0)


def test_history_of_another_order_starts_anew(made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Such as after another METIS: the shapes fit, and the rows are those of other vertices."""
    shutil.copytree(made / "run", tmp_path / "run")

    def other_order(tensors: Tensors) -> None:
        for name in [name for name in tensors if ".history." in name]:
            tensors[re.sub("order=[0-9a-f]+", "order=0123456789ab", name)] = tensors.pop(name)

    changed(tmp_path / "run", other_order)
    capfd.readouterr()
    assert run_command(["train", "--resume", "--out", str(tmp_path / "run"), "--set", "train.epochs=3"]) == 0
    assert "another layout or cut (layer=1,vertex=1,chunks=3,order=0123456789ab)" in capfd.readouterr().err
