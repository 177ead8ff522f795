"""Rules that predict links and need no training; a model that is not ahead of them has learnt little.

`edgebank`         a pair that was linked before will be linked (Poursafaei et al., 2022)
`edgebank_window`  a pair that was linked in the last steps, as many as the test split has
`recency`          the later a pair was linked last, the likelier; never is the least likely
`popularity`       the events of the source so far times those of the destination (preferential attachment)

A rule reads the events up to the step whose embeddings a model would score, that step included.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trisect.tasks.all_pairs import MRR
from trisect.tasks.pairs import Pairs
from trisect.tasks.rules.ranking import Asked, PairLevels, rank_popular

RULES = ("edgebank", "edgebank_window", "recency", "popularity")

Events = Callable[[int], tuple[Tensor, Tensor]]


class LinkRules:
    """The rules on one timeline, whose steps are asked for in ascending order.

    Args:
        events: gives the pairs of a step, both directions of an undirected one: int64 (src, dst).
        window: how many steps `edgebank_window` looks back.
    """

    def __init__(self, events: Events, steps: int, vertices: int, window: int) -> None:
        self._events, self._steps, self._vertices, self._window = events, steps, vertices, window
        codes = [src * vertices + dst for src, dst in map(events, range(steps))]
        distinct, pair_index = torch.unique(torch.cat(codes), return_inverse=True)
        step = torch.cat([torch.full_like(own, number) for number, own in enumerate(codes)])
        # sorted by pair, then by step: the last link of a pair up to a step is found by bisection
        self._links = torch.unique(pair_index * steps + step)
        self._pairs = Pairs.from_codes(distinct, vertices)
        self._counts = torch.zeros(2, vertices, dtype=torch.int64, device=distinct.device)
        self._counted = 0

    def judge(
        self, step: int, pairs: Pairs, ends: tuple[Tensor, Tensor] | None, mrr: MRR
    ) -> dict[str, dict[str, float]]:
        """Return `map`, `auc` and `mrr` of each rule as it stands after a step.

        Args:
            pairs: which exist.
            ends: of these, and then of the sampled ones; None: they are judged among all pairs.
        """
        asked = Asked(pairs, ends, self._vertices, mrr)
        levels = PairLevels(asked, self._pairs, self._last(step) + 1, step + 1)
        self._count(step)
        return {
            "edgebank": levels.rank(least=1),
            "edgebank_window": levels.rank(least=max(step - self._window, -1) + 2),
            "recency": levels.rank(),
            "popularity": rank_popular(asked, *self._counts.float()),
        }

    def _count(self, step: int) -> None:
        """Count the events of both ends up to a step."""
        for number in range(self._counted, step + 1):
            for count, ends in zip(self._counts, self._events(number), strict=True):
                count += torch.bincount(ends, minlength=self._vertices)
        self._counted = max(self._counted, step + 1)

    def _last(self, step: int) -> Tensor:
        """The step at which each pair was linked last, up to `step`: int64 [pairs], -1 for never."""
        index = torch.arange(len(self._pairs), device=self._links.device)
        position = torch.searchsorted(self._links, index * self._steps + step, right=True) - 1
        link = self._links[position.clamp(min=0)]
        held = (position >= 0) & (link // self._steps == index)
        return torch.where(held, link % self._steps, -1)
