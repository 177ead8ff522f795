"""Numbers for each vertex: of a graph, or of the next step of a timeline (forecasting)."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trisect.errors import DataError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.noise import Noise
from trisect.tasks.base import BoundTask, Frames, MeasuredRules, Split, Statistics, Task, TaskContext, take_ascending
from trisect.tasks.decoders import VertexDecoder, VertexDecoderName, vertex_decoder
from trisect.tasks.node import JudgedSteps, NodeTargets, node_targets
from trisect.tasks.rules.fitted import NumberLearner, fitted_rules
from trisect.tasks.splits import SplitSizes


@dataclass(frozen=True)
class NodeRegression(Task):
    """Squared error over the vertices with a target (NaN: none).

    Args:
        horizon: on a timeline with targets a step, the output of step t is compared with y[t + horizon].
        decoder: `auto`, `none`, `linear` or `mlp`; what follows the model's last layer.
        hidden: width inside an `mlp` decoder.
        at: on a timeline with one target a vertex, whether the outputs of the `last` or of `every` step are judged.
        split: fractions of the vertices where the data have no masks; fractions or counts of steps for targets a step.
    """

    horizon: int = 1
    decoder: VertexDecoderName = "auto"
    hidden: int = 64
    at: JudgedSteps = "last"
    split: SplitSizes = (0.7, 0.1, 0.2)

    def bind(self, data: Graph | Timeline, context: TaskContext) -> BoundNodeRegression:
        """The data must have numbers y: [vertices], [vertices, outputs], or either of them after [steps, …]."""
        y = data.y
        if y is None:
            raise DataError(f"task {self.name} needs targets y, and the data have none.")
        values = y if y.is_floating_point() else y.float()
        if values.dim() == (2 if _is_by_step(data, y) else 1):
            values = values[..., None]
        targets = node_targets(
            data, values, ~values.isnan().any(-1), context, self.split, self.at, self.horizon, type(self).split
        )
        return BoundNodeRegression(self, targets, values.shape[-1])

    def outputs(self, data: Graph | Timeline) -> int:
        """Count the targets of a vertex."""
        y = data.y
        if y is None:
            raise DataError(f"task {self.name} needs targets y, and the data have none.")
        return 1 if y.dim() == (2 if _is_by_step(data, y) else 1) else y.shape[-1]

    def channels(self, outputs: int) -> int | None:
        """The model gives the targets, unless a decoder does."""
        return None if self.decoder in ("linear", "mlp") else outputs

    def make_decoder(self, channels: int, outputs: int) -> VertexDecoder | None:
        """There is no decoder where the model gives the outputs itself."""
        return vertex_decoder(self.decoder, channels, outputs, self.hidden)

    def columns(self, decoder: nn.Module | None, frames: Tensor) -> dict[str, Tensor]:
        """`value` [steps, rows, outputs]: the forecast for step t + horizon, or the vertex's own value."""
        return {"value": frames if decoder is None else decoder(frames)}


def _is_by_step(data: Graph | Timeline, y: Tensor) -> bool:
    return isinstance(data, Timeline) and tuple(y.shape[:2]) == (data.steps, data.vertices)


def _error_sums(error: Tensor) -> Statistics:
    """Add up squared and absolute errors."""
    error = error.double()
    count = torch.tensor(float(error.numel()), dtype=torch.float64, device=error.device)
    return Statistics({"squared": error.square().sum(), "absolute": error.abs().sum(), "count": count})


class BoundNodeRegression(BoundTask):
    """This is node regression on one graph or timeline."""

    monitor = "val.loss"

    def __init__(self, task: NodeRegression, targets: NodeTargets, outputs: int) -> None:
        self.task, self.targets, self.outputs = task, targets, outputs
        self.notes = targets.notes
        self.channels = task.channels(outputs)
        self._constant = float(targets.count("train") * outputs)

    def decoder(self, channels: int) -> VertexDecoder | None:
        """There is no decoder where the model gives the outputs itself."""
        return self.task.make_decoder(channels, self.outputs)

    def restrict(self, rows: Tensor) -> BoundNodeRegression:
        """The part has fewer rows and divides its loss by the same constant."""
        part = copy(self)
        part.targets = self.targets.restrict(rows)
        return part

    def steps(self, split: Split) -> range:
        """A split has the steps whose outputs are compared with its targets."""
        return self.targets.runs[split]

    def _error(self, decoder: nn.Module | None, frame: Tensor, split: Split, step: int) -> Tensor:
        rows = self.targets.rows(split, step)
        chosen = take_ascending(frame, rows)
        return (chosen if decoder is None else decoder(chosen)) - self.targets.values(rows, step).to(frame.dtype)

    def loss(self, decoder: nn.Module | None, frames: Frames, first_step: int, noise: Noise) -> Tensor:
        """Mean squared error over the training targets."""
        total = frames[0].new_zeros(())
        for position, frame in enumerate(frames):
            if first_step + position in self.targets.runs["train"]:
                total = total + self._error(decoder, frame, "train", first_step + position).square().sum()
        return total / self._constant

    def measure(self, decoder: nn.Module | None, frames: Tensor, first_step: int, split: Split) -> Statistics:
        """Sums of squared and absolute errors."""
        statistics = Statistics()
        for position, frame in enumerate(frames):
            if first_step + position in self.targets.runs[split]:
                error = self._error(decoder, frame, split, first_step + position)
                statistics = statistics.merge(_error_sums(error))
        return statistics

    def simple_rules(self, data: Graph | Timeline) -> MeasuredRules:
        """Measure the mean, the last value, and ridge regressions."""
        judge = lambda outputs, values: _error_sums(outputs - values)  # noqa: E731
        return fitted_rules(data, self.steps, self.targets.case, NumberLearner(), judge)

    def metrics(self, statistics: Statistics) -> dict[str, Any]:
        """loss and mse (equal), rmse, mae."""
        if "count" not in statistics.sums or float(statistics.sums["count"]) == 0:
            return {}
        count = statistics.sums["count"]
        mse = float(statistics.sums["squared"] / count)
        return {"loss": mse, "mse": mse, "rmse": mse**0.5, "mae": float(statistics.sums["absolute"] / count)}

    def predict(self, decoder: nn.Module | None, frames: Tensor, first_step: int) -> dict[str, Tensor]:
        """`value` [steps, rows, outputs]: the forecast for step t + horizon, or the vertex's own value."""
        return self.task.columns(decoder, frames)
