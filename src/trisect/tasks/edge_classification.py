"""One class for each event of a timeline: embeddings of step t classify the events of step t + horizon."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from trisect import ops
from trisect.errors import DataError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.noise import Noise
from trisect.tasks.base import SPLITS, BoundTask, Frames, MeasuredRules, Split, Statistics, Task, TaskContext
from trisect.tasks.curves import count_classes
from trisect.tasks.decoders import PairDecoder, PairDecoderName, pair_decoder
from trisect.tasks.division import Division
from trisect.tasks.node_classification import (
    ClassWeights,
    class_weights,
    classification_metrics,
    classification_statistics,
)
from trisect.tasks.row_loss import RowLoss, weighted_sum
from trisect.tasks.rules.fitted import Case, ClassLearner, fitted_rules
from trisect.tasks.splits import SplitSizes, notes_on_steps, refuse_empty, split_steps


@dataclass(frozen=True)
class EdgeClassification(Task):
    """Cross entropy over the labelled events (label -1: none).

    Args:
        decoder: `mlp` (on the concatenation) or `bilinear`.
        hidden: width inside an `mlp` decoder.
        horizon: how many steps ahead the events lie; 0 classifies those of the same step.
        class_weights: a weight a class, or `balanced` (inverse to its frequency in train), or None.
        split: fractions of the steps, or whole counts, for train, val and test in this order.
    """

    decoder: PairDecoderName = "mlp"
    hidden: int = 64
    horizon: int = 0
    class_weights: ClassWeights = None
    split: SplitSizes = (0.7, 0.1, 0.2)

    def bind(self, data: Graph | Timeline, context: TaskContext) -> BoundEdgeClassification:
        """The data must be a timeline with integer labels edge_y, one an event."""
        if not isinstance(data, Timeline):
            raise DataError(f"task {self.name} needs a timeline, and the data are one graph; give events with times.")
        classes = self.outputs(data)
        if data.steps <= self.horizon:
            raise DataError(f"task.horizon {self.horizon} needs more than that many steps, and there are {data.steps}.")
        return BoundEdgeClassification(self, data, classes, context.loss)

    def outputs(self, data: Graph | Timeline) -> int:
        """Count the classes of the events' labels edge_y."""
        labels = getattr(data, "edge_y", None)
        if labels is None:
            raise DataError(
                f"task {self.name} needs labels of events, edge_y, and the data have none; give edge_y, or in a table"
                " name its column (edge_label, trisect data ingest --edge-label)."
            )
        classes = int(labels.max()) + 1 if labels.numel() else 0
        if classes < 2:
            raise DataError(f"task {self.name} needs at least 2 classes, and edge_y has {classes}.")
        return classes

    def make_decoder(self, channels: int, outputs: int) -> PairDecoder:
        """The decoder gives each event one score a class."""
        return pair_decoder(self.decoder, channels, outputs, self.hidden)

    def columns(self, decoder: nn.Module | None, frames: Tensor) -> dict[str, Tensor]:
        """`embedding` [steps, rows, channels]; classes of pairs come from the decoder on them."""
        return {"embedding": frames}


