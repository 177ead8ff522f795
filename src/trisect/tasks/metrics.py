"""Measures of quality, in torch, vectorised, with ties counted as scikit-learn counts them.

Every function takes plain tensors; what a rank holds is summed or gathered before it comes here. Measures of rank round
scores first (`rounded`): the same pair may differ in its last bits between two layouts, and must not win a tie by them.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = 18  # of a score that count: the last bits of float32 seldom reach the next value
_INTEGERS = {torch.float32: (torch.int32, 24 - _BITS), torch.float64: (torch.int64, 53 - _BITS)}


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
