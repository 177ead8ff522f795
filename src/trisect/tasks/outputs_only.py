"""A task whose model is trained: it has outputs and nothing to learn, so that the data need no targets of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from trisect.errors import RunError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.noise import Noise
from trisect.tasks.base import BoundTask, Frames, Split, Statistics, Task, TaskContext


@dataclass(frozen=True)
class OutputsOnly(Task):
    """Another task, for its outputs alone: every step is run, none is judged.

    Args:
        task: the one that the model was trained for. Of the data's labels it reads how many classes there are.
        count: how many there are, where the data need not say it.
    """

    task: Task
    count: int | None = None

    def bind(self, data: Graph | Timeline, context: TaskContext) -> BoundOutputs:
        """Any data with the trained ones' labels will do; no vertex needs one."""
        return BoundOutputs(self.task, self.task.outputs(data) if self.count is None else self.count, data)


class BoundOutputs(BoundTask):
    """The outputs of a task on one graph or timeline."""

    def __init__(self, task: Task, outputs: int, data: Graph | Timeline) -> None:
        self.task, self.outputs = task, outputs
        self.timeline = data if isinstance(data, Timeline) else None
        self._steps = data.steps if isinstance(data, Timeline) else 1
        self.channels = task.channels(outputs)

    def decoder(self, channels: int) -> nn.Module | None:
        """The decoder is that of the trained task."""
        return self.task.make_decoder(channels, self.outputs)

    def restrict(self, rows: Tensor) -> BoundOutputs:
        """Each row has outputs of its own."""
        return self

    def divide(self, starts: Sequence[int], part_index: int) -> BoundOutputs:
        """Each part has outputs of its own rows."""
        return self

    def steps(self, split: Split) -> range:
        """All steps are run; the blocks of a timeline are planned over them."""
        return range(self._steps if split == "train" else 0)

    def loss(self, decoder: nn.Module | None, frames: Frames, first_step: int, noise: Noise) -> Tensor:
        """Raise, since a task that has outputs only is never trained."""
        raise RunError("internal error: a loss was asked of a task that has outputs only")

    def measure(self, decoder: nn.Module | None, frames: Tensor, first_step: int, split: Split) -> Statistics:
        """Give nothing, since there are no labels to judge outputs by."""
        return Statistics()

    def metrics(self, statistics: Statistics) -> dict[str, Any]:
        """Give nothing, since there are no labels to judge outputs by."""
        return {}

    def predict(self, decoder: nn.Module | None, frames: Tensor, first_step: int) -> dict[str, Tensor]:
        """What the trained task makes of the outputs."""
        return self.task.columns(decoder, frames)
