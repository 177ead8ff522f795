"""A loss of the caller's own: `trisect.parallelize` hands a function instead of a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from trisect.errors import ConfigError, DataError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.noise import Noise
from trisect.tasks.base import SPLITS, BoundTask, Frames, Split, Statistics, Task, TaskContext
from trisect.tasks.splits import split_steps

# of the steps of a timeline, for training, validation and test
_SHARES = (0.6, 0.2, 0.2)


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows whose outputs a loss is given.

    Attributes:
        y: labels or targets, [rows, …], or None.
        train, val, test: which rows each split has, bool [rows], on a timeline [steps, rows]; all of them are False
            where the data have no such split.
        vertices: the user's ids of the rows, int64 [rows].
        steps: of the timeline; range(1) on a graph.
        calls: how often a step calls the loss, on all ranks together: once for each part of the vertices, run of steps
            and chunk or block. All that the calls return is added up, so that a term which each of them computes, such
            as a penalty on parameters, is divided by it.
    """

    y: Tensor | None
    train: Tensor
    val: Tensor
    test: Tensor
    vertices: Tensor
    steps: range
    _totals: Mapping[str, int]
    calls: int = 1

    def total(self, split: str) -> int:
        """Return how many rows a split has on all ranks together, so that losses divided by it add up."""
        if split not in self._totals:
            raise DataError(f"split is {split!r}, and the data have {', '.join(self._totals)}; use one of these.")
        return self._totals[split]


# loss(out [rows, channels] or, on a timeline, [steps, rows, channels], rows) → a number, summed over all ranks
OwnLossFunction = Callable[[Tensor, Rows], Tensor]


@dataclass(frozen=True)
class OwnLoss(Task):
    """The caller hands a loss for each step."""

    def bind(self, data: Graph | Timeline, context: TaskContext) -> BoundOwnLoss:
        """Any data will do; steps of a timeline without splits, whose targets differ in them, are split in order."""
        count = data.vertices
        vertices = torch.arange(count) if context.vertices is None else context.vertices
        none = torch.zeros(count, dtype=torch.bool)
        splits = getattr(data, "splits", None) or {}
        masks: dict[str, Tensor] = {name: splits.get(name, none).cpu() for name in SPLITS}
        timeline, y = isinstance(data, Timeline), data.y
        steps = data.steps if isinstance(data, Timeline) else 1
        per_step = timeline and y is not None and y.shape[:2] == (steps, count)
        if per_step and not splits:
            runs, step = split_steps(steps, _SHARES), torch.arange(steps)[:, None]
            masks = {name: ((step >= run.start) & (step < run.stop)).expand(-1, count) for name, run in runs.items()}
        elif timeline:
            masks = {name: mask.expand(steps, -1) for name, mask in masks.items()}
        totals = {name: int(mask.sum()) for name, mask in masks.items()}
        return BoundOwnLoss(y, masks, vertices.cpu(), steps, totals, timeline, per_step)


@dataclass(eq=False)
class BoundOwnLoss(BoundTask):
    """The rows of one graph or timeline, and the loss of the step at hand.

    Attributes:
        timeline, per_step: whether outputs, and targets, have a dim of steps.
        asked: the loss of the step at hand, and `calls`: how often it is called; shared by all that was divided from
            this.
    """

    y: Tensor | None
    masks: Mapping[str, Tensor]
    vertices: Tensor
    count: int
    totals: Mapping[str, int]
    timeline: bool = False
    per_step: bool = False
    asked: list[OwnLossFunction] = field(default_factory=list)
    calls: list[int] = field(default_factory=lambda: [1])

    def rows(self, steps: range) -> Rows:
        """Return the rows at some steps."""
        device = None if self.y is None else self.y.device
        masks = {name: mask.to(device) for name, mask in self.masks.items()}
        y = self.y
        if y is not None and self.per_step:
            y = y[steps.start : steps.stop]
        if self.timeline:
            masks = {name: mask[steps.start : steps.stop] for name, mask in masks.items()}
        return Rows(y, masks["train"], masks["val"], masks["test"], self.vertices, steps, self.totals, self.calls[0])

    def restrict(self, rows: Tensor) -> BoundOwnLoss:
        """Return the same of some of the rows."""
        index = rows.cpu()
        y = self.y
        if y is not None:
            y = y[:, rows.to(y.device)] if self.per_step else y[rows.to(y.device)]
        masks = {name: mask[..., index] for name, mask in self.masks.items()}
        return replace(self, y=y, masks=masks, vertices=self.vertices[index])

    def steps(self, split: Split) -> range:
        """All steps are trained on; the function decides which rows count."""
        return range(self.count)

    def loss(self, decoder: nn.Module | None, frames: Frames, first_step: int, noise: Noise) -> Tensor:
        """Return what the caller's function says of these outputs."""
        out = frames if isinstance(frames, Tensor) else torch.stack(list(frames))
        steps = range(first_step, first_step + len(out))
        value = self.asked[-1](out if self.timeline else out[0], self.rows(steps))
        if not isinstance(value, Tensor) or value.numel() != 1:
            kind = (
                f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            )
            raise ConfigError(f"the loss is {kind}; return one number, a sum over rows divided by rows.total(…).")
        return value.reshape(())

    def measure(self, decoder: nn.Module | None, frames: Tensor, first_step: int, split: Split) -> Statistics:
        """Return nothing: the caller measures."""
        return Statistics()

    def metrics(self, statistics: Statistics) -> dict[str, Any]:
        """Return nothing: the caller measures."""
        return {}

    def predict(self, decoder: nn.Module | None, frames: Tensor, first_step: int) -> dict[str, Tensor]:
        """Return the outputs as they are."""
        return {"output": frames}

    def divide(self, starts: Sequence[int], part_index: int) -> BoundOwnLoss:
        """Return the same of one part."""
        return self.restrict(torch.arange(starts[part_index], starts[part_index + 1]))
