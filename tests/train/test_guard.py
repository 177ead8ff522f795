"""The convergence guard: silent while stale training is sound, back and stricter where it is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from trisect.comm.mesh import connect
from trisect.config import TrainOptions
from trisect.data.generators.generate import generate
from trisect.errors import RunError
from trisect.graph.graph import Graph
from trisect.layout import Layout
from trisect.layout.history import History
from trisect.shards.graph_files import read_cut
from trisect.train.fit import model_maker
from trisect.train.loop import Result, Trainer
from trisect.train.ranks import cut_data
from trisect.train.recorders import NoRecorder
from trisect.train.setup import Setup

# what never leaves zero: the stale loss falls, and exact inference sees another model
GRAPH = {"vertices": 300, "classes": 5, "features": 16, "common": 8.0, "signal": 3.0}
BAD = History(start="zero", period=1000, blend=0.0, scale=2.0, guard=4)


def trainer(history: History | None, folder: Path, chunks: int = 10, epochs: int = 24, lr: float = 0.1) -> Trainer:
    graph = Graph.from_record(generate("citation", **GRAPH))
    options = TrainOptions(epochs=epochs, lr=lr, eval_every=5)
    layout = Layout(chunks=chunks, history="exact" if history is None else history)
    maker = model_maker("gcnii", {"layers": 8, "hidden": 16, "dropout": 0.05}, 0)
    folder.mkdir(exist_ok=True)
    if not (folder / "cut.json").exists():
        cut_data(graph, maker, "node-classification", layout, options, folder)
    mesh = connect(layout, torch.device("cpu"))
    setup = Setup.of(maker, read_cut(folder), "node-classification", options, mesh.layout, mesh=mesh)
    return Trainer(setup, options, Memory())


class Memory(NoRecorder):
    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []

    def epoch(self, record: Any) -> None:
        self.records.append(dict(record))

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        self.events.append((name, fields))


def run(one: Trainer) -> Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return one.run()


def test_a_recipe_that_diverges_is_noticed_and_mended(tmp_path: Path) -> None:
    bad = trainer(BAD, tmp_path)
    with pytest.warns(UserWarning, match="Stale training left the exact one"):
        result = bad.run()
    assert isinstance(bad.recorder, Memory)
    staleness = result.staleness
    assert staleness is not None
    [first, *_] = staleness["stepped_in"]
    assert first["back_to"] < first["epoch"] <= 25
    assert "exact epoch" in first["then"]
    assert [name for name, _ in bad.recorder.events].count("guard") == len(staleness["stepped_in"])
    told = {record["epoch"]: record["guard"] for record in bad.recorder.records if "guard" in record}
    assert told[first["epoch"]]["stepped_in"] == first
    assert told[first["epoch"]]["exact"] > 1.25 * told[first["epoch"]]["stale"]
    # only watched, the same recipe ends with a far higher exact loss
    watched = run(trainer(replace(BAD, margin=1e9), tmp_path)).staleness
    assert watched is not None
    assert watched["stepped_in"] == []
    assert watched["loss"]["exact"] > 3 * watched["loss"]["stale"]
    assert watched["loss"]["exact"] > 2 * staleness["loss"]["exact"]


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_it_is_silent_on_sound_runs(tmp_path: Path, scale: float) -> None:
    sound = trainer(History(scale=scale, guard=5), tmp_path, epochs=20, lr=0.01)
    result = run(sound)
    assert result.staleness is not None
    assert result.staleness["stepped_in"] == []
    assert result.staleness["checks"] == 4
    assert result.staleness["loss"]["epoch"] == 20
    assert 0.0 < result.staleness["historical_reads"] < 1.0
    assert result.staleness["drift"] > 0.0
    # to look changes nothing
    assert result.loss == run(trainer(History(scale=scale, guard=0), tmp_path, epochs=20, lr=0.01)).loss


def test_exact_runs_have_no_guard_and_no_staleness(tmp_path: Path) -> None:
    exact = trainer(None, tmp_path, epochs=3)
    assert exact.guard is None
    assert run(exact).staleness is None


def test_the_exact_loss_is_that_of_an_exact_epoch(tmp_path: Path) -> None:
    stale, exact = trainer(History(), tmp_path), trainer(None, tmp_path)
    assert stale.program.exact_loss(4) == pytest.approx(exact.train_epoch(4), rel=1e-6)
    assert stale.program.exact_loss(4) != pytest.approx(stale.program.exact_loss(5), rel=1e-6)
    assert exact.program.exact_loss(4) is None


def test_it_goes_on_to_exact_training(tmp_path: Path) -> None:
    one = trainer(BAD, tmp_path)
    guard = one.guard
    assert guard is not None
    words = []
    guard.before(1)
    for level in range(3):
        one.train_epoch(level + 1)
        guard.before(4)
        for _ in range(2):
            told = guard.after(4, 0.0, 0.0) if guard._exact is not None else None
        assert told is not None
        words.append(told["stepped_in"]["then"])
    for said, word in zip(words, ("then the last epoch's history", "3 chunks", "exact epochs"), strict=True):
        assert word in said
    assert one.program.history is None
    guard.before(8)
    assert guard.after(8, 1.0, 1.0) is None
    reference = trainer(None, tmp_path)
    assert one.train_epoch(1) == pytest.approx(reference.train_epoch(1), rel=1e-5)


def test_a_loss_that_is_not_finite_is_rescued_once_a_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = trainer(History(guard=5), tmp_path, epochs=12)
    honest = one.program.finish
    broken = [7]

    def finish(**asked: bool) -> float:
        value = honest(**asked)
        if one.done + 1 in broken:
            broken.remove(one.done + 1)
            return float("nan")
        return value

    monkeypatch.setattr(one.program, "finish", finish)
    with pytest.warns(UserWarning, match="loss of epoch 7 is nan"):
        result = one.run()
    assert len(result.loss) == 12
    assert result.staleness is not None
    assert [action["back_to"] for action in result.staleness["stepped_in"]] == [4]
    broken += [3, 3, 3, 3]
    again = trainer(History(guard=5), tmp_path, epochs=12)
    honest, one = again.program.finish, again
    monkeypatch.setattr(again.program, "finish", finish)
    with pytest.raises(RunError, match="loss of epoch 3 is nan"):
        run(again)


def test_a_resumed_run_is_guarded_to_the_bit(tmp_path: Path) -> None:
    straight = trainer(BAD, tmp_path)
    result = run(straight)
    assert result.staleness is not None
    stepped = result.staleness["stepped_in"][0]["epoch"]
    for stop in (stepped - 2, stepped, stepped + 2):
        first = trainer(BAD, tmp_path, epochs=stop)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            while first.done < stop:
                epoch = first.done + 1
                first._guard_before(epoch)
                first.loss.append(first.train_epoch(epoch))
                first.done = epoch
                first._guard_after(epoch)
        tensors, meta = first.state_tensors(), json.loads(json.dumps(first.state_meta()))
        second = trainer(BAD, tmp_path)
        second.load(tensors, meta)
        resumed = run(second)
        assert resumed.loss == result.loss, stop
        assert resumed.staleness == result.staleness
    assert resumed.loss != run(trainer(History(), tmp_path)).loss


def test_history_of_another_layout_starts_anew(tmp_path: Path) -> None:
    first = trainer(History(), tmp_path / "a", chunks=6, epochs=3)
    run(first)
    second = trainer(History(), tmp_path / "b", chunks=4, epochs=6)
    with pytest.warns(UserWarning, match="another layout or cut"):
        second.load(first.state_tensors(), first.state_meta())
    exact = second.program.exact_loss(4)
    assert second.train_epoch(4) == pytest.approx(exact, rel=1e-6)
    assert second.train_epoch(5) != pytest.approx(second.program.exact_loss(5), rel=1e-6)


@pytest.mark.slow
def test_two_ranks_decide_the_same(tmp_path: Path) -> None:
    """The whole command: guard, summary, events, and a resumed run that equals a straight one."""
    data = ", ".join(f"{key}: {value}" for key, value in GRAPH.items())
    (tmp_path / "c.yaml").write_text(
        f"""
