"""Rules for classes and numbers of vertices and events: a constant, the last value, and small linear models.

`majority`, `mean`                        the most frequent class of train, the mean of train
`last_value`                              what the vertex was last, where targets have steps and splits are by time
`logistic`, `ridge`                       a linear model of the features
`logistic_neighbours`, `ridge_neighbours` the same, which also reads degrees and the means of neighbours

Work is bounded: of many rows some are taken, and many features are folded into fewer columns; `notes` say so.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.noise import Noise, random_bits
from trisect.tasks.base import SPLITS, MeasuredRules, Split, Statistics
from trisect.tasks.rules.inputs import Inputs, walk_inputs
from trisect.tasks.rules.linear import apply, fit_logistic, fit_ridge

_COLUMNS = 256  # features of a vertex that are read as they are, where there are more rows than this
_WORK = 1 << 30  # multiplications of a product of all rows with themselves
_FITTED = 1 << 27  # rows · columns · outputs of a fit that goes over them in steps
_ROWS = 1 << 15  # that a rule is fitted to
_JUDGED_ROWS = 1 << 17  # of a split
_NUMBERS = 1 << 21  # rows · columns that a rule is fitted to; half of them are judged at a time
_KEPT = 1 << 23  # numbers that are kept of all vertices
_GATHERED = 1 << 28  # numbers that are read of neighbours
_SEED = 0  # of the rows and columns that are taken where there are many
_JUDGED: tuple[Split, ...] = ("val", "test")


@dataclass(frozen=True, eq=False)
class Case:
    """Rows whose targets belong to one step.

    Attributes:
        ends: int64 [rows] each: the vertex, or of events both of them.
        targets: int64 [rows], classes, or float [rows, outputs], numbers.
        last: in the same form what the target was before, -1 or NaN where that is not known; None: it never is.
    """

    ends: tuple[Tensor, ...]
    targets: Tensor
    last: Tensor | None = None

    def at(self, rows: Tensor | slice) -> Case:
        """Return the case of some of the rows."""
        last = None if self.last is None else self.last[rows]
        return Case(tuple(end[rows] for end in self.ends), self.targets[rows], last)


ReadCase = Callable[[Split, int], Case]
Judge = Callable[[Tensor, Tensor], Statistics]


class Learner(ABC):
    """Fits rules to targets of one kind; `constant` and `linear` are the names of two rules."""

    constant: str
    linear: str
    stepped_outputs: int = 0  # outputs of a fit that goes over its rows in steps; 0: it is in closed form

    @abstractmethod
    def outputs(self, values: Tensor) -> Tensor:
        """Turn targets into the outputs of a model that is sure of them, float64 [rows, outputs]; NaN where they are
        not known.
        """

    @abstractmethod
    def usual(self, targets: Tensor) -> Tensor:
        """Return the outputs, [outputs], that fit all of these targets best."""

    @abstractmethod
    def fit(self, x: Tensor, targets: Tensor) -> Tensor:
        """Fit a linear model, as `rules.linear` does."""


@dataclass(frozen=True, eq=False)
class ClassLearner(Learner):
    """Learns classes. weights: float64 [classes], of a row of each in the loss."""

    weights: Tensor
    constant, linear = "majority", "logistic"

    @property
    def stepped_outputs(self) -> int:  # type: ignore[override]
        """Return the number of classes."""
        return self.weights.numel()

    def outputs(self, values: Tensor) -> Tensor:
        """Return logits that give the class 0.99."""
        classes = self.weights.numel()
        sure = torch.nn.functional.one_hot(values.clamp(min=0), classes) * math.log(99.0 * (classes - 1))
        return torch.where(values[:, None] >= 0, sure.double(), torch.nan)

    def usual(self, targets: Tensor) -> Tensor:
        """Return logarithms of the classes' shares."""
        counts = torch.bincount(targets, minlength=self.weights.numel()).double()
        return torch.log((counts + 1e-3) / (counts + 1e-3).sum())

    def fit(self, x: Tensor, targets: Tensor) -> Tensor:
        """Fit a logistic regression."""
        return fit_logistic(x, targets, self.weights[targets], self.weights.numel())


