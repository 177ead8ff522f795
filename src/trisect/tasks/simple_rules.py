"""What simple rules reach where a model predicts links; a model that is not ahead of them has learnt little.

`edgebank`         a pair that was linked before will be linked (Poursafaei et al., 2022)
`edgebank_window`  a pair that was linked in the last steps, as many as the test split has
`recency`          the later a pair was linked last, the likelier; never is the least likely
`popularity`       the events of the source so far times those of the destination (preferential attachment)

A rule reads the events up to the step whose embeddings a model would score, that step included.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trisect.tasks.pairs import Pairs

RULES = ("edgebank", "edgebank_window", "recency", "popularity")

Events = Callable[[int], tuple[Tensor, Tensor]]


class Rule(ABC):
    """The scores that a rule gives at one step."""

    @abstractmethod
    def of(self, src: Tensor, dst: Tensor) -> Tensor:
        """Score these pairs: float32 [pairs]."""

    @abstractmethod
    def block(self, sources: slice) -> Tensor:
        """Score all pairs of some sources: float32 [sources, vertices]."""


@dataclass(frozen=True, eq=False)
class PairRule(Rule):
    """Scores pairs by their own past; a pair without one scores 0. values: float32, a number for each of `pairs`."""

    pairs: Pairs
    values: Tensor
    vertices: int

    def of(self, src: Tensor, dst: Tensor) -> Tensor:
        """Look up the value of each pair; one without a past has 0."""
        codes = src * self.vertices + dst
        position = torch.searchsorted(self.pairs.codes, codes).clamp_(max=len(self.pairs) - 1)
        return torch.where(self.pairs.codes[position] == codes, self.values[position], 0.0)

    def block(self, sources: slice) -> Tensor:
        """Put the values of pairs with a past among zeros."""
        scores = self.values.new_zeros(sources.stop - sources.start, self.vertices)
        inside = self.pairs.inside(sources, self.vertices)
        scores.view(-1)[self.pairs.codes[inside] - sources.start * self.vertices] = self.values[inside]
        return scores


@dataclass(frozen=True, eq=False)
class Popularity(Rule):
    """Scores a pair by how many events its two ends had. out, into: float32 [vertices]."""

    out: Tensor
    into: Tensor

    def of(self, src: Tensor, dst: Tensor) -> Tensor:
        """Multiply the counts of both ends."""
        return self.out[src] * self.into[dst]

    def block(self, sources: slice) -> Tensor:
        """Multiply the counts of some sources with those of all destinations."""
        return torch.outer(self.out[sources], self.into)


class SimpleRules:
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

    def at(self, step: int) -> dict[str, Rule]:
        """Give the rules as they stand after a step."""
        last = self._last(step)
        values = {
            "edgebank": last >= 0,
            "edgebank_window": last > max(step - self._window, -1),
            "recency": last + 1,
        }
        rules: dict[str, Rule] = {
            name: PairRule(self._pairs, value.float(), self._vertices) for name, value in values.items()
        }
        for number in range(self._counted, step + 1):
            for count, ends in zip(self._counts, self._events(number), strict=True):
                count += torch.bincount(ends, minlength=self._vertices)
        self._counted = max(self._counted, step + 1)
        return {**rules, "popularity": Popularity(*self._counts.float())}

    def _last(self, step: int) -> Tensor:
        """The step at which each pair was linked last, up to `step`: int64 [pairs], -1 for never."""
        index = torch.arange(len(self._pairs), device=self._links.device)
        position = torch.searchsorted(self._links, index * self._steps + step, right=True) - 1
        link = self._links[position.clamp(min=0)]
        held = (position >= 0) & (link // self._steps == index)
        return torch.where(held, link % self._steps, -1)
