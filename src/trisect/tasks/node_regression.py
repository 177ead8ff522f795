"""Numbers for each vertex: of a graph, or of the next step of a timeline (forecasting)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from trisect.errors import DataError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.tasks.base import MeasuredRules, Statistics, Task, TaskContext
from trisect.tasks.decoders import VertexDecoder, VertexDecoderName, vertex_decoder
from trisect.tasks.node import JudgedSteps, NodeTargets, node_targets
from trisect.tasks.row_loss import mse, weighted_sum
from trisect.tasks.rows import BoundRows, Rows
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
        return BoundNodeRegression(self, targets, values.shape[-1], context)

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

    def row_loss(self, out: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each row, [rows] or [rows, outputs]; a task of your own writes another one."""
        return mse(out, y)

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


class BoundNodeRegression(BoundRows):
    """This is node regression on one graph or timeline."""

    monitor = "val.loss"

    def __init__(
        self, task: NodeRegression, targets: NodeTargets, outputs: int, context: TaskContext | None = None
    ) -> None:
        super().__init__(targets)
        self.task, self.outputs = task, outputs
        self.channels = task.channels(outputs)
        self.total = self._train_weight()
        self.take_loss(task, NodeRegression.row_loss, context or TaskContext(), outputs)

    def _train_weight(self) -> float:
        if self.targets.weight is None:
            return float(self.targets.count("train"))
        train = ((step, self.targets.rows("train", step)) for step in self.targets.runs["train"])
        return sum(float(cast(Tensor, self.targets.weights(rows)).double().sum()) for _, rows in train)

    def decoder(self, channels: int) -> VertexDecoder | None:
        """There is no decoder where the model gives the outputs itself."""
        return self.task.make_decoder(channels, self.outputs)

    def loss_sum(self, rows: Rows) -> Tensor:
        """Squared error, or the user's loss, times the weights of rows."""
        if self.row_loss is not None:
            return weighted_sum(self.row_loss(rows.out, rows.y), rows.weight)
        squared = (rows.out - rows.y.to(rows.out.dtype)).square()
        if rows.weight is None:
            return squared.sum() / self.outputs
        return weighted_sum(squared.mean(-1), rows.weight)

    def judge(self, rows: Rows) -> Statistics:
        """Sums of squared and absolute errors, and of the loss where it is another one."""
        statistics = _error_sums(rows.out - rows.y.to(rows.out.dtype))
        if self.row_loss is not None or rows.weight is not None:
            weight = torch.ones(len(rows.out)) if rows.weight is None else rows.weight
            statistics.sums["loss"] = self.loss_sum(rows).double()
            statistics.sums["weight"] = weight.double().sum().to(rows.out.device)
        return statistics

    def simple_rules(self, data: Graph | Timeline) -> MeasuredRules:
        """Measure the mean, the last value, and ridge regressions."""
        judge = lambda outputs, values: self.judge(Rows(outputs, values, None))  # noqa: E731
        return fitted_rules(data, self.steps, self.targets.case, NumberLearner(), judge)

    def metrics(self, statistics: Statistics) -> dict[str, Any]:
        """loss and mse (equal, unless the loss is another), rmse, mae."""
        if "count" not in statistics.sums or float(statistics.sums["count"]) == 0:
            return {}
        count = statistics.sums["count"]
        squared = float(statistics.sums["squared"] / count)
        loss = squared
        if "loss" in statistics.sums:
            loss = float(statistics.sums["loss"] / statistics.sums["weight"])
        return {"loss": loss, "mse": squared, "rmse": squared**0.5, "mae": float(statistics.sums["absolute"] / count)}

    def predict(self, decoder: nn.Module | None, frames: Tensor, first_step: int) -> dict[str, Tensor]:
        """`value` [steps, rows, outputs]: the forecast for step t + horizon, or the vertex's own value."""
        return self.task.columns(decoder, frames)
