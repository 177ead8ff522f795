"""What a task is: which rows have a target, the loss over them, and numbers that say how good a model is.

A task never sees a rank. Its loss is a sum over the rows at hand divided by a constant that the whole run shares, so
that the losses (and gradients) of parts, stages and runs add up. What it measures comes as `Statistics`, which merge
the same way. A static graph is a timeline of one step: outputs are always [steps, rows, channels].
"""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from trisect.errors import ConfigError, LayoutError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.noise import Noise
from trisect.ops import take_rows
from trisect.tasks.metrics import defined
from trisect.tasks.row_loss import RowLoss

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
Frames = Tensor | Sequence[Tensor]


@dataclass
class Statistics:
    """What metrics are made from: `sums` add up over rows, steps and ranks, `rows` are concatenated."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    rows: dict[str, Tensor] = field(default_factory=dict)

    def merge(self, other: Statistics) -> Statistics:
        """This adds up the sums of both and concatenates their rows."""
        sums = dict(self.sums)
        for name, value in other.sums.items():
            sums[name] = sums[name] + value if name in sums else value
        rows = dict(self.rows)
        for name, value in other.rows.items():
            rows[name] = torch.cat([rows[name], value]) if name in rows else value
        return Statistics(sums, rows)


@dataclass(frozen=True, eq=False)
class MeasuredRules:
    """The measures of simple rules.

    Attributes:
        statistics: split → rule → what its measures are made from.
        notes: how the work was bounded, a phrase each.
    """

    statistics: dict[Split, dict[str, Statistics]]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskContext:
    """What a task must know besides the data.

    Attributes:
        seed: of what is sampled.
        vertices: the user's id of each row where vertices were reordered, or None.
        loss: of a row, the user's own; None: the task's.
    """

    seed: int = 0
    vertices: Tensor | None = None
    loss: RowLoss | None = None


class BoundTask(ABC):
    """A task on one graph or timeline, with its targets, splits and constants.

    Attributes:
        channels: how wide the model's output must be, or None where the decoder adapts to it.
        monitor: the measure by which the best epoch is chosen, unless the user says otherwise.
        cheap: whether all splits may be measured in every evaluation; otherwise train and test wait for the end,
            unless one of them is monitored.
        final: the splits that are measured at the end.
        reads_pairs: whether loss and measures read pairs of vertices, so that a step is measured from the outputs of
            all vertices together.
        takes_loss: whether it heeds `TaskContext.loss`, a loss of rows.
        notes: what the user should know of the splits, a sentence each.
        settings: what the user should know of options that were not given, in words; empty where there is nothing.
    """

    channels: int | None = None
    monitor: str = "val.loss"
    cheap: bool = True
    final: tuple[Split, ...] = SPLITS
    reads_pairs: bool = False
    takes_loss: bool = False
    notes: tuple[str, ...] = ()
    settings: str = ""

    def warn(self) -> None:
        """Show each note to the user as a warning."""
        for note in self.notes:
            warnings.warn(note, stacklevel=3)

    def decoder(self, channels: int) -> nn.Module | None:
        """The trained part that follows the model's last layer of `channels` outputs (it belongs to the last stage)."""
        return None

    def decoder_outline(self, channels: int) -> nn.Module | None:
        """Return the decoder on the `meta` device: its widths, and no memory."""
        with torch.device("meta"):
            return self.decoder(channels)

    def restrict(self, rows: Tensor) -> BoundTask:
        """This is the same task, with the same constants, on some of the rows (positions, int64)."""
        raise LayoutError(
            f"{type(self).__name__} cannot be cut into chunks; set layout.chunks to 1, or write its restrict."
        )

    def divide(self, starts: Sequence[int], part_index: int) -> BoundTask:
        """This is the same task, with the same constants, for the loss of one part of the rows, an interval."""
        return self.restrict(torch.arange(starts[part_index], starts[part_index + 1]))

    def wanted(self, step: int, noise: Noise) -> list[Tensor] | None:
        """Of a divided task: for each part the rows (positions among all vertices, ascending) of other parts whose
        outputs of this step its loss reads; None where a loss reads its own rows alone.

        All parts compute the same lists, since what is sampled is a function of the seed, the epoch and the step.
        """
        return None

    def scored_pairs(self, split: Split, *, training: bool) -> list[int]:
        """Say how many pairs are scored at each step of a split, by the loss or by measures; none: single vertices."""
        return []

    def remembered_bytes(self, times: int) -> int:
        """Return the bytes that a loss keeps of earlier steps, where steps are dealt to `times` ranks; 0 by default."""
        return 0

    @abstractmethod
    def steps(self, split: Split) -> range:
        """Give the steps whose outputs a split reads."""

    @abstractmethod
    def loss(self, decoder: nn.Module | None, frames: Frames, first_step: int, noise: Noise) -> Tensor:
        """Give the training loss of these outputs: a sum divided by the run's constant.

        Args:
            frames: [steps, rows, channels], the outputs of steps first_step, first_step + 1, …; of a divided task that
                wants rows of other parts, for each step the own rows and then those, part by part.
            noise: the epoch, for what is sampled anew in each.
        """

    @abstractmethod
    def measure(self, decoder: nn.Module | None, frames: Tensor, first_step: int, split: Split) -> Statistics:
        """What these outputs say about a split. Steps outside it are ignored."""

    @abstractmethod
    def metrics(self, statistics: Statistics) -> dict[str, Any]:
        """Named measures, `loss` among them, from merged statistics."""

    def count_scores(self, decoder: nn.Module | None, frames: Tensor, first_step: int, split: Split) -> Statistics:
        """Count the scores of these outputs for the pictures of a report (`tasks.curves`); nothing by default."""
        return Statistics()

    def measure_and_count(
        self, decoder: nn.Module | None, frames: Tensor, first_step: int, split: Split
    ) -> tuple[Statistics, Statistics]:
        """Return what `measure` and `count_scores` do, of the same outputs."""
        return (
            self.measure(decoder, frames, first_step, split),
            self.count_scores(decoder, frames, first_step, split),
        )

    def scored(
        self, decoder: nn.Module | None, frames: Frames, first_step: int, split: Split
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield what is scored of a split, outputs [rows, channels] and their targets [rows, …], for measures of the
        user's own.
        """
        raise ConfigError(
            f"train.metrics is given, and {type(self).__name__} has no outputs and targets of single rows to call it"
            " with; leave it out, or write the task's scored."
        )

    def simple_rules(self, data: Graph | Timeline) -> MeasuredRules:
        """Measure simple rules on what val and test ask of a model; none by default.

        Args:
            data: which the task is bound to, with their features.
        """
        return MeasuredRules({})

    def rule_metrics(self, statistics: Statistics) -> dict[str, float | None]:
        """Return the named measures of a simple rule, None where one has no value."""
        measures = self.metrics(statistics)
        return defined({name: value for name, value in measures.items() if isinstance(value, float)})

    @abstractmethod
    def predict(self, decoder: nn.Module | None, frames: Tensor, first_step: int) -> dict[str, Tensor]:
        """What the user gets for these outputs, named; every tensor begins with [steps, rows, …]."""


class Task(ABC):
    """A task as the user asks for it: a name and options (the fields of the subclass, a frozen dataclass)."""

    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        """The name is that of the class: `NodeClassification` is the task node-classification."""
        super().__init_subclass__()
        cls.name = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()

    @abstractmethod
    def bind(self, data: Graph | Timeline, context: TaskContext) -> BoundTask:
        """The task on these data, or a DataError that says what they lack."""

    def outputs(self, data: Graph | Timeline) -> int:
        """Tell how many numbers the data ask for, of a vertex or of a pair: one a class, or one a target."""
        raise ConfigError(f"task {self.name} does not say how many outputs it has; write its outputs.")

    def channels(self, outputs: int) -> int | None:
        """Tell how wide the model's output must be; None where the decoder adapts to it."""
        return None

    def make_decoder(self, channels: int, outputs: int) -> nn.Module | None:
        """Make the trained part that follows the model's last layer of `channels` outputs."""
        return None

    def columns(self, decoder: nn.Module | None, frames: Tensor) -> dict[str, Tensor]:
        """Turn a model's outputs into what the user gets; see `BoundTask.predict`."""
        raise ConfigError(f"task {self.name} does not say what it predicts; write its columns.")

    def options(self) -> Mapping[str, Any]:
        """This gives the options by name, as plain values."""
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]


def take_ascending(x: Tensor, rows: Tensor) -> Tensor:
    """`ops.take_rows` of distinct ascending rows: x itself where these are all."""
    return x if rows.numel() == x.shape[0] else take_rows(x, rows)