@dataclass(frozen=True, eq=False)
class NumberLearner(Learner):
    """Learns numbers."""

    constant, linear = "mean", "ridge"

    def outputs(self, values: Tensor) -> Tensor:
        """Return the numbers."""
        return values.double()

    def usual(self, targets: Tensor) -> Tensor:
        """Return the mean."""
        return targets.double().mean(0)

    def fit(self, x: Tensor, targets: Tensor) -> Tensor:
        """Fit a ridge regression, to numbers of variance 1."""
        y = targets.double()
        shift, scale = y.mean(0), y.std(0, correction=0).clamp(min=1e-12)
        weights = fit_ridge(x, (y - shift) / scale) * scale
        weights[-1] += shift
        return weights


@dataclass(frozen=True, eq=False)
class _Linear:
    """A fitted linear model of inputs [rows, columns], which are standardised by `shift` and `scale` first."""

    shift: Tensor
    scale: Tensor
    weights: Tensor

    @classmethod
    def fit(cls, x: Tensor, targets: Tensor, learner: Learner) -> _Linear:
        shift, scale = x.mean(0), x.std(0, correction=0)
        scale = torch.where(scale > 1e-9 * (1 + shift.abs()), scale, torch.inf)  # a constant column says nothing
        return cls(shift, scale, learner.fit((x - shift).div_(scale), targets))

    def outputs(self, x: Tensor) -> Tensor:
        # far outside of what was seen, a linear model knows nothing
        return apply((x - self.shift).div_(self.scale).clamp_(-10, 10), self.weights)


@torch.no_grad()
def fitted_rules(
    data: Graph | Timeline, steps: Callable[[Split], range], read: ReadCase, learner: Learner, judge: Judge
) -> MeasuredRules:
    """Fit the rules of a task to train, and measure them on val and test.

    Args:
        steps: those of each split.
        read: reads the case of a split at a step.
        learner: of the task's kind of targets.
        judge: measures outputs, [rows, outputs], against targets, as the task measures a model.
    """
    rules = _FittedRules(data, steps, read, learner, judge)
    return MeasuredRules(rules.measure(), tuple(rules.notes))


