"""Sums over neighbours from those of the step before: agg_t = agg_{t-1} + Δ_t.

Δ_t holds the entries that appear and disappear, and the entries of the rows of x that change. This pays where both are
few: features that are fixed or change little, and a window that slides. With symmetric normalisation the factor of
each column is part of what is read, and it changes with the column's degree.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trisect.errors import ConfigError
from trisect.graph.adjacency import Adjacency
from trisect.ops.memory import empty
from trisect.ops.spmm.several import Group
from trisect.ops.spmm.sums import aggregate_into


class Incremental:
    """Computes raw sums M_t·z_t, one step after the other.

    Sums are kept in float64, to which float32 features convert exactly: after s steps the result differs from a fresh
    sum by rounding of float64, about s·1e-16 of the largest sum so far, which vanishes in float32 and is the
    error with float64 features; `restart` bounds s.

    Args:
        restart: after so many steps begin with a fresh sum.
        fraction: a step that would touch more than this fraction of the entries begins with a fresh sum.
    """

    def __init__(self, restart: int = 64, fraction: float = 0.5) -> None:
        if restart < 1:
            raise ConfigError(f"restart is {restart}; give 1 or more.")
        self.restart, self.fraction = restart, fraction
        self.fresh = 0
        self._steps = 0
        self._sum: Tensor | None = None
        self._z: Tensor | None = None

    def step(self, z: Tensor, matrix: Adjacency, change: Adjacency | None = None) -> Tensor:
        """M_t·z_t, float64 [rows, features], valid until the next call.

        Args:
            z: [columns, features] of this step.
            matrix: M_t.
            change: M_t - M_{t-1}; None: unknown, and the sum is a fresh one.
        """
        before, after = self._z, z.clone() if z.dtype == torch.float64 else z.double()
        self._z = after
        if self._sum is None or before is None or change is None:
            return self._begin(after, matrix)
        touched = torch.nonzero((before != after).any(1))[:, 0]
        if not self._pays(matrix, change, touched):
            return self._begin(after, matrix)
        self._steps += 1
        # the entries that change read the features of the step before, those that stay the difference of features
        aggregate_into(self._sum, before, change, add=self._sum)
        if touched.numel():
            turned = matrix.transpose()
            part = turned.rows_at(touched)
            _scatter(self._sum, after[touched] - before[touched], part)
        return self._sum

    def _pays(self, matrix: Adjacency, change: Adjacency, touched: Tensor) -> bool:
        if self._steps >= self.restart:
            return False
        reads = change.entries
        if touched.numel():
            turned = matrix.transpose()
            reads += int((turned.ends[touched] - turned.starts[touched]).sum())
        return reads <= self.fraction * matrix.entries

    def _begin(self, z: Tensor, matrix: Adjacency) -> Tensor:
        if self._sum is None:
            self._sum = empty((matrix.rows, z.shape[1]), torch.float64, z.device)
        aggregate_into(self._sum, z, matrix)
        self._steps, self.fresh = 0, self.fresh + 1
        return self._sum


def change_between(before: Adjacency, after: Adjacency) -> Adjacency:
    """after - before: the entries whose value differs, as a matrix."""
    group = Group.of([before, after], torch.float64)
    values = group.values
    if values is None:
        raise ConfigError("The group of a snapshot and the one before it has no values; this is a mistake of Trisect.")
    difference = values[:, 1] - values[:, 0]
    stays = difference != 0
    offsets = torch.zeros(stays.numel() + 1, dtype=torch.int64, device=stays.device)
    torch.cumsum(stays, 0, out=offsets[1:])
    starts, ends = offsets[group.starts], offsets[group.ends]
    return Adjacency(starts, ends, group.indices[stays], difference[stays], after.columns).vouched()


def _scatter(total: Tensor, rows: Tensor, part: Adjacency) -> None:
    """total += partᵀ·rows; part is a list of rows of a transpose, few of them."""
    lengths = part.ends - part.starts
    row = torch.repeat_interleave(torch.arange(part.rows, device=lengths.device), lengths)
    positions = part.entry_positions()
    read = rows[row]
    if part.values is not None:
        read = read * part.values[positions].to(rows.dtype)[:, None]
    total.index_add_(0, part.indices[positions].long(), read)
