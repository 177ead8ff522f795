"""Running statistics of norms over rows: each step of an epoch updates them once, whatever the cut.

The update is linear in the statistics of steps, so that what runs of steps add to it may be summed over ranks. A cell
that is run again has the statistics that it had, and adds nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

import torch
from torch import Tensor


class Tracking(Protocol):
    """A module with running statistics, such as `trisect.nn.BatchNorm`."""

    def weights(self, steps: int) -> tuple[float, Tensor]:
        """Return with which weight running statistics stay when so many steps come in, and those of these, in order."""

    def update(self, total: Tensor, steps: int) -> None:
        """Let running statistics take in the weighted sum, [2, channels], of so many steps."""


class Running:
    """The statistics of a pass, by which running ones are updated when it has ended.

    Args:
        chunked: whether cells are chunks of rows, of which the last has the statistics of all.

    Attributes:
        steps: of all ranks together.
        cell: the one at work.
    """

    def __init__(self, steps: range = range(1), *, chunked: bool = False) -> None:
        self.steps, self._chunked = steps, chunked
        self._found: dict[Tracking, dict[Hashable, dict[int, tuple[range, Tensor]]]] = {}
        self._totals: list[Tensor] | None = None
        self.cell = 0

    def add(self, norm: Tracking, call: Hashable, steps: range, found: Tensor) -> None:
        """Note means and variances of own steps, [steps, 2, channels]; once for each cell.

        Args:
            call: tells several uses of a norm in a step apart; the same order on all ranks.
        """
        self._found.setdefault(norm, {}).setdefault(call, {}).setdefault(self.cell, (steps, found))

    def totals(self) -> Sequence[Tensor]:
        """Return of each norm what own steps add to running statistics, [2, channels]; to be summed over runs."""
        if self._totals is None:
            self._totals = [self._total(norm, list(calls.values())) for norm, calls in self._found.items()]
        return self._totals

    def _total(self, norm: Tracking, calls: Sequence[dict[int, tuple[range, Tensor]]]) -> Tensor:
        _, weights = norm.weights(len(self.steps) * len(calls))
        parts = []
        for number, cells in enumerate(calls):
            for steps, found in list(cells.values())[-1 if self._chunked else 0 :]:
                at = [(step - self.steps.start) * len(calls) + number for step in steps]
                parts.append((weights[at].to(found.device)[:, None, None] * found).sum(0))
        return torch.stack(parts).sum(0)

    def shares(self, dtype: torch.dtype, *, counts: bool) -> Sequence[Tensor]:
        """Return the totals, of which one rank of each run counts its own; summed in place they are those of all."""
        self._totals = [total.to(dtype) if counts else torch.zeros_like(total, dtype=dtype) for total in self.totals()]
        return self._totals

    def settle(self) -> None:
        """Update running statistics by the totals, once."""
        for (norm, calls), total in zip(self._found.items(), self.totals(), strict=True):
            norm.update(total, len(self.steps) * len(calls))
        self._found.clear()
        self._totals = None


class AtOnce(Running):
    """Updates running statistics in every call, as torch's own norms do; for a view outside of a pass."""

    def add(self, norm: Tracking, call: Hashable, steps: range, found: Tensor) -> None:
        """Update by all steps of the call."""
        _, weights = norm.weights(len(found))
        norm.update((weights.to(found.device)[:, None, None] * found).sum(0), len(found))
