"""Rows of larger tensors, as kernels read and write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.ops.memory import empty, shares_storage
from trisect.ops.spmm.steps import joined as stack_into
from trisect.ops.spmm.sums import reads_last_rows

T = TypeVar("T")


def required(value: T | None) -> T:
    """Return a value that must be there."""
    if value is None:
        raise RuntimeError("internal error: a tensor is missing that an earlier step should have made")
    return value


def no_rows(device: torch.device) -> Adjacency:
    """Return a matrix of no rows and no columns."""
    none = torch.zeros(1, dtype=torch.int64, device=device)
    return Adjacency.from_csr(none, none[:0], None, 0)


def same_rows(x: Tensor, start: int, stop: int) -> Tensor:
    """Return rows of a tensor as one of its own, no view: autograd does not count what is written to the rest.

    `stop` may lie beyond the tensor's own rows, inside its storage.
    """
    offset = x.storage_offset() + start * x.stride(0)
    shape = (stop - start, *x.shape[1:])
    if not shares_storage(x.device):
        # views of `data` are no views to autograd
        return x.data[start:stop] if stop <= x.shape[0] else x.data.as_strided(shape, x.stride(), offset)
    return torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage(), offset, shape, x.stride())


def readable(rows: Tensor, own: int, halo: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return own rows, and those that stand behind them elsewhere, in the form that kernels read.

    Args:
        rows: its first `own` rows count; behind them the storage goes on for at least as many rows as `halo` has.
        halo: [last columns, features]; None: they stand behind the own rows.

    Returns: [columns, features], and where its last rows are read instead, or None.
    """
    if halo is None:
        return rows, None
    if halo.shape[0] == 0:
        return rows[:own], None
    columns = same_rows(rows, 0, own + halo.shape[0])
    return (columns, halo) if reads_last_rows(columns, halo) else (joined(rows[:own], halo), None)


def joined(own: Tensor, halo: Tensor) -> Tensor:
    """Return a copy of the own rows with the halo rows behind them, [columns, features]."""
    if halo.shape[0] == 0:
        return own
    columns = empty((own.shape[0] + halo.shape[0], own.shape[1]), own.dtype, own.device)
    return torch.cat([own, halo], out=columns)


def each_frame(frames: Tensor) -> list[Tensor]:
    """Return the frames of [steps, rows, channels]. The gradient of one alone is not copied, as `unbind` would."""
    return [frames.squeeze(0)] if len(frames) == 1 else list(frames.unbind())


def stacked(frames: Sequence[Tensor]) -> Tensor:
    """Return frames [rows, channels] as one tensor, in memory of the pool."""
    first = frames[0]
    if len(frames) == 1:
        return first[None]
    if any(frame.dtype != first.dtype for frame in frames):
        return torch.stack(list(frames))
    return stack_into(empty((len(frames), *first.shape), first.dtype, first.device), frames)
