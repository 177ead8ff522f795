"""Measures of quality, in torch, vectorised, with ties counted as scikit-learn counts them.

Every function takes plain tensors; what a rank holds is summed or gathered before it comes here. Measures of rank round
scores first (`rounded`): the same pair may differ in its last bits between two layouts, and must not win a tie by them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

LOWER_IS_BETTER = ("loss", "mse", "rmse", "mae")

_BITS = 18  # of a score that count: the last bits of float32 seldom reach the next value
_INTEGERS = {torch.float32: (torch.int32, 24 - _BITS), torch.float64: (torch.int64, 53 - _BITS)}

_WHY_UNDEFINED = {
    "auc": "it needs rows of both classes",
    "map": "it needs a pair that is a link",
    "mrr": "it needs a pair that is a link",
    "loss": "the loss of these rows is not finite",
}


def why_undefined(name: str) -> str:
    """Return why the measure of this name has no value on some rows."""
    return _WHY_UNDEFINED.get(name, "it has no value on these rows")


def defined(measures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measures with None for those that are no finite number on these rows (NaN, as AUC of one class)."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in measures.items()
    }


def rounded(scores: Tensor) -> Tensor:
    """Give scores with 18 significant bits, about one part in 260,000; shorter types are left as they are."""
    if scores.dtype not in _INTEGERS:
        return scores
    integers, dropped = _INTEGERS[scores.dtype]
    bits = scores.contiguous().view(integers) + (1 << (dropped - 1))
    return bits.bitwise_and_(-(1 << dropped)).view(scores.dtype)


def confusion(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Counts int64 [classes (true), classes (predicted)]. Additive over rows, so ranks may sum theirs."""
    return torch.bincount(labels * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def accuracy_of(counts: Tensor) -> float:
    """This reads the accuracy from a confusion matrix."""
    total = int(counts.sum())
    return int(counts.diagonal().sum()) / total if total else float("nan")


def f1_per_class(counts: Tensor) -> Tensor:
    """F1 of each class from a confusion matrix, float64 [classes]; 0 where a class is neither present nor predicted."""
    hits = counts.diagonal().double()
    total = (counts.sum(0) + counts.sum(1)).double()
    return torch.where(total > 0, 2 * hits / total.clamp(min=1), torch.zeros_like(hits))


def f1(counts: Tensor, average: str = "macro") -> float:
    """F1 from a confusion matrix: `micro` (equals accuracy for one label a row) or `macro` (mean over the classes that
    occur, in labels or predictions).
    """
    if average == "micro":
        return accuracy_of(counts)
    occurs = (counts.sum(0) + counts.sum(1)) > 0
    return float(f1_per_class(counts)[occurs].mean()) if bool(occurs.any()) else 0.0


def _curve(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Positives and rows above each distinct threshold, best first: int64 [thresholds] each."""
    scores = rounded(scores)
    order = torch.argsort(scores, descending=True, stable=True)
    ranked = scores[order]
    last = torch.ones(ranked.numel(), dtype=torch.bool, device=scores.device)
    last[:-1] = ranked[1:] != ranked[:-1]
    hits = torch.cumsum(labels[order].to(torch.int64), 0)[last]
    return hits, torch.nonzero(last)[:, 0] + 1


def roc_auc(scores: Tensor, labels: Tensor) -> float:
    """Give the chance that a positive (label 1) scores above a negative (0), ties one half; NaN without both."""
    positives = int(labels.sum())
    negatives = labels.numel() - positives
    if positives == 0 or negatives == 0:
        return float("nan")
    hits, above = _curve(scores, labels)
    misses = above - hits
    new_misses = torch.diff(misses, prepend=misses.new_zeros(1)).double()
    before = torch.cat([hits.new_zeros(1), hits[:-1]])
    area = (new_misses * (hits + before).double()).sum() / 2
    return float(area / (positives * negatives))


def average_precision(scores: Tensor, labels: Tensor) -> float:
    """Give the sum over thresholds of precision times the gain in recall; NaN without a positive."""
    positives = int(labels.sum())
    if positives == 0:
        return float("nan")
    hits, above = _curve(scores, labels)
    gain = torch.diff(hits, prepend=hits.new_zeros(1)).double()
    return float((gain * hits.double() / above.double()).sum() / positives)


def reciprocal_ranks(scores: Tensor, rows: Tensor) -> Tensor:
    """1 / rank of each pair among the pairs of its row, best score first: float64 [pairs]. Ties
    have their mean rank, so that the order of the pairs does not matter.
    """
    if scores.numel() == 0:
        return scores.double()
    scores = rounded(scores)
    order = torch.argsort(scores, descending=True, stable=True)
    order = order[torch.argsort(rows[order], stable=True)]
    row, score = rows[order], scores[order]
    position = torch.arange(row.numel(), device=row.device)
    new_row = torch.ones_like(row, dtype=torch.bool)
    new_row[1:] = row[1:] != row[:-1]
    new_tie = new_row.clone()
    new_tie[1:] |= score[1:] != score[:-1]
    row_start = torch.cummax(torch.where(new_row, position, 0), 0).values
    tie = torch.cumsum(new_tie, 0) - 1
    tie_start = position[new_tie]
    tie_size = torch.diff(tie_start, append=tie_start.new_tensor([row.numel()]))
    rank = (tie_start[tie] - row_start).double() + (tie_size[tie].double() + 1) / 2
    return torch.empty_like(rank).scatter_(0, order, 1 / rank)


def mean_reciprocal_rank(scores: Tensor, labels: Tensor, rows: Tensor) -> float:
    """For each row (source vertex) with a positive pair, the mean of 1 / rank of its positives among all its scored
    pairs, positives included; then the mean over these rows. This is how EvolveGCN counts. NaN without a positive.

    Args:
        scores, labels, rows: [pairs]; labels 0 or 1, rows int64.
    """
    positive = labels > 0
    if not bool(positive.any()):
        return float("nan")
    inverse = reciprocal_ranks(scores, rows)[positive]
    _, slot = torch.unique(rows[positive], return_inverse=True)
    sums = torch.bincount(slot, weights=inverse)
    return float((sums / torch.bincount(slot)).mean())


def pair_reciprocal_rank(scores: Tensor, labels: Tensor, rows: Tensor) -> float:
    """Give the mean over positive pairs of 1 / (1 + negatives of the same row that score higher, ties one half); other
    positives of the row do not count as rivals. NaN without a positive.
    """
    positive = labels > 0
    if not bool(positive.any()):
        return float("nan")
    # rank among all pairs of the row, less the rank among the positives of the row
    among_all = 1 / reciprocal_ranks(scores, rows)[positive]
    among_positives = 1 / reciprocal_ranks(scores[positive], rows[positive])
    return float((1 / (1 + among_all - among_positives)).mean())


def link_measures(
    scores: Tensor, labels: Tensor, rows: Tensor, mrr: Literal["rows", "pairs"] = "rows"
) -> dict[str, float]:
    """Return `map`, `auc` and `mrr` of pairs, of which few are positive, without sorting the others.

    They are those of `average_precision`, `roc_auc` and `mean_reciprocal_rank` (or `pair_reciprocal_rank`).

    Args:
        scores, labels, rows: [pairs]; labels 0 or 1, rows int64; at least one label is 1.
    """
    positive = labels > 0
    order, width = _ordered(rounded(scores), positive)
    own, own_rows = order[positive], rows[positive]
    bins, counts = torch.unique(own, return_counts=True)
    # how many pairs lie before each score of a positive one, and up to it
    ascending = sort_integers(order.clone())
    low, high = torch.searchsorted(ascending, bins), torch.searchsorted(ascending, bins, right=True)
    none, all_pairs = low.new_zeros(1), low.new_tensor([order.numel()])
    between = torch.cat([low, all_pairs]) - torch.cat([none, high])
    # the same among the pairs of each positive one's row
    keys = sort_integers(rows * width + order)
    first, after = (torch.searchsorted(keys, own_rows * width + own, right=right) for right in (False, True))
    end = torch.searchsorted(keys, (own_rows + 1) * width)
    ranks = (end - after).double() + ((after - first).double() + 1) / 2
    if mrr == "pairs":
        inverse = 1 / (1 + ranks - 1 / reciprocal_ranks(scores[positive], own_rows))
        mean = float(inverse.mean())
    else:
        _, slot = torch.unique(own_rows, return_inverse=True)
        mean = float((torch.bincount(slot, weights=1 / ranks) / torch.bincount(slot)).mean())
    return {**curve_measures(counts.double(), (high - low).double(), between.double()), "mrr": mean}


def _ordered(scores: Tensor, positive: Tensor) -> tuple[Tensor, int]:
    """Return whole numbers, int64 [pairs], in the order of the scores, and a bound of them.

    Those of two pairs may be equal where their scores are not only if no positive pair has one of these scores.
    """
    if scores.dtype == torch.float32:
        bits = (scores + 0.0).view(torch.int32).long()  # + 0.0: the two zeros are equal
        return torch.where(bits < 0, -(1 << 31) - 1 - bits, bits) + (1 << 31), 1 << 32
    bins = torch.unique(scores[positive])
    place = torch.searchsorted(bins, scores)
    tied = torch.cat([bins, bins.new_full((1,), torch.inf)])[place] == scores
    return 2 * place + tied, 2 * bins.numel() + 2


def sort_integers(values: Tensor) -> Tensor:
    """Sort whole numbers in place; numpy's sort is several times as fast as torch's."""
    if values.device.type != "cpu":
        return torch.sort(values).values
    values.numpy().sort()
    return values


def curve_measures(positives: Tensor, equal: Tensor, below: Tensor) -> dict[str, float]:
    """Return `map` and `auc` from counts at the distinct scores of positive pairs, ascending; NaN where undefined.

    Args:
        positives: float64 [scores], positive pairs of each score.
        equal: float64 [scores], all pairs of each score.
        below: float64 [scores + 1], pairs between a score and the one before it; the last entry: above all.
    """
    total = positives.sum()
    others = equal.sum() + below.sum() - total
    at_least = (equal + below[1:]).flip(0).cumsum(0).flip(0)
    hits = positives.flip(0).cumsum(0).flip(0)
    misses = at_least - hits
    won = others - misses + (equal - positives) / 2
    return {
        "map": float((positives * hits / at_least).sum() / total),
        "auc": float((positives * won).sum() / (total * others)),
    }
