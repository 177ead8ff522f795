"""How scores lie beside labels, for pictures of a model's quality: confusion, ROC and precision-recall, calibration.

Scores are counted in fixed bins of their log-odds, so that the counts of steps and ranks add up, and a run of any size
is kept in a few kilobytes. Areas under curves that are drawn from bins differ from the exact ones in the fourth digit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trisect.tasks import metrics
from trisect.tasks.base import Statistics

_REACH, _BINS = 16.0, 512  # log-odds from -16 to 16; what lies beyond is counted at the ends
_SLAB = 1 << 17  # scores that are looked at together: some megabytes, while the memory is full
_POINTS = 160  # of a curve
_SHARES = 10  # equal steps of probability, by which calibration is judged
MOST_CURVES, MOST_CLASSES = 12, 100


def count_classes(logits: Tensor, labels: Tensor) -> Statistics:
    """Count the scores of some rows by class. logits: [rows, classes]; labels: int64 [rows].

    The sums are `confusion` [classes, classes] (up to 100 classes), `classes` [classes or 1, 2, bins] (each class
    against the rest, up to 12 of them; of two classes the second alone) and `top` [1, 2, bins] (the class that is
    predicted, and whether it is right).
    """
    classes = logits.shape[1]
    sums: dict[str, Tensor] = {}
    if classes <= MOST_CLASSES:
        sums["confusion"] = metrics.confusion(logits.argmax(1), labels, classes).cpu()
    total = Statistics(sums)
    rows = max(1, _SLAB // classes)
    for start in range(0, labels.numel(), rows):
        slab, own = logits[start : start + rows].double(), labels[start : start + rows]
        odds = _log_odds(slab)
        best, chosen = odds.max(1)
        here = {"top": _count(best[:, None], (chosen == own)[:, None])}
        if classes == 2:
            here["classes"] = _count(odds[:, 1:], (own == 1)[:, None])
        elif classes <= MOST_CURVES:
            each = torch.arange(classes, device=own.device)
            here["classes"] = _count(odds, own[:, None] == each)
        total = total.merge(Statistics(here))
    return total


def count_pairs(scores: Tensor, labels: Tensor, trained_ratio: float) -> Statistics:
    """Count the scores of pairs by whether they are linked.

    A decoder is trained on `trained_ratio` sampled pairs a linked one. Where pairs are asked for in another ratio, the
    log-odds of all of them are shifted by the same known number, so that they are those among the pairs asked.
    """
    linked = int(labels.sum())
    others = labels.numel() - linked
    shift = torch.tensor(others / max(1, linked) / trained_ratio).clamp(min=1e-12).log() if others else 0.0
    return Statistics({"links": _count((scores.double() - shift)[:, None], (labels > 0)[:, None])})


def summarise(statistics: Statistics) -> dict[str, Any] | None:
    """Give the counts as what is drawn, in plain numbers; None where nothing was counted."""
    sums = statistics.sums
    if not any(name in sums and bool(sums[name].any()) for name in ("top", "links")):
        return None
    binary = "links" in sums
    positives = sums["links"] if binary else sums.get("classes", torch.zeros(0, 2, _BINS))
    judged = sums["links"] if binary else sums["top"] if positives.shape[0] != 1 else positives
    first = 1 if positives.shape[0] == 1 else 0
    return {
        "rows": int(judged.sum()),
        "confusion": sums["confusion"].tolist() if "confusion" in sums else None,
        "curves": [
            {"class": None if binary else first + k, **curve}
            for k, counts in enumerate(positives)
            if (curve := _curve(counts)) is not None
        ],
        "calibration": {
            "of": "links" if binary else "class 1" if positives.shape[0] == 1 else "predicted class",
            **_calibration(judged[0]),
        },
    }


def _log_odds(logits: Tensor) -> Tensor:
    """Give log p - log(1 - p) of each class."""
    logs = torch.log_softmax(logits, 1)
    return logs - torch.log(-torch.expm1(logs))


def _count(odds: Tensor, hits: Tensor) -> Tensor:
    """Count log-odds [rows, kinds] in bins: int64 [kinds, 2, bins], misses before hits."""
    kinds = odds.shape[1]
    position = ((odds + _REACH) * (_BINS / (2 * _REACH))).nan_to_num(0.0).clamp(0, _BINS - 1).long()
    kind = torch.arange(kinds, device=odds.device)
    index = (kind * 2 + hits.long()) * _BINS + position
    return torch.bincount(index.reshape(-1), minlength=kinds * 2 * _BINS).reshape(kinds, 2, _BINS).cpu()


def _edges() -> Tensor:
    return torch.linspace(-_REACH, _REACH, _BINS + 1, dtype=torch.float64)


def _curve(counts: Tensor) -> dict[str, Any] | None:
    """Give what is reached at thresholds, the highest first: [probability, hits above it, misses above it]."""
    misses, hits = counts[0].flip(0).cumsum(0), counts[1].flip(0).cumsum(0)
    positives, negatives = int(hits[-1]), int(misses[-1])
    if not positives or not negatives:
        return None
    filled = torch.nonzero(counts.sum(0).flip(0))[:, 0]
    misses, hits = misses[filled], hits[filled]
    thresholds = torch.sigmoid(_edges()[:-1].flip(0)[filled])
    zero = hits.new_zeros(1)
    recall, alarm = torch.cat([zero, hits]).double() / positives, torch.cat([zero, misses]).double() / negatives
    precision = hits.double() / (hits + misses)
    kept = _spread(recall[1:], alarm[1:], precision)
    return {
        "positives": positives,
        "negatives": negatives,
        "auc": float(torch.trapezoid(recall, alarm)),
        "average_precision": float((recall.diff() * precision).sum()),
        "points": [[_short(float(thresholds[k])), int(hits[k]), int(misses[k])] for k in kept],
    }


def _spread(*values: Tensor) -> list[int]:
    """Choose points that lie about as far apart as they can along a curve, the last included."""
    if values[0].numel() <= _POINTS:
        return list(range(values[0].numel()))
    steps = torch.stack([torch.diff(value).abs() for value in values]).sum(0)
    length = torch.cat([steps.new_zeros(1), steps.cumsum(0)])
    wanted = torch.linspace(0, float(length[-1]), _POINTS, dtype=torch.float64)
    return sorted({*torch.searchsorted(length, wanted).clamp(max=length.numel() - 1).tolist(), length.numel() - 1})


def _calibration(counts: Tensor) -> dict[str, Any]:
    """Compare probabilities with how often they came true: [mean probability, share, rows] in equal steps."""
    edges = _edges()
    middle = torch.sigmoid((edges[1:] + edges[:-1]) / 2)
    share = (middle * _SHARES).long().clamp(max=_SHARES - 1)
    rows = counts.sum(0).double()
    sums = [torch.bincount(share, weights=w, minlength=_SHARES) for w in (rows, rows * middle, counts[1].double())]
    bins = [
        [_short(p / n), _short(hits / n), int(n)]
        for n, p, hits in zip(*(each.tolist() for each in sums), strict=True)
        if n
    ]
    total = float(rows.sum())
    return {"bins": bins, "error": sum(n * abs(p - hit) for p, hit, n in bins) / total if total else None}


def _short(value: float) -> float:
    return float(f"{value:.5g}")
