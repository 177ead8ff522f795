"""One class for each vertex, of a graph or of the steps of a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from trisect import ops
from trisect.errors import ConfigError, DataError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.tasks import curves, metrics
from trisect.tasks.base import MeasuredRules, Split, Statistics, Task, TaskContext
from trisect.tasks.decoders import VertexDecoder, VertexDecoderName, vertex_decoder
from trisect.tasks.node import JudgedSteps, NodeTargets, node_targets
from trisect.tasks.row_loss import cross_entropy, weighted_sum
from trisect.tasks.rows import BoundRows, Rows
from trisect.tasks.rules.fitted import ClassLearner, fitted_rules
from trisect.tasks.splits import SplitSizes

ClassWeights = Sequence[float] | Literal["balanced"] | None


@dataclass(frozen=True)
class NodeClassification(Task):
    """Cross entropy over the labelled vertices (label -1: none).

    Args:
        class_weights: a weight a class, or `balanced` (inverse to its frequency in train), or None.
        decoder: `auto`, `none`, `linear` or `mlp`; what follows the model's last layer.
        hidden: width inside an `mlp` decoder.
        at: on a timeline with one label a vertex, whether the outputs of the `last` step or of `every` step are judged.
        horizon: on a timeline with labels a step, how many steps ahead the label lies.
        split: fractions of the vertices where the data have no masks; fractions or counts of steps for labels a step.
    """

    class_weights: ClassWeights = None
    decoder: VertexDecoderName = "auto"
    hidden: int = 64
    at: JudgedSteps = "last"
    horizon: int = 0
    split: SplitSizes = (0.6, 0.2, 0.2)

    def bind(self, data: Graph | Timeline, context: TaskContext) -> BoundNodeClassification:
        """The data must have integer labels y."""
        classes, y = self.outputs(data), cast(Tensor, data.y)
        targets = node_targets(data, y.long(), y >= 0, context, self.split, self.at, self.horizon, type(self).split)
        return BoundNodeClassification(self, targets, classes, context)

    def outputs(self, data: Graph | Timeline) -> int:
        """Count the classes of the labels y."""
        y = data.y
        if y is None:
            raise DataError(
                f"task {self.name} needs labels y, and the data have none; give y, or in a table name its column"
                " (label_column, trisect data ingest --label-column)."
            )
        if y.is_floating_point():
            kind = str(y.dtype).removeprefix("torch.")
            raise DataError(
                f"task {self.name} needs labels y that are integers, and they are {kind}; give the number of each class"
                " (of rows that are one-hot, y.argmax(1)), or use node-regression."
            )
        classes = int(y.max()) + 1 if y.numel() else 0
        if classes < 2:
            raise DataError(f"task {self.name} needs at least 2 classes, and the labels y have {classes}.")
        return classes

    def channels(self, outputs: int) -> int | None:
        """The model gives a number a class, unless a decoder does."""
        return None if self.decoder in ("linear", "mlp") else outputs

    def make_decoder(self, channels: int, outputs: int) -> VertexDecoder | None:
        """There is no decoder where the model gives the outputs itself."""
        return vertex_decoder(self.decoder, channels, outputs, self.hidden)

    def row_loss(self, out: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each row, [rows]; a task of your own writes another one."""
        return cross_entropy(out, y)

    def columns(self, decoder: nn.Module | None, frames: Tensor) -> dict[str, Tensor]:
        """`class` [steps, rows] and `probability` [steps, rows, classes]."""
        logits = frames if decoder is None else decoder(frames)
        return {"class": logits.argmax(-1), "probability": torch.softmax(logits, -1)}


