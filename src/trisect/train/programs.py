"""What one process does for each kind of action: the whole model on the whole graph, or on the whole timeline.

A program holds the tensors of an epoch and offers handlers to the executor. Every layout's program is compared with
these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trisect import ops
from trisect.errors import RunError
from trisect.graph.adjacency import Adjacency
from trisect.nn.base import Context, Model, State
from trisect.nn.dynamic import DynamicModel, Snapshots
from trisect.noise import Noise
from trisect.runtime.executor import Handler
from trisect.runtime.history import History
from trisect.runtime.ledger import Ledger
from trisect.schedule.action import Action, Kind
from trisect.schedule.builders import single
from trisect.train.kept import part_of
from trisect.train.tasks.base import BoundTask, Split, Statistics

_SINGLE = single().ranks[0]


class Program(ABC):
    """One process's work: alone, or as one rank of several, whose answers below are those of all ranks together.

    Args:
        model, decoder: the trained parts.
        task: bound to the rows that the program computes.
        seed: of everything random.
        vertices: the user's id of each row, or None where rows are vertices.
    """

    formula_bytes: int = 0
    history: History | None = None

    def __init__(
        self,
        model: Model | DynamicModel,
        decoder: nn.Module | None,
        task: BoundTask,
        seed: int,
        vertices: Tensor | None,
    ) -> None:
        self.model, self.decoder, self.task = model, decoder, task
        self._origin = Noise(seed, vertices=vertices)
        self.noise = self._origin
        self.ledger = Ledger()
        self.loss: Tensor | None = None
        self._value: Tensor | None = None

    def begin(self, epoch: int) -> None:
        """Enter an epoch (1, 2, …): all that it draws is a function of its number."""
        self.noise = Noise(self._origin.seed, epoch, vertices=self._origin.vertices)

    def actions(self) -> Sequence[Action]:
        """What this rank does in the epoch that has begun."""
        return _SINGLE

    def total_loss(self) -> float:
        """The loss of the epoch, once backward is done."""
        return float("nan") if self._value is None else float(self._value)

    def total(self, value: float) -> float:
        """The sum over all ranks of something that each of them counts for itself."""
        return value

    def total_square(self, square: float) -> float:
        """The squared norm of all gradients, from that of this rank's parameters."""
        return square

    def listed(self, value: float) -> list[float]:
        """A rank's value of each rank."""
        return [value]

    def merged(self, found: Mapping[Split, Statistics]) -> dict[Split, Statistics]:
        """What was measured on all ranks."""
        return dict(found)

    def state(self) -> dict[str, Tensor]:
        """What else than parameters a resumed run needs."""
        return {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `state` gave."""
        del tensors

    def exact_loss(self, epoch: int) -> float | None:
        """The training loss computed exactly, with all that the epoch draws; None where every epoch is exact."""
        del epoch
        return None

    def tighten(self, level: int, epoch: int) -> str:
        """Be as strict as `History.tightened` says, from this epoch on; what that is in words."""
        raise RunError(f"a program without history cannot be made stricter (level {level}, epoch {epoch})")

    def staleness(self) -> dict[str, Any] | None:
        """What was stale in the last epoch, measured; None where every epoch is exact."""
        return None

    def handlers(self) -> dict[Kind, Handler]:
        """What to do for all actions but the step."""
        return {Kind.FORWARD: self.forward, Kind.BACKWARD: self.backward}

    @abstractmethod
    def forward(self, action: Action) -> None:
        """Compute the training loss."""

    def backward(self, action: Action) -> None:
        """Gradients of all parameters; what the forward pass kept is free afterwards."""
        if self.loss is not None:
            loss, self.loss = self.loss, None
            self._value = loss.detach()
            loss.backward()  # type: ignore[no-untyped-call]

    @abstractmethod
    def outputs(self, steps: range, *, hidden: bool = False) -> Iterator[tuple[int, Tensor]]:
        """Exact outputs (nothing dropped) of the steps, some at a time: (first step, [steps, rows, channels]).

        With `hidden`, what the last layer (of a static model) or the head (of a dynamic one) reads instead.
        """

    def last_step(self, splits: tuple[Split, ...]) -> int:
        """One past the last step that the splits read."""
        return max(self.task.steps(split).stop for split in splits)


class StaticProgram(Program):
    """A static model on one graph. x: [vertices, in_channels]."""

    def __init__(
        self,
        model: Model,
        decoder: nn.Module | None,
        task: BoundTask,
        seed: int,
        vertices: Tensor | None,
        x: Tensor,
        adjacency: Adjacency,
        *,
        keep: bool = True,
    ) -> None:
        super().__init__(model, decoder, task, seed, vertices)
        self._layers = model.stack
        self._x, self._adjacency = x, adjacency
        # Â·X has no trained part: known once, it saves the first layer's aggregation in every epoch
        first = self._layers[0]
        self._aggregated = ops.aggregate(x, adjacency) if keep and first.spatial and first.preaggregates else None

    def run(self, noise: Noise | None, layers: int | None = None) -> Tensor:
        """The outputs [rows, channels] of the model, or of its first `layers` layers."""
        shared: dict[str, Tensor] = {}
        x = self._x
        for number, layer in enumerate(self._layers[:layers]):
            context = Context(None if noise is None else noise.at(layer=number), shared)
            if number == 0 and self._aggregated is not None:
                x = layer.combine_aggregated(self._aggregated, x, context)
            else:
                x = layer(x, self._adjacency, context)
            if layer.writes is not None:
                shared[layer.writes] = x
        return x

    def forward(self, action: Action) -> None:
        """The whole model, then the loss on the training rows."""
        self.loss = self.task.loss(self.decoder, self.run(self.noise)[None], 0, self.noise)

    @torch.no_grad()
    def outputs(self, steps: range, *, hidden: bool = False) -> Iterator[tuple[int, Tensor]]:
        """The one step of a static graph."""
        yield 0, self.run(None, max(1, len(self._layers) - 1) if hidden else None)[None]


class TimelineProgram(Program):
    """A dynamic model over a timeline, or a static model in each of its snapshots.

    Args:
        xs: [vertices, in_channels] fixed, or [steps, vertices, in_channels].
        snapshots: the prepared adjacency of each step.
        aggregated: Â_t·x_t of each step where it is kept, or None.
    """

    def __init__(
        self,
        model: Model | DynamicModel,
        decoder: nn.Module | None,
        task: BoundTask,
        seed: int,
        vertices: Tensor | None,
        xs: Tensor,
        snapshots: Snapshots,
        aggregated: Tensor | None = None,
        *,
        block: int = 16,
    ) -> None:
        super().__init__(model, decoder, task, seed, vertices)
        self._xs, self._snapshots, self._aggregated, self._block = xs, snapshots, aggregated, block

    def run(
        self, model: Model | DynamicModel, steps: range, state: tuple[State, ...] | None, noise: Noise | None
    ) -> tuple[Tensor, tuple[State, ...] | None]:
        """The outputs of consecutive steps, [steps, rows, channels], and the state after them."""
        xs = self._xs if self._xs.dim() == 2 else self._xs[steps.start : steps.stop]
        snapshots = part_of(self._snapshots, steps)
        if isinstance(model, DynamicModel):
            aggregated = None if self._aggregated is None else self._aggregated[steps.start : steps.stop]
            found, left = model(xs, snapshots, state, noise, steps.start, aggregated)
            return found, left
        frames = [
            model(
                xs if xs.dim() == 2 else xs[t], snapshots[t], None if noise is None else noise.at(step=steps.start + t)
            )
            for t in range(len(steps))
        ]
        return torch.stack(frames), None

    def forward(self, action: Action) -> None:
        """The steps up to the last that is trained on, and the loss."""
        steps = range(self.last_step(("train",)))
        frames, _ = self.run(self.model, steps, None, self.noise)
        self.loss = self.task.loss(self.decoder, frames, 0, self.noise)

    @torch.no_grad()
    def outputs(self, steps: range, *, hidden: bool = False) -> Iterator[tuple[int, Tensor]]:
        """From the first step on, since state is carried; a block of steps at a time."""
        model = self.model
        if hidden and isinstance(model, DynamicModel):
            model = DynamicModel([*model.stack], normalisation=model.normalisation, self_loops=model.self_loops)
        state: tuple[State, ...] | None = None
        for start in range(0, steps.stop, self._block):
            part = range(start, min(start + self._block, steps.stop))
            frames, state = self.run(model, part, state, None)
            if part.stop > steps.start:
                skip = max(0, steps.start - start)
                yield start + skip, frames[skip:]
