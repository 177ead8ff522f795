"""What tasks on single vertices share: rows with outputs, targets and weights, and a loss that is a sum over them."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import Self

from torch import Tensor, nn

from trisect.noise import Noise
from trisect.tasks.base import BoundTask, Frames, Split, Statistics, Task, TaskContext, take_ascending
from trisect.tasks.node import NodeTargets
from trisect.tasks.row_loss import RowLoss


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a split at a step.

    Attributes:
        out: [rows, channels], behind the decoder; y: their targets.
        weight: of each row, `y_weight` of the data; None: all are 1.
    """

    out: Tensor
    y: Tensor
    weight: Tensor | None


class BoundRows(BoundTask):
    """A task on vertices of a graph or timeline, bound to its targets.

    Attributes:
        row_loss: the user's own, or None.
        total: the weights of all training rows, by which the loss is divided.
    """

    takes_loss = True

    def __init__(self, targets: NodeTargets) -> None:
        self.targets, self.notes = targets, targets.notes
        self.row_loss: RowLoss | None = None
        self.total = 1.0

    def take_loss(self, task: Task, default: object, context: TaskContext, channels: int) -> None:
        """Find the loss of rows: of the settings, or that of a task which is not the `default` one; check it."""
        method = type(task).row_loss  # type: ignore[attr-defined]
        if context.loss is not None:
            self.row_loss = context.loss
        elif method is not default:
            self.row_loss = RowLoss(f"{type(task).__name__}.row_loss", task.row_loss)  # type: ignore[attr-defined]
        if self.row_loss is not None:
            step = self.targets.runs["train"].start
            self.row_loss.check(channels, self.targets.values(self.targets.rows("train", step)[:2], step))

    def restrict(self, rows: Tensor) -> Self:
        """The part has fewer rows and divides its loss by the same constant."""
        part = copy(self)
        part.targets = self.targets.restrict(rows)
        return part

    def steps(self, split: Split) -> range:
        """A split has the steps whose outputs are compared with its targets."""
        return self.targets.runs[split]

    def rows(self, decoder: nn.Module | None, frames: Frames, first_step: int, split: Split) -> Iterator[Rows]:
        """Yield the rows of a split among outputs, a step at a time."""
        for step, frame in enumerate(frames, first_step):
            if step in self.targets.runs[split]:
                rows = self.targets.rows(split, step)
                # rows first, then decoder: it never touches a vertex without a target
                chosen = take_ascending(frame, rows)
                out = chosen if decoder is None else decoder(chosen)
                yield Rows(out, self.targets.values(rows, step), self.targets.weights(rows))

    def scored(
        self, decoder: nn.Module | None, frames: Frames, first_step: int, split: Split
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield outputs and targets of a split's rows."""
        yield from ((rows.out, rows.y) for rows in self.rows(decoder, frames, first_step, split))

    def loss_sum(self, rows: Rows) -> Tensor:
        """Return the sum of the losses of rows, each times its weight."""
        raise NotImplementedError

    def judge(self, rows: Rows) -> Statistics:
        """Return what the measures of rows are made from."""
        raise NotImplementedError

    def loss(self, decoder: nn.Module | None, frames: Frames, first_step: int, noise: Noise) -> Tensor:
        """The losses of the training rows, divided by the sum of all weights."""
        total = frames[0].new_zeros(())
        for rows in self.rows(decoder, frames, first_step, "train"):
            total = total + self.loss_sum(rows)
        return total / self.total

    def measure(self, decoder: nn.Module | None, frames: Tensor, first_step: int, split: Split) -> Statistics:
        """Sums over the rows of a split, and what measures want of each row."""
        statistics = Statistics()
        for rows in self.rows(decoder, frames, first_step, split):
            statistics = statistics.merge(self.judge(rows))
        return statistics
