"""Probabilities of pairs: Platt's sigmoid over the decoder's scores, fitted to the validation pairs of a run."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trisect.comm.local.neighbours import Gather
from trisect.data.records import Array
from trisect.errors import CheckpointError
from trisect.settings.writing import to_json
from trisect.tasks.link_prediction import BoundLinkPrediction
from trisect.train.run.checkpoint import write_atomically
from trisect.train.run.sound_json import COUNT, FINITE, Maybe, read_object
from trisect.train.setup import Setup

CALIBRATION = "calibration.json"
_WHERE = ("first", "last", "steps", "silence")
_FORM = {
    "slope": FINITE,
    "intercept": FINITE,
    "pairs": COUNT,
    "positives": COUNT,
    "events": Maybe(FINITE),
    **dict.fromkeys(_WHERE, Maybe(COUNT)),
}
_FEW = 10  # a step is silent that has less than this part of the median events of the steps of the fit
NOT_FITTED = "Nothing is known of validation pairs; probabilities are the sigmoid of the score, not calibrated."
_ROUNDS = 100
_BINS = 1 << 16  # of scores, at most, by which a sigmoid is fitted


@dataclass(frozen=True)
class Calibration:
    """probability = sigmoid(slope · score + intercept).

    Attributes:
        pairs, positives: how many validation pairs it was fitted to, and how many of them were linked.
        first, last: the first and the last step whose pairs these are.
        steps: number of steps of the run's own timeline.
        silence: longest silence (see `silence_at`) at one of the steps first .. last.
        events: median number of events of these steps; 0: it is not known, and a step with one event is not silent.
    """

    slope: float = 1.0
    intercept: float = 0.0
    pairs: int = 0
    positives: int = 0
    first: int = 0
    last: int = 0
    steps: int = 0
    silence: int = 0
    events: float = 0.0

    def __call__(self, scores: Tensor) -> Tensor:
        """Give the probabilities of scores."""
        return torch.sigmoid(self.slope * scores.double() + self.intercept).to(scores.dtype)

    @property
    def least(self) -> int:
        """Return the least number of events of a step that is not silent."""
        return max(1, math.ceil(self.events / _FEW))

    @property
    def is_fitted(self) -> bool:
        """Say whether there were pairs to fit it to; if not, it is the plain sigmoid that was trained."""
        return self.pairs > 0

    def distance(self, step: int, counts: Array, *, continues: bool) -> str | None:
        """Return how a step differs from those of the fit, as a clause; None where probabilities hold at it.

        They hold up to as many steps before `first`, and after the run's own timeline, as it has from `first` on, and
        not after a silence of more than twice the longest one (or twice one step) at the steps of the fit.

        Args:
            counts: number of events of each step.
            continues: whether the timeline continues the run's own one, and does not stand alone.
        """
        silence = silence_at(counts, step, self.least)
        silent = silence > 2 * max(1, self.silence)
        reach = self.steps - self.first
        early = continues and step < self.first - reach
        late = continues and step - (self.steps - 1) > reach
        if not self.is_fitted or not (silent or early or late):
            return None
        clauses = []
        if early:
            clauses.append(
                f"lies {self.first - step:,} steps before step {self.first}, the first one that probabilities were"
                " fitted to"
            )
        elif continues and step > self.last:
            clauses.append(
                f"lies {step - self.last:,} steps after step {self.last}, the last one that probabilities were fitted"
                " to"
            )
        if silent:
            few = "without an event" if self.least == 1 else f"with fewer than {self.least:,} events"
            clauses.append(
                f"follows {silence:,} steps {few} (at the steps of the fit there were at most {self.silence:,})"
            )
        return " and ".join(clauses)

    def write(self, directory: Path) -> None:
        """Keep it in a run directory."""
        write_atomically(directory / CALIBRATION, to_json(asdict(self), indent=2).encode())

    @classmethod
    def read(cls, directory: Path) -> Calibration | None:
        """Read that of a run directory; None where none was fitted yet, or one without the steps of its fit."""
        try:
            plain = read_object(directory / CALIBRATION, _FORM)
        except FileNotFoundError:
            return None
        except CheckpointError as error:
            raise CheckpointError(f"{error} Remove it, and it is fitted anew.") from None
        if any(plain.get(name) is None for name in _WHERE):
            return None
        where = {name: plain[name] for name in _WHERE}
        fit = float(plain["slope"]), float(plain["intercept"]), plain["pairs"], plain["positives"]
        return cls(*fit, **where, events=float(plain.get("events") or 0))


def silence_at(counts: Array, step: int, least: int = 1) -> int:
    """Return the longest silence that a step knows of: consecutive steps of fewer than `least` events, up to it.

    One that ended longer ago than it lasted no longer counts.

    >>> [silence_at(np.array([4, 0, 0, 0, 1, 1, 1, 1]), step) for step in range(8)]
    [0, 1, 2, 3, 3, 3, 3, 0]

    Args:
        counts: number of events of each step.
    """
    filled = np.flatnonzero(np.asarray(counts[: step + 1]) >= least)
    starts, ends = np.append(-1, filled) + 1, np.append(filled, step + 1)
    lengths = ends - starts
    return int(lengths[step - ends < lengths].max(initial=0))


def calibrate(setup: Setup, gather: Gather) -> dict[str, Any]:
    """Fit the probabilities of a link prediction to its validation steps; all ranks call this, and get the same.

    Args:
        gather: gives what each rank hands in, in the order of ranks.
    """
    task, program = setup.program.task, setup.program
    own: list[tuple[Tensor, Tensor, Tensor]] = []
    steps = task.steps("val")
    if steps and isinstance(task, BoundLinkPrediction):
        for first, frames in program.outputs(steps):
            own += [
                task.validation_scores(program.decoder, frame, first + k)
                for k, frame in enumerate(frames)
                if program.decoder is not None and first + k in steps
            ]
    handed = [torch.cat(parts) for parts in zip(*own, strict=True)] if own else [torch.zeros(0).double()] * 3
    ranks = gather(handed)
    scores, labels, weights = (torch.cat([rank[k] for rank in ranks]) for k in range(3))
    fitted = fit_sigmoid(scores, labels, weights)
    if steps and isinstance(task, BoundLinkPrediction):
        counts = task.timeline.event_counts().numpy()
        events = float(np.median(counts[steps.start : steps.stop]))
        fitted = replace(fitted, first=steps.start, last=steps.stop - 1, steps=len(counts), events=events)
        fitted = replace(fitted, silence=max(silence_at(counts, step, fitted.least) for step in steps))
    return asdict(fitted)


def fit_sigmoid(scores: Tensor, labels: Tensor, weights: Tensor) -> Calibration:
    """Fit slope and intercept by weighted maximum likelihood (Newton's method, in float64).

    Labels are pulled towards the middle as Platt proposed, so that scores which separate the pairs have a finite slope.

    Args:
        scores, labels, weights: float64 [pairs]; a label is 1 or 0.
    """
    positives = int(labels.sum())
    negatives = labels.numel() - positives
    if not positives or not negatives:
        return Calibration()
    stand_for = float(weights[labels == 0].sum())  # a sampled pair is one of many
    targets = torch.where(labels > 0, (positives + 1) / (positives + 2), 1 / (stand_for + 2)).double()
    mean, scale = float(scores.mean()), max(float(scores.std()), 1e-12)
    x, targets, w = _binned((scores - mean) / scale, targets, weights / weights.sum())
    prior = float((w * targets).sum())
    beta = torch.tensor([1.0, math.log(prior / (1 - prior))], dtype=torch.float64)
    before = _loss(x, targets, w, beta)
    for _ in range(_ROUNDS):
        p = torch.sigmoid(x @ beta)
        gradient = x.t() @ (w * (p - targets))
        curvature = (x * (w * p * (1 - p))[:, None]).t() @ x + 1e-12 * torch.eye(2, dtype=torch.float64)
        step, size = torch.linalg.solve(curvature, gradient), 1.0
        while size > 1e-6 and _loss(x, targets, w, beta - size * step) > before:
            size /= 2
        beta = beta - size * step
        now = _loss(x, targets, w, beta)
        if before - now <= 1e-15:
            break
        before = now
    slope = float(beta[0]) / scale
    if slope <= 0:  # a better score is no likelier a link: the share of links is all that is known
        return Calibration(0.0, math.log(prior / (1 - prior)), scores.numel(), positives)
    return Calibration(slope, float(beta[1]) - slope * mean, scores.numel(), positives)


def _binned(scores: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return [mean score, 1], mean target and weight of the pairs of each bin, so that a round does not depend on how
    many pairs there are. A bin holds scores that differ by less than a thousandth of their deviation.
    """
    low, high = float(scores.min()), float(scores.max())
    bins = min(_BINS, max(1, math.ceil((high - low) * 1000)))
    index = ((scores - low) * (bins / max(high - low, 1e-12))).long().clamp_(0, bins - 1)
    total = torch.bincount(index, weights=weights, minlength=bins)
    filled = total > 0
    sums = [torch.bincount(index, weights=weights * values, minlength=bins)[filled] for values in (scores, targets)]
    total = total[filled]
    return torch.stack([sums[0] / total, torch.ones_like(total)], 1), sums[1] / total, total


def _loss(x: Tensor, targets: Tensor, weights: Tensor, beta: Tensor) -> float:
    z = x @ beta
    return float((weights * (torch.nn.functional.softplus(z) - targets * z)).sum())
