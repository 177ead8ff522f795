"""Values that pass from cell to cell: their rows, and what backward has found of their gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from trisect.ops.memory import empty, shares_storage

T = TypeVar("T")


def require(value: T | None, what: str) -> T:
    """Give a value that is there wherever the schedule was followed."""
    if value is None:
        raise RuntimeError(f"internal error: {what} is missing; the schedule is wrong")
    return value


def require_kind(value: object, kind: type[T]) -> T:
    """Give a value as one of the class that the plan says it has."""
    if not isinstance(value, kind):
        raise RuntimeError(f"internal error: the plan wants {kind.__name__}, and there is {type(value).__name__}")
    return value


@dataclass
class Reading:
    """The gradient of rows that were read, as far as autograd has found it; `own` are a piece's rows of a message."""

    gradient: Tensor | None = None
    own: Tensor | None = None
    _summed: bool = False

    def add(self, gradient: Tensor | None) -> None:
        """Add the gradient that another reader gives."""
        if gradient is None:
            return
        if self.gradient is None:
            self.gradient = gradient
        elif self._summed:
            self.gradient += gradient
        else:
            # the first may be somebody else's too
            total = empty(gradient.shape, gradient.dtype, gradient.device)
            self.gradient = torch.add(self.gradient, gradient, out=total)
            self._summed = True


@dataclass
class Value:
    """What one cell makes and others read.

    Attributes:
        rows: the tensor, until its last reader has gone forward.
        root: where backward through it begins, in the graph of the cell that made it; None where nothing is trained.
        trained: whether a gradient of it is wanted.
    """

    rows: Tensor | None
    root: GradientEdge | None = None
    trained: bool = False
    reading: Reading = field(default_factory=Reading)

    def require(self, what: object) -> Tensor:
        """Give the rows, which must be there."""
        if self.rows is None:
            raise RuntimeError(f"internal error: {what} was read before it was made, or after it was let go")
        return self.rows


class _Read(torch.autograd.Function):
    """Rows of buffers as leaves of autograd: gradients are kept aside, and nothing holds on to the buffers."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, rows: Sequence[Tensor], readings: Sequence[Reading]) -> tuple[Tensor, ...]:
        ctx.readings = readings
        ctx.set_materialize_grads(False)
        # `data`, which is no view to autograd: what is written to the rest of a buffer does not count
        return tuple([one.data for one in rows])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        for reading, gradient in zip(ctx.readings, gradients, strict=True):
            reading.add(gradient)
        return None, None, None


def read_rows(token: Tensor, rows: Sequence[Tensor], readings: Sequence[Reading]) -> tuple[Tensor, ...]:
    """Give rows as leaves; where autograd finds the gradient of one, it is put into its reading.

    Rows that are read together are one node of autograd, since a node costs as much as a small kernel.

    Args:
        token: requires a gradient.
        rows: in a list, since autograd would take tensors among the arguments for inputs.
    """
    leaves: tuple[Tensor, ...] = _Read.apply(token, rows, readings)  # type: ignore[no-untyped-call]
    return leaves


def same_rows(x: Tensor, start: int, stop: int) -> Tensor:
    """Give rows of a tensor as one of its own, no view: autograd does not count what is written to the rest.

    `stop` may lie beyond the tensor's own rows, inside its storage.
    """
    offset = x.storage_offset() + start * x.stride(0)
    shape = (stop - start, *x.shape[1:])
    if not shares_storage(x.device):
        # views of `data` are no views to autograd
        return x.data[start:stop] if stop <= x.shape[0] else x.data.as_strided(shape, x.stride(), offset)
    return torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage(), offset, shape, x.stride())


def root_of(x: Tensor) -> GradientEdge | None:
    """Say where backward through x begins; None where nothing is to be found there."""
    return get_gradient_edge(x) if x.requires_grad else None
