"""Rows that two parts of a layer read: their gradients are added in the pool, and nothing as large is on the heap."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trisect.config import TrainOptions
from trisect.data.generators.generate import generate
from trisect.graph.timeline.timeline import Timeline
from trisect.nn.models.source import NamedModel
from trisect.nn.temporal import dynamic
from trisect.ops.memory import is_pooled
from trisect.train.loop import Trainer
from trisect.train.recorders import NoRecorder
from trisect.train.setup import Setup

VERTICES, STEPS, HIDDEN = 600, 12, 16


class LargeSums(TorchDispatchMode):
    """Notes sums as large as all frames of a layer which do not lie in the pool."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least, self.count = least, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten.add and isinstance(result, Tensor):
            self.count += result.numel() >= self.least and not is_pooled(result)
        return result


def sums_of_an_epoch() -> int:
    timeline = Timeline.from_record(generate("evolving", vertices=VERTICES, steps=STEPS, features=4))  # type: ignore[arg-type]
    options = TrainOptions(eval_every=10_000, checkpoint_every=None)
    model = NamedModel("cd-gcn", {"layers": 2, "hidden": HIDDEN}, 0)
    trainer = Trainer(Setup.of(model, timeline, "node-classification", options), options, NoRecorder())
    with LargeSums(VERTICES * HIDDEN * STEPS // 2) as sums:  # more than half of the steps are trained on
        trainer.train_epoch(1)
    return sums.count


def test_gradients_of_a_layer_whose_temporal_half_reads_its_input_are_added_in_the_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert sums_of_an_epoch() == 0
    monkeypatch.setattr(dynamic, "twice", lambda x: (x, x))
    assert sums_of_an_epoch() > 0
