"""Plain values of all ranks on all of them, through torch.distributed."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from trisect.comm.local.ring import as_bytes
from trisect.comm.values import pack, unpack


def gather_values(value: Any, device: torch.device) -> list[Any]:
    """Give what each rank hands in, in the order of ranks, on all of them.

    Args:
        device: where the backend of torch.distributed wants its tensors.
    """
    world = dist.get_world_size()
    data = as_bytes(pack(value))
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world)]
    dist.all_gather(sizes, torch.tensor([data.numel()], device=device))
    counts = [int(size) for size in sizes]
    # all are padded to the longest, since gloo refuses unequal sizes
    own = torch.zeros(max(counts), dtype=torch.uint8, device=device)
    own[: data.numel()] = data
    rows = [torch.empty_like(own) for _ in range(world)]
    dist.all_gather(rows, own)
    return [unpack(row[:count].cpu().numpy().tobytes()) for row, count in zip(rows, counts, strict=True)]
