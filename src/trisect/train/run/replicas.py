"""Whether ranks that hold the same parameters still do: a difference means that training is no longer one training."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trisect.errors import RunError

Digest = Sequence[str]


def replica_digest(tensors: Mapping[str, Tensor]) -> list[str]:
    """Give two hashes of a rank's state: of the names, which tell who holds the same, and of what they hold."""
    names, content = hashlib.sha256(), hashlib.sha256()
    for name in sorted(name for name in tensors if not name.startswith("program.")):
        names.update(name.encode() + b";")
        array = tensors[name].detach().cpu().contiguous()
        if array.numel():
            content.update(array.view(-1).view(torch.uint8).numpy().data)
    return [names.hexdigest(), content.hexdigest()]


def require_equal_replicas(digests: Sequence[Digest], epoch: int) -> None:
    """Raise on all ranks where two of them hold tensors of the same names and other content.

    Args:
        digests: of all ranks, in their order.
    """
    first: dict[str, int] = {}
    for rank, (names, content) in enumerate(digests):
        other = first.setdefault(names, rank)
        if digests[other][1] != content:
            raise RunError(
                f"rank {rank} holds other parameters than rank {other} after epoch {epoch}, and they should be equal to"
                " the bit (memory or hardware at fault, or hosts with other releases); go on from the last checkpoint,"
                " or set train.guard: false."
            )
