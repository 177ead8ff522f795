"""Probabilities of pairs: Platt's sigmoid over the decoder's scores, fitted to the validation pairs of a run."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trisect.comm.local.neighbours import Gather
from trisect.errors import CheckpointError
from trisect.tasks.link_prediction import BoundLinkPrediction
from trisect.train.run.checkpoint import write_atomically
from trisect.train.run.sound_json import COUNT, FINITE, read_object
from trisect.train.setup import Setup

CALIBRATION = "calibration.json"
_FORM = {"slope": FINITE, "intercept": FINITE, "pairs": COUNT, "positives": COUNT}
_ROUNDS = 100


@dataclass(frozen=True)
class Calibration:
    """probability = sigmoid(slope · score + intercept).

    Attributes:
        pairs, positives: how many validation pairs it was fitted to, and how many of them were linked.
    """

    slope: float = 1.0
    intercept: float = 0.0
    pairs: int = 0
    positives: int = 0

    def __call__(self, scores: Tensor) -> Tensor:
        """Give the probabilities of scores."""
        return torch.sigmoid(self.slope * scores.double() + self.intercept).to(scores.dtype)

    @property
    def is_fitted(self) -> bool:
        """Say whether there were pairs to fit it to; if not, it is the plain sigmoid that was trained."""
        return self.pairs > 0

    def write(self, directory: Path) -> None:
        """Keep it in a run directory."""
        write_atomically(directory / CALIBRATION, json.dumps(asdict(self), indent=2).encode())

    @classmethod
    def read(cls, directory: Path) -> Calibration | None:
        """Read that of a run directory; None where none was fitted yet."""
        try:
            plain = read_object(directory / CALIBRATION, _FORM)
        except FileNotFoundError:
            return None
        except CheckpointError as error:
            raise CheckpointError(f"{error} Remove it, and it is fitted anew.") from None
        return cls(float(plain["slope"]), float(plain["intercept"]), plain["pairs"], plain["positives"])


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
    return asdict(fit_sigmoid(scores, labels, weights))


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
    x = torch.stack([(scores - mean) / scale, torch.ones_like(scores)], 1)
    w = weights / weights.sum()
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


def _loss(x: Tensor, targets: Tensor, weights: Tensor, beta: Tensor) -> float:
    z = x @ beta
    return float((weights * (torch.nn.functional.softplus(z) - targets * z)).sum())
