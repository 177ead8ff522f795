"""Whether a task has the measure that decides which epoch is the best; said before any rank starts."""

from __future__ import annotations

import torch

from trisect.config import TrainOptions
from trisect.errors import ConfigError
from trisect.settings.nearest import unknown_value
from trisect.tasks import SPLITS, BoundTask
from trisect.tasks.decoders import Decoder


@torch.no_grad()
def check_monitor(task: BoundTask, options: TrainOptions, channels: int, vertices: int) -> None:
    """Raise a ConfigError where `train.monitor` names nothing that the task measures.

    Args:
        task: bound to all vertices.
        channels: of the model's output; outputs of one step are measured as if they were all zero.
    """
    monitor = options.monitor
    if monitor is None:
        return
    split = monitor.partition(".")[0]
    if split not in SPLITS:
        raise ConfigError(f"train.monitor is {monitor!r}, but must look like {task.monitor}.")
    steps = task.steps(split)
    if not steps:
        raise ConfigError(f"train.monitor is {monitor!r}, but there are no steps of {split}; use another split.")
    decoder = task.decoder(channels)
    if isinstance(decoder, Decoder):
        decoder.reset_parameters(options.seed, 0)
    measured = task.metrics(task.measure(decoder, torch.zeros(1, vertices, channels), steps.start, split))
    names = [f"{split}.{key}" for key, value in measured.items() if isinstance(value, float)]
    if measured and monitor not in names:
        raise ConfigError(unknown_value("train.monitor", monitor, names))
