"""Pairs of vertices that are drawn at random and are not among those that exist, by a kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trisect.native.library import INT, INT64, POINTER, Kernel, available, threads

_DRAW = Kernel(
    "trisect_draw_pairs", POINTER, INT64, POINTER, *[INT64] * 2, *[POINTER] * 2, INT, INT64, *[POINTER] * 2, INT
)
_LOOKUPS = 4  # codes for each entry of a table of where they begin


def can_draw(rows: Tensor) -> bool:
    """Whether the kernel draws from these rows."""
    return rows.device.type == "cpu" and available()


def table_of(codes: Tensor, vertices: int) -> tuple[Tensor, int]:
    """Return where the codes from b << shift on begin, for b = 0, 1, …: int64, and the shift.

    Args:
        codes: src · vertices + dst of distinct pairs, ascending, int64.
    """
    end = max(1, vertices * vertices)
    shift = max(0, end.bit_length() - max(1, codes.numel() // _LOOKUPS).bit_length())
    borders = torch.arange((end - 1 >> shift) + 2, device=codes.device) << shift
    return torch.searchsorted(codes, borders), shift


def draw_pairs(
    keys: Sequence[int], count: int, rows: Tensor, vertices: int, codes: Tensor, table: tuple[Tensor, int]
) -> tuple[Tensor, Tensor]:
    """Draw `count` pairs of rows: of the streams `keys`, number i of the first whose pair is wanted, else of the last.

    A pair is wanted where it is no loop and its code is not among `codes`.

    Args:
        rows: from which both ends are drawn, int64 on the CPU, each below `vertices`.
        codes: of the pairs that exist, ascending; `table` of them.
    """
    starts, shift = table
    rows, codes = rows.contiguous(), codes.contiguous()
    if count and not rows.numel():
        raise RuntimeError("internal error: pairs are to be drawn from no rows")
    if rows.dtype != torch.int64 or codes.dtype != torch.int64 or starts.numel() < (vertices**2 - 1 >> shift) + 2:
        raise RuntimeError("internal error: rows, codes and their table are no int64 of one graph")
    streams = torch.tensor([key - (1 << 64) if key >= 1 << 63 else key for key in keys])
    src, dst = torch.empty(count, dtype=torch.int64), torch.empty(count, dtype=torch.int64)
    if count:
        _DRAW(
            *(streams.data_ptr(), len(keys), rows.data_ptr(), rows.numel(), vertices),
            *(codes.data_ptr(), starts.data_ptr(), shift, count, src.data_ptr(), dst.data_ptr(), threads()),
        )
    return src, dst
