"""Sums over ranks in the order of ranks, through torch.distributed: the same bits on all, and those of a `Board`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

_SHORT = 1 << 16  # bytes; where no rank would send more, each sends all of its vector to all others


def sum_in_order(vector: Tensor, count: int, group: dist.ProcessGroup | None) -> Tensor:
    """Give the sum of the vectors of all ranks of a group.

    A long vector is added in parts, one a rank, and the parts are then handed round: each rank sends what a ring
    would, twice the vector less its own part.

    Args:
        vector: of this rank; it may be written over.
        count: how many ranks the group has.
        group: None for all ranks.
    """
    if count == 2:  # two numbers have one sum
        dist.all_reduce(vector, group=group)
        return vector
    if vector.nbytes * (count - 1) <= _SHORT:
        return _add(_gathered(vector, count, group))
    length = -(-vector.numel() // count)
    padded = torch.nn.functional.pad(vector, (0, length * count - vector.numel()))
    received = torch.empty_like(padded)
    dist.all_to_all_single(received, padded, group=group)
    return torch.cat(_gathered(_add(received.view(count, length).unbind()), count, group))[: vector.numel()]


def _gathered(vector: Tensor, count: int, group: dist.ProcessGroup | None) -> list[Tensor]:
    vectors = [torch.empty_like(vector) for _ in range(count)]
    dist.all_gather(vectors, vector.contiguous(), group=group)
    return vectors


def _add(vectors: Sequence[Tensor]) -> Tensor:
    total = vectors[0] + vectors[1]
    for vector in vectors[2:]:
        total += vector
    return total