data: {{generate: citation, {data}}}
model: {{name: gcnii, layers: 8, hidden: 16, dropout: 0.05}}
task: node-classification
layout: {{layer: 2, chunks: 10, history: {{start: zero, period: 1000, scale: 2.0, guard: 4}}}}
train: {{epochs: 24, lr: 0.1, eval_every: 10, checkpoint_every: 14}}
"""
    )

    said: list[str] = []

    def command(*arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "trisect", "train", *arguments],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        said.append(done.stderr)

    command("c.yaml", "--out", "straight")
    command("c.yaml", "--out", "halves", "--set", "train.epochs=14")
    command("c.yaml", "--out", "halves", "--resume")
    assert "Stale training left the exact one" in said[0]
    straight, halves = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("straight", "halves"))
    assert straight["loss"] == halves["loss"]
    assert straight["staleness"] == halves["staleness"]
    assert straight["staleness"]["stepped_in"]
    assert straight["staleness"]["history"]["period"] == 1000
    assert "period: 1000" in (tmp_path / "straight" / "config.yaml").read_text()
    for rank in range(2):
        events = (tmp_path / "straight" / "events" / f"rank-{rank}.jsonl").read_text()
        assert '"name": "guard"' in events
        name = f"checkpoints/epoch-000024/rank-{rank:05d}.safetensors"
        one, two = load_file(tmp_path / "straight" / name), load_file(tmp_path / "halves" / name)
        assert one.keys() == two.keys()
        assert all(one[key].equal(two[key]) for key in one)