class BoundEdgeClassification(BoundTask):
    """This is edge classification on one timeline."""

    monitor = "val.f1_micro"
    reads_pairs = True
    takes_loss = True

    def __init__(self, task: EdgeClassification, timeline: Timeline, classes: int, loss: RowLoss | None = None) -> None:
        self._division: Division | None = None
        self._remote: dict[int, list[Tensor]] = {}
        self.task, self.timeline, self.classes = task, timeline, classes
        targets = [int((timeline.event_labels(step) >= 0).sum()) for step in range(task.horizon, timeline.steps)]
        self.runs = split_steps(timeline.steps - task.horizon, task.split, targets)
        self.notes = notes_on_steps(self.runs, targets, task.split, "labelled event", shift=task.horizon)
        counts = {name: self._counts(self.runs[name]) for name in SPLITS}
        refuse_empty({name: int(counts[name].sum()) for name in SPLITS}, "event")
        weights = class_weights(task.class_weights, counts["train"])
        self._constant = float((counts["train"] * weights).sum())
        self.weights, self.row_loss = weights.to(timeline.device), loss
        if loss is not None:
            loss.check(classes, self._events(self.runs["train"].start)[2][:2])

    def _events(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Give the labelled events that step's embeddings classify: src, dst, labels."""
        at = step + self.task.horizon
        src, dst = self.timeline.events(at)
        labels = self.timeline.event_labels(at)
        labelled = labels >= 0
        return src[labelled].long(), dst[labelled].long(), labels[labelled].long()

    def _counts(self, run: range) -> Tensor:
        counts = torch.zeros(self.classes, dtype=torch.float64)
        for step in run:
            counts += torch.bincount(self._events(step)[2], minlength=self.classes).cpu()
        return counts

    def decoder(self, channels: int) -> PairDecoder:
        """The decoder gives each event one score a class."""
        return self.task.make_decoder(channels, self.classes)

    def steps(self, split: Split) -> range:
        """A split has the steps whose embeddings classify its events."""
        return self.runs[split]

    def scored_pairs(self, split: Split, *, training: bool) -> list[int]:
        """The labelled events."""
        return [int((self.timeline.event_labels(step + self.task.horizon) >= 0).sum()) for step in self.runs[split]]

    def _loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.row_loss is None:
            return ops.cross_entropy(logits, labels, self.weights)
        return weighted_sum(self.row_loss(logits, labels), self.weights[labels])

    def divide(self, starts: Sequence[int], part_index: int) -> BoundEdgeClassification:
        """A part scores the events whose source it owns."""
        part = copy(self)
        part._division, part._remote = Division(tuple(starts), part_index), {}
        return part

    def wanted(self, step: int, noise: Noise) -> list[Tensor] | None:
        """Each part reads the destinations of the events that it scores."""
        if self._division is None:
            return None
        if step not in self.runs["train"]:
            return [torch.zeros(0, dtype=torch.int64, device=self.timeline.device)] * self._division.parts
        if step not in self._remote:
            self._remote[step] = self._division.remote(*self._events(step)[:2])
        return self._remote[step]

    def loss(self, decoder: nn.Module | None, frames: Frames, first_step: int, noise: Noise) -> Tensor:
        """Weighted cross entropy over the training events, divided by the sum of their weights."""
        score = cast(PairDecoder, decoder)
        total = frames[0].new_zeros(())
        for position, frame in enumerate(frames):
            if first_step + position in self.runs["train"]:
                src, dst, labels = self._events(first_step + position)
                if self._division is not None:
                    mine = self._division.mine(src)
                    remote = (self.wanted(first_step + position, noise) or [])[self._division.part_index]
                    labels = labels[mine]
                    src, dst = self._division.local(src[mine], dst[mine], remote)
                total = total + self._loss_sum(score(frame, src, dst), labels)
        return total / self._constant

    def count_scores(self, decoder: nn.Module | None, frames: Tensor, first_step: int, split: Split) -> Statistics:
        """Count the scores of the split's events by class."""
        score, statistics = cast(PairDecoder, decoder), Statistics()
        for position, frame in enumerate(frames):
            if first_step + position in self.runs[split]:
                src, dst, labels = self._events(first_step + position)
                statistics = statistics.merge(count_classes(score(frame, src, dst), labels))
        return statistics

    def measure(self, decoder: nn.Module | None, frames: Tensor, first_step: int, split: Split) -> Statistics:
        """Give a confusion matrix and the loss; with two classes the scores as well."""
        score = cast(PairDecoder, decoder)
        statistics = Statistics()
        for position, frame in enumerate(frames):
            if first_step + position in self.runs[split]:
                src, dst, labels = self._events(first_step + position)
                statistics = statistics.merge(self._judge(score(frame, src, dst), labels))
        return statistics

    def _judge(self, logits: Tensor, labels: Tensor) -> Statistics:
        loss = self._loss_sum(logits.double() if self.row_loss is None else logits, labels).double()
        return classification_statistics(logits, labels, loss, self.weights[labels].sum(), self.classes)

    def scored(
        self, decoder: nn.Module | None, frames: Frames, first_step: int, split: Split
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the scores and classes of a split's events."""
        for step, frame in enumerate(frames, first_step):
            if step in self.runs[split]:
                src, dst, labels = self._events(step)
                yield cast(PairDecoder, decoder)(frame, src, dst), labels

    def _case(self, split: Split, step: int) -> Case:
        src, dst, labels = self._events(step)
        return Case((src, dst), labels)

    def simple_rules(self, data: Graph | Timeline) -> MeasuredRules:
        """Measure the most frequent class, and logistic regressions on both ends of an event."""
        return fitted_rules(data, self.steps, self._case, ClassLearner(self.weights), self._judge)

    def metrics(self, statistics: Statistics) -> dict[str, Any]:
        """loss, accuracy, f1_micro, f1_macro, f1_per_class; with two classes auc and f1 (of class 1)."""
        return classification_metrics(statistics)

    def predict(self, decoder: nn.Module | None, frames: Tensor, first_step: int) -> dict[str, Tensor]:
        """`embedding` [steps, rows, channels]; classes of pairs come from the decoder on them."""
        return self.task.columns(decoder, frames)