class BoundNodeClassification(BoundRows):
    """This is node classification on one graph or timeline."""

    def __init__(
        self, task: NodeClassification, targets: NodeTargets, classes: int, context: TaskContext | None = None
    ) -> None:
        super().__init__(targets)
        self.task, self.classes = task, classes
        self.channels = task.channels(classes)
        self.monitor = "val.auc" if classes == 2 else "val.accuracy"
        counts, weighted = self._train_counts()
        weights = class_weights(task.class_weights, counts)
        self.total = float((weighted * weights).sum())
        self.weights = weights.to(targets.y.device)
        self.take_loss(task, NodeClassification.row_loss, context or TaskContext(), classes)

    def _train_counts(self) -> tuple[Tensor, Tensor]:
        """Return how many training rows each class has, and the sum of their weights."""
        counts, weighted = torch.zeros(2, self.classes, dtype=torch.float64)
        for step in self.targets.runs["train"]:
            rows = self.targets.rows("train", step)
            labels, weight = self.targets.values(rows, step).cpu(), self.targets.weights(rows)
            counts += torch.bincount(labels, minlength=self.classes)
            own = None if weight is None else weight.cpu().double()
            weighted += torch.bincount(labels, own, minlength=self.classes)
        return counts, weighted

    def decoder(self, channels: int) -> VertexDecoder | None:
        """There is no decoder where the model gives the outputs itself."""
        return self.task.make_decoder(channels, self.classes)

    def loss_sum(self, rows: Rows) -> Tensor:
        """Cross entropy, or the user's loss, times the weights of classes and rows."""
        if self.row_loss is None and rows.weight is None:
            return ops.cross_entropy(rows.out, rows.y, self.weights)
        values = cross_entropy(rows.out, rows.y) if self.row_loss is None else self.row_loss(rows.out, rows.y)
        return weighted_sum(values, self._weight(rows))

    def _weight(self, rows: Rows) -> Tensor:
        own = self.weights[rows.y]
        return own if rows.weight is None else own * rows.weight

    def count_scores(self, decoder: nn.Module | None, frames: Tensor, first_step: int, split: Split) -> Statistics:
        """Count the scores of the split's vertices by class."""
        statistics = Statistics()
        for rows in self.rows(decoder, frames, first_step, split):
            statistics = statistics.merge(curves.count_classes(rows.out, rows.y))
        return statistics

    def judge(self, rows: Rows) -> Statistics:
        """Give a confusion matrix and the loss; with two classes the scores as well."""
        loss = self.loss_sum(replace(rows, out=rows.out.double())) if self.row_loss is None else self.loss_sum(rows)
        return classification_statistics(rows.out, rows.y, loss.double(), self._weight(rows).sum(), self.classes)

    def _judge(self, logits: Tensor, labels: Tensor) -> Statistics:
        return self.judge(Rows(logits, labels, None))

    def simple_rules(self, data: Graph | Timeline) -> MeasuredRules:
        """Measure the most frequent class, the last one, and logistic regressions."""
        return fitted_rules(data, self.steps, self.targets.case, ClassLearner(self.weights), self._judge)

    def metrics(self, statistics: Statistics) -> dict[str, Any]:
        """loss, accuracy, f1_micro, f1_macro, f1_per_class; with two classes auc and f1 (of class 1)."""
        return classification_metrics(statistics)

    def predict(self, decoder: nn.Module | None, frames: Tensor, first_step: int) -> dict[str, Tensor]:
        """`class` [steps, rows] and `probability` [steps, rows, classes]."""
        return self.task.columns(decoder, frames)


def class_weights(option: ClassWeights, counts: Tensor) -> Tensor:
    """Weights float64 [classes] from the option; `balanced` gives every class the same total weight."""
    classes = counts.numel()
    if option is None:
        return torch.ones(classes, dtype=torch.float64)
    if isinstance(option, str):
        if option != "balanced":
            raise ConfigError(f"task.class_weights is {option!r}; use balanced, a list of {classes} numbers, or none.")
        return torch.where(counts > 0, counts.sum() / (classes * counts.clamp(min=1)), 0.0)
    if len(option) != classes or min(option) < 0:
        raise ConfigError(f"task.class_weights is {list(option)}; give {classes} numbers of at least 0, one a class.")
    return torch.tensor(list(option), dtype=torch.float64)


def classification_statistics(logits: Tensor, labels: Tensor, loss: Tensor, weight: Tensor, classes: int) -> Statistics:
    """Give what `classification_metrics` reads of some rows; `loss` and `weight` are sums over them."""
    sums = {"confusion": metrics.confusion(logits.argmax(1), labels, classes), "loss": loss, "weight": weight}
    return Statistics(sums, {"scores": logits[:, 1] - logits[:, 0], "labels": labels} if classes == 2 else {})


def classification_metrics(statistics: Statistics) -> dict[str, Any]:
    """Give the measures that a confusion matrix (`confusion`), `loss`, `weight` and, for two classes, scores allow."""
    if "confusion" not in statistics.sums:
        return {}
    counts = statistics.sums["confusion"]
    if int(counts.sum()) == 0:
        return {}
    per_class = metrics.f1_per_class(counts)
    measures: dict[str, Any] = {
        "loss": float(statistics.sums["loss"] / statistics.sums["weight"]),
        "accuracy": metrics.accuracy_of(counts),
        "f1_micro": metrics.f1(counts, "micro"),
        "f1_macro": metrics.f1(counts, "macro"),
        "f1_per_class": per_class.tolist(),
    }
    if "scores" in statistics.rows:
        measures["auc"] = metrics.roc_auc(statistics.rows["scores"], statistics.rows["labels"])
        measures["f1"] = float(per_class[1])
    return measures
