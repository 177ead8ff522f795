"""`Parts`: how the vertices fall into parts, as far as planning must know; measured from a cut, or from a description.

Of a graph that is described and not there, the rows that parts read of others follow from one number. If a vertex read
`degree` others and these were spread over parts by chance, a part would lack (P-1)·(1-(1-1/P)^degree) rows for each of
its own, summed over parts and divided by the vertices. A partitioner does better, as if the degree were smaller: the
*effective degree*. It is fitted to one known number of halo rows, and gives those of any other number of parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from trisect.views.timecut import equal_shares


@dataclass(frozen=True)
class Parts:
    """The vertices cut into parts.

    Attributes:
        rows: of each part.
        remote: for each step, the rows that all parts together read of others.
        heaviest: how many times the mean the entries of the heaviest part are.
        measured: whether the vertices were cut, or all of this is an estimate.
        boundary: the share of rows that read rows of other parts, or are read by them.
    """

    rows: tuple[int, ...]
    remote: tuple[int, ...]
    heaviest: float = 1.0
    measured: bool = True
    boundary: float = 1.0

    @property
    def count(self) -> int:
        """How many parts there are."""
        return len(self.rows)


def halo_share(parts: int, degree: float) -> float:
    """Give the rows that all parts read of others, for each vertex, by the effective degree."""
    return (parts - 1) * (1.0 - (1.0 - 1.0 / parts) ** degree) if parts > 1 else 0.0


def effective_degree(share: float, parts: int) -> float:
    """Give the effective degree at which so many parts read `share` rows of others for each vertex."""
    most = (parts - 1) * (1.0 - 1e-9)
    if parts < 2 or share <= 0:
        return 0.0
    return math.log(1.0 - min(share, most) / (parts - 1)) / math.log(1.0 - 1.0 / parts)


# METIS keeps the weights of parts within three per cent of each other
_IMBALANCE = 1.03


def equal_rows(vertices: int, parts: int) -> tuple[int, ...]:
    """Give the vertices of each part where all are about equal."""
    return tuple(end - first for first, end in pairwise(equal_shares(vertices, parts)))


def described_parts(vertices: int, steps: int, parts: int, degree: float, share: float | None = None) -> Parts:
    """Give the parts of a graph that is not there, by its effective degree or by the known share of rows."""
    share = halo_share(parts, degree) if share is None else share
    heaviest = 1.0 if parts == 1 else _IMBALANCE
    boundary = min(1.0, 2.0 * share) if parts > 1 else 0.0
    rows = equal_rows(vertices, parts)
    return Parts(rows, (round(share * vertices),) * steps, heaviest, measured=parts == 1, boundary=boundary)
