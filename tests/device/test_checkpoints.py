"""Checkpoints of a run on the pretend device lie on the host, and another run goes on from them anywhere."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from trisect.config import TrainOptions
from trisect.graph.graph import Graph
from trisect.train.fit import fit, model_maker
from trisect.train.loop import Result, Trainer
from trisect.train.recorders import NoRecorder, Recorder
from trisect.train.run.checkpoint import write_shard
from trisect.train.setup import Setup


class Kept:
    """A recorder that keeps the last checkpoint as it comes back from its file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.last: tuple[dict[str, torch.Tensor], dict[str, object]] | None = None

    def epoch(self, record: object) -> None: ...

    def event(self, name: str, start: float, seconds: float, **fields: object) -> None: ...

    def checkpoint(self, tensors: dict[str, torch.Tensor], meta: dict[str, object], *, best: bool) -> None:
        folder = self._folder / str(meta["epoch"])
        folder.mkdir(exist_ok=True)
        write_shard(folder, 0, tensors)
        (file,) = folder.glob("*.safetensors")
        self.last = (load_file(file), dict(meta))


@pytest.mark.parametrize("then", ["sim", "cpu"])
def test_a_run_goes_on_from_a_checkpoint(then: str, community: Graph, tmp_path: Path, pretend: ModuleType) -> None:
    def train(options: TrainOptions, recorder: Recorder | None = None, resume: Any = None) -> Result:
        setup = Setup.of(model_maker("gcn", {"hidden": 8, "layers": 2}, 0), community, "node-classification", options)
        trainer = Trainer(setup, options, recorder or NoRecorder())
        if resume is not None:
            trainer.load(*resume)
        return trainer.run()

    straight = train(TrainOptions(epochs=5, precision="float64"))
    kept = Kept(tmp_path)
    options = TrainOptions(epochs=3, precision="float64", device="sim")
    train(options, recorder=kept)
    assert kept.last is not None
    options = TrainOptions(epochs=5, precision="float64", device=then)
    resumed = train(options, resume=kept.last)
    assert resumed.loss == pytest.approx(straight.loss, rel=1e-10)
    assert resumed.loss != pytest.approx(straight.loss[::-1], rel=1e-10)


def test_a_run_is_saved_from_the_device(community: Graph, tmp_path: Path, pretend: ModuleType) -> None:
    run = fit("gcn", community, epochs=2, device="sim", hidden=8)
    run.save(tmp_path / "model.safetensors")
    saved = load_file(tmp_path / "model.safetensors")
    for name, value in run.result.modules.state_dict().items():
        torch.testing.assert_close(saved[name], value.cpu(), rtol=0, atol=0)
