"""How the pairs of one step rank among all pairs of vertices, from blocks of the score matrix.

Nothing is sorted but the scores of the pairs that exist, and of a large matrix only some rows are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from trisect.tasks import metrics
from trisect.tasks.decoders import Block
from trisect.tasks.pairs import Pairs

MRR: TypeAlias = Literal["rows", "pairs"]

_BLOCK = 1 << 18  # scores: small enough for the second-level cache
_KEPT = 1 << 27  # scores: up to here the whole matrix is kept for the second pass


@torch.no_grad()
def rank_all_pairs(
    block: Block, vertices: int, pairs: Pairs, mrr: MRR, weights: tuple[float, float]
) -> dict[str, float]:
    """`map`, `auc`, `mrr` and `loss` (a sum) of the existing pairs among all vertices² pairs, a vertex with itself
    included; ties count as in `tasks.metrics`.

    Args:
        block: the scores of all pairs of some sources, [sources, vertices]; always the same for the same sources.
        weights: of existing and of other pairs in the loss.
    """
    size = max(1, _BLOCK // vertices)
    slices = [slice(start, min(start + size, vertices)) for start in range(0, vertices, size)]
    kept: list[Tensor] = []
    own: list[Tensor] = []
    ranks: list[Tensor] = []
    loss = 0.0
    for sources in slices:
        plain = block(sources)
        scores = metrics.rounded(plain)
        if vertices * vertices <= _KEPT:
            kept.append(scores)
        loss += weights[1] * float(functional.softplus(plain).sum(dtype=torch.float64))
        own_pairs = pairs.inside(sources, vertices)
        # a selection of pairs is no larger than the block itself
        for at in range(own_pairs.start, own_pairs.stop, size):
            selection = slice(at, min(at + size, own_pairs.stop))
            rows = pairs.src[selection] - sources.start
            own.append(plain[rows, pairs.dst[selection]])
            rivals, score = scores[rows], metrics.rounded(own[-1])[:, None]
            above = (rivals > score).sum(1).double()
            ranks.append(above + ((rivals == score).sum(1).double() + 1) / 2)
    exact = torch.cat(own)
    positive, exact = metrics.rounded(exact), exact.double()
    loss += float((weights[0] * functional.softplus(-exact) - weights[1] * functional.softplus(exact)).sum())
    bins, counts = torch.unique(positive, return_counts=True)
    equal, below = _histogram(bins, kept or (metrics.rounded(block(sources)) for sources in slices))
    return {
        **metrics.curve_measures(counts.double(), equal.double(), below.double()),
        "mrr": reciprocal(torch.cat(ranks), positive, pairs.src, mrr),
        "loss": loss,
    }


def _histogram(bins: Tensor, blocks: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Of ascending `bins`: how many scores equal each, int64 [bins], and how many lie between it and the one before
    (the last entry: above all), int64 [bins + 1].
    """
    edges = torch.cat([bins, bins.new_full((1,), torch.inf)])
    equal = torch.zeros(bins.numel() + 1, dtype=torch.int64, device=bins.device)
    below = torch.zeros_like(equal)
    for scores in blocks:
        flat = scores.contiguous().view(-1)
        bin_index = torch.searchsorted(bins, flat, out_int32=True)
        hits = bin_index[edges[bin_index] == flat]
        hit_counts = torch.bincount(hits, minlength=edges.numel())
        equal += hit_counts
        below += torch.bincount(bin_index, minlength=edges.numel()) - hit_counts
    return equal[:-1], below


def reciprocal(ranks: Tensor, scores: Tensor, rows: Tensor, mrr: MRR) -> float:
    """Give the mean over rows, or over pairs whose rivals exclude the other existing pairs of the row."""
    if mrr == "rows":
        _, slot = torch.unique(rows, return_inverse=True)
        return float((torch.bincount(slot, weights=1 / ranks) / torch.bincount(slot)).mean())
    return float((1 / (1 + ranks - 1 / metrics.reciprocal_ranks(scores, rows))).mean())