class _FittedRules:
    """The rules of one task on its data; the arguments are those of `fitted_rules`."""

    def __init__(
        self,
        data: Graph | Timeline,
        steps: Callable[[Split], range],
        read: ReadCase,
        learner: Learner,
        judge: Judge,
    ) -> None:
        self._data, self._steps, self._read, self._learner, self._judge = data, steps, read, learner, judge
        self._columns = self._own = self._width = 0
        self.notes: list[str] = []

    def measure(self) -> dict[Split, dict[str, Statistics]]:
        """Fit all rules to train, and measure them on val and test."""
        sizes = {split: self._count(split) for split in SPLITS}
        if not sizes["train"]:
            return {}
        x, targets = self._gather_train(self._share(sizes))
        linear = self._learner.linear
        models = {
            linear: _Linear.fit(x[:, : self._own], targets, self._learner),
            f"{linear}_neighbours": _Linear.fit(x, targets, self._learner),
        }
        del x
        usual = self._learner.usual(targets)
        measured: dict[Split, dict[str, Statistics]] = {split: {} for split in _JUDGED if sizes[split]}
        shares = {split: min(1.0, _JUDGED_ROWS / max(1, size)) for split, size in sizes.items()}
        for split, share in shares.items():
            if split in measured and share < 1:
                self.notes.append(f"judged on {_JUDGED_ROWS:,} of {sizes[split]:,} rows of {split}")
        for split, case, inputs in self._walk(_JUDGED, shares):
            for rule, outputs in self._outputs(case, inputs, usual, models):
                before = measured[split].get(rule, Statistics())
                measured[split][rule] = before.merge(self._judge(outputs, case.targets))
        return measured

    def _count(self, split: Split) -> int:
        return sum(self._read(split, step).targets.shape[0] for step in self._steps(split))

    def _share(self, sizes: Mapping[Split, int]) -> float:
        """Choose how many columns features are folded into; return the share of the rows that rules are fitted to."""
        data, rows = self._data, sizes["train"]
        ends = max(len(self._read("train", step).ends) for step in self._steps("train"))
        features = 2 if data.x is None else data.x.shape[-1]
        columns = min(features, _NUMBERS // (2 * ends * rows) if rows <= _COLUMNS else _COLUMNS // ends)
        if isinstance(data, Timeline):  # sums over neighbours are kept of all vertices, and made of all events
            most_columns = min(_KEPT // max(1, data.vertices), _GATHERED // max(1, data.total_events))
        else:
            judged = min(rows, _ROWS) + sum(min(sizes[split], _JUDGED_ROWS) for split in _JUDGED)
            most_columns = _GATHERED // max(1, judged * (1 + data.edges // max(1, data.vertices)))
        columns = min(columns, max(8, most_columns))
        if columns < features:  # folded features are a copy
            columns = min(columns, max(8, _KEPT // max(1, data.vertices)))
            self.notes.append(f"{features:,} features folded into {columns}")
        self._columns, self._own, self._width = columns, ends * columns, 2 * ends * (columns + 8)
        width = self._width
        most = min(_ROWS, _NUMBERS // width, _WORK // (width * min(width, rows)))
        if self._learner.stepped_outputs:
            most = min(most, _FITTED // (width * self._learner.stepped_outputs))
        most = max(_COLUMNS, most)
        if rows > most:
            self.notes.append(f"fitted to {most:,} of {rows:,} rows")
        return min(1.0, most / rows)

    def _gather_train(self, share: float) -> tuple[Tensor, Tensor]:
        """Return the inputs of the training rows, as `_read_inputs` does, and their targets."""
        blocks, targets = [], []
        for _, case, inputs in self._walk(("train",), {"train": share}):
            blocks.append(_read_inputs(case, inputs))
            targets.append(case.targets)
        return torch.cat(blocks), torch.cat(targets)

    def _walk(self, splits: Sequence[Split], shares: Mapping[Split, float]) -> Iterator[tuple[Split, Case, Inputs]]:
        """Read a share of the cases of some splits, step by step and in blocks, beside the inputs as they then are."""
        wanted = sorted({step for split in splits for step in self._steps(split)})
        for step, inputs in walk_inputs(self._data, wanted, self._columns):
            for split in splits:
                if step not in self._steps(split):
                    continue
                case = self._read(split, step)
                if shares[split] < 1:
                    case = case.at(self._some(case.targets.shape[0], step, shares[split]))
                block = max(1, _NUMBERS // (2 * self._width))
                for start in range(0, case.targets.shape[0], block):
                    yield split, case.at(slice(start, start + block)), inputs

    def _some(self, rows: int, step: int, share: float) -> Tensor:
        key = Noise(_SEED, step=step).key("rows of simple rules")
        return torch.nonzero(random_bits(key, torch.arange(rows), 1)[:, 0] < share * 2**32)[:, 0]

    def _outputs(
        self, case: Case, inputs: Inputs, usual: Tensor, models: Mapping[str, _Linear]
    ) -> Iterator[tuple[str, Tensor]]:
        constant = usual.expand(case.targets.shape[0], -1)
        yield self._learner.constant, constant
        if case.last is not None:
            last = self._learner.outputs(case.last)
            yield "last_value", torch.where(last.isnan(), constant, last)
        x = _read_inputs(case, inputs)
        for (name, model), columns in zip(models.items(), (x[:, : self._own], x), strict=True):
            yield name, model.outputs(columns)


def _read_inputs(case: Case, inputs: Inputs) -> Tensor:
    """Return the inputs of rows, float64 [rows, columns]: those of their own first, then those of neighbours."""
    parts = [read(end) for read in (inputs.own, inputs.around) for end in case.ends]
    return torch.cat(parts, 1).double()
