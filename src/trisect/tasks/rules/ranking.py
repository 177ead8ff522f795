"""How well rules for links rank the pairs that exist: by counts of equal scores, without sorting pairs.

`edgebank` and `edgebank_window` are coarser than `recency`: all three follow from the step at which pairs were linked
last. `popularity` has few distinct counts of each end. Measures are those of `tasks.metrics` and `tasks.all_pairs`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trisect.tasks import metrics
from trisect.tasks.all_pairs import MRR, reciprocal
from trisect.tasks.pairs import Pairs

_BLOCK = 1 << 22


@dataclass(frozen=True, eq=False)
class Asked:
    """The pairs that a step is judged by.

    Attributes:
        pairs: which exist.
        ends: sources and destinations, int64, of these and then of the sampled ones; None: all pairs of vertices.
        vertices: how many there are.
        mrr: over what it is a mean; see `LinkPrediction`.
    """

    pairs: Pairs
    ends: tuple[Tensor, Tensor] | None
    vertices: int
    mrr: MRR

    def rank(self, own: Tensor, total: Tensor, ranks: Tensor) -> dict[str, float]:
        """Return `map`, `auc` and `mrr`.

        Args:
            own: int64 [pairs], the level of each pair that exists; a higher one is a better score.
            total: [levels], how many pairs that are asked for have each level.
            ranks: float64 [pairs], of each pair that exists among all with its source.
        """
        found = total > 0
        positives = torch.bincount(own, minlength=total.numel())[found].double()
        none = positives.new_zeros(positives.numel() + 1)
        return {
            **metrics.curve_measures(positives, total[found].double(), none),
            "mrr": reciprocal(ranks, own.float(), self.pairs.src, self.mrr),
        }


class PairLevels:
    """Ranks pairs by a level of each, and by coarser ones.

    Args:
        known: whose level is not 0, or may not be.
        levels: int64 [known].
        most: the highest level that there may be.
    """

    def __init__(self, asked: Asked, known: Pairs, levels: Tensor, most: int) -> None:
        self._asked, self._count = asked, most + 1
        pairs, vertices = asked.pairs, asked.vertices
        sources, self._slot = torch.unique(pairs.src, return_inverse=True)
        slots = torch.full((vertices,), -1, device=sources.device)
        slots[sources] = torch.arange(sources.numel(), device=sources.device)
        if asked.ends is None:
            src, found = known.src, levels
            self._own = _levels(known, levels, pairs.codes)
        else:
            src = asked.ends[0]
            found = _levels(known, levels, src * vertices + asked.ends[1])
            self._own = found[: len(pairs)]
        self._total = torch.bincount(found, minlength=self._count)
        slot = slots[src]
        inside = slot >= 0
        # pairs of each source and level, counted where there are any: a table of all would be sources · steps
        self._keys, counts = torch.unique(slot[inside] * self._count + found[inside], return_counts=True)
        self._before = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        self._more = torch.zeros_like(sources)  # pairs of each source at level 0 that are not in the counts
        if asked.ends is None:
            self._total[0] += vertices * vertices - len(known)
            self._more = vertices - torch.bincount(slot[inside], minlength=sources.numel())

    def rank(self, least: int | None = None) -> dict[str, float]:
        """Return the measures of the levels; with `least`, of whether they are at least that."""
        own, total = self._own, self._total
        low, high = own, own + 1  # levels that are equal to the own one
        if least is not None:
            own, total = (own >= least).long(), torch.stack([total[:least].sum(), total[least:].sum()])
            low, high = own * least, torch.where(own > 0, self._count, least)
        up_to_low, up_to_high, up_to_end = (self._below(level) for level in (low, high, self._count))
        equal = up_to_high - up_to_low + torch.where(low == 0, self._more[self._slot], 0)
        return self._asked.rank(own, total, (up_to_end - up_to_high).double() + (equal.double() + 1) / 2)

    def _below(self, level: Tensor | int) -> Tensor:
        """Return for each pair that exists how many counted pairs lie below a level of its source, or before it."""
        return self._before[torch.searchsorted(self._keys, self._slot * self._count + level)]


def rank_popular(asked: Asked, out: Tensor, into: Tensor) -> dict[str, float]:
    """Return the measures of the scores out[src] · into[dst]. out, into: float32 [vertices]."""
    pairs = asked.pairs
    if asked.ends is not None:
        src, dst = asked.ends
        labels = torch.zeros_like(src)
        labels[: len(pairs)] = 1
        return metrics.link_measures(out[src] * into[dst], labels, src, asked.mrr)
    own = metrics.rounded(out[pairs.src] * into[pairs.dst])
    (many_out, of_out), (many_into, of_into) = (torch.unique(ends, return_counts=True) for ends in (out, into))
    scores, level = torch.unique(metrics.rounded(torch.outer(many_out, many_into)), return_inverse=True)
    total = torch.bincount(level.flatten(), torch.outer(of_out.double(), of_into.double()).flatten())
    ranks = torch.empty(len(pairs), dtype=torch.float64, device=own.device)
    size = max(1, _BLOCK // many_into.numel())
    for start in range(0, len(pairs), size):
        some = slice(start, start + size)
        rivals = metrics.rounded(out[pairs.src[some], None] * many_into)
        higher, equal = (rivals > own[some, None]).double(), (rivals == own[some, None]).double()
        ranks[some] = higher @ of_into.double() + (equal @ of_into.double() + 1) / 2
    return asked.rank(torch.searchsorted(scores, own), total, ranks)


def _levels(known: Pairs, levels: Tensor, codes: Tensor) -> Tensor:
    """Look up the level of each code; 0 where its pair is not known."""
    if not len(known):
        return torch.zeros_like(codes)
    position = known.positions(codes)
    return torch.where(position >= 0, levels[position], 0)
