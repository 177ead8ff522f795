"""Tasks on pairs under a cut by vertex: the owner of a pair's source scores it, and reads the destination's row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

_TABLE = 16  # entries of a table of all codes for each that is looked up; sorting takes longer


@dataclass(frozen=True, eq=False)
class Division:
    """How the rows are divided among parts, an interval each, seen from one part.

    With starts (0, 4, 7) and part_index 0, of the pairs 1→2, 1→5, 6→0 and 3→6, `mine` are 1→2, 1→5 and 3→6; the remote
    rows are [5, 6], and locally the pairs are 1→2, 1→4 and 3→5.

    Attributes:
        starts: part p has the rows starts[p] .. starts[p+1]-1.
        part_index: which of the parts this is.
    """

    starts: tuple[int, ...]
    part_index: int

    @property
    def parts(self) -> int:
        """Give the number of parts that the rows are divided into."""
        return len(self.starts) - 1

    def owner(self, rows: Tensor) -> Tensor:
        """Give the part that owns each row: int64 [rows]."""
        return torch.searchsorted(_bounds(self.starts, rows.device), rows, right=True)

    def mine(self, src: Tensor) -> Tensor:
        """Tell which of the pairs this part scores: bool [pairs]."""
        return (src >= self.starts[self.part_index]) & (src < self.starts[self.part_index + 1])

    def remote(self, src: Tensor, dst: Tensor) -> list[Tensor]:
        """For each part the rows of others, ascending, that the pairs which it scores read."""
        scorer, holder = self.owner(src), self.owner(dst)
        crossing = scorer != holder
        total = self.starts[-1]
        codes = _distinct(scorer[crossing] * total + dst[crossing], self.parts * total)
        sizes = torch.bincount(codes // max(total, 1), minlength=self.parts)
        return list(torch.split(codes % max(total, 1), sizes.tolist()))

    def local(self, src: Tensor, dst: Tensor, remote: Tensor) -> tuple[Tensor, Tensor]:
        """Give the pairs of this part as rows of its own outputs with the remote rows appended."""
        first, last = self.starts[self.part_index], self.starts[self.part_index + 1]
        here = (dst >= first) & (dst < last)
        return src - first, torch.where(here, dst - first, last - first + torch.searchsorted(remote, dst))


def _distinct(codes: Tensor, end: int) -> Tensor:
    """Give each of the codes 0 .. end-1 that occurs once, ascending: from a table of all where it is not much longer
    than the codes, and by sorting them where it is.
    """
    if end > _TABLE * codes.numel():
        distinct: Tensor = torch.unique(codes)
        return distinct
    occurs = torch.zeros(end, dtype=torch.bool, device=codes.device)
    occurs[codes] = True
    return torch.nonzero(occurs)[:, 0]


@lru_cache(16)
def _bounds(starts: tuple[int, ...], device: torch.device) -> Tensor:
    """Where each part ends, brought to the device once."""
    return torch.tensor(starts[1:], device=device)
