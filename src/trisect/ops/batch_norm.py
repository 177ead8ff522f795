"""Batch norm in two halves, with relu and dropout behind it: the moments of rows, and rows made of them.

Between the halves stand sums over all ranks, by which the first half's moments become mean and variance. What the
second half's backward knows of a row's gradient waits for the first half's, which writes it once and whole. Nothing but
the input is kept for backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trisect.native.library import INT, INT64, POINTER, Kernel, threads
from trisect.ops._finish import FINISH_TYPES, KINDS, Finish, rows_contiguous, usable
from trisect.ops.dropout import dropout
from trisect.ops.memory import empty

_ROWS, _AFFINE = (POINTER, INT64), (POINTER, POINTER, POINTER)
_MOMENTS, _MADE, _SUMS, _GRADIENT = (
    {dtype: Kernel(f"trisect_{name}_{kind}", *types, INT, returns=returns) for dtype, kind in KINDS.items()}
    for name, types, returns in (
        ("moments", (*_ROWS, POINTER, POINTER, INT64, INT64), INT),
        ("standardise", (*_ROWS, *_AFFINE, POINTER, INT64, INT64, *FINISH_TYPES), None),
        ("standardise_sums", (*_ROWS, *_AFFINE, *_ROWS, POINTER, INT64, INT64, *FINISH_TYPES), INT),
        (
            "standardise_gradient",
            (*_ROWS, *_AFFINE, *_ROWS, POINTER, POINTER, POINTER, INT64, INT64, *FINISH_TYPES),
            INT,
        ),
    )
)


class Later(NamedTuple):
    """What the second half's backward leaves: (x - centre) · factor + bias was made of x, and then finished."""

    gradient: Tensor
    centre: Tensor
    factor: Tensor
    bias: Tensor
    finishes: Sequence[Finish]


@dataclass(eq=False)
class Halves:
    """What the two halves of one batch norm hand each other.

    Attributes:
        rows: of which moments were taken so far.
        later: of the second half, once its backward has been; None: none of its rows has a gradient.
    """

    rows: int = 0
    later: Later | None = None


def moments(x: Tensor, shift: Tensor | None, halves: Halves) -> Tensor:
    """Return of each step the sums of x - shift and of its squares, and the number of rows, in float64.

    Args:
        x: [steps, rows, channels]; where rows come in pieces, these come in order.
        shift: float64 [channels], near the mean, which keeps the squares small; None: 0.

    Returns: [steps, 1, 2 · channels + 1].
    """
    first = halves.rows
    halves.rows += x.shape[1]
    result: Tensor = _Moments.apply(halves, first, shift, x)  # type: ignore[no-untyped-call]
    return result


def standardise(
    x: Tensor, centre: Tensor, factor: Tensor, bias: Tensor, halves: Halves | None, finishes: Sequence[Finish]
) -> Tensor:
    """Return dropout(relu((x - centre) · factor + bias)).

    Args:
        x: [steps, rows, channels].
        centre: [steps, 1, channels] of the type of x, a constant; factor, bias: the same in float64.
        halves: of the batch norm, whose moments have x's gradient; None: it goes straight to x.
        finishes: relu and dropout of each step.
    """
    x = x if halves is None else x.detach()
    result: Tensor = _Standardise.apply(halves, finishes, x, centre, factor, bias)  # type: ignore[no-untyped-call]
    return result


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, halves: Halves, first: int, shift: Tensor | None, x: Tensor) -> Tensor:
        ctx.halves, ctx.first = halves, first
        ctx.save_for_backward(x, shift)
        steps, rows, channels = x.shape
        out = torch.empty(steps, 1, 2 * channels + 1, dtype=torch.float64, device=x.device)
        for step in range(steps):
            _moments_into(out[step, 0], x[step], shift)
        out[..., -1] = rows
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, shift = ctx.saved_tensors
        channels, low, later = x.shape[2], ctx.first, ctx.halves.later
        slope = 2.0 * gradient[..., channels:-1]
        rest = gradient[..., :channels]
        rest = rest if shift is None else rest - slope * shift
        out = empty(x.shape, x.dtype, x.device)
        for step in range(len(x)):
            _gradient_into(out[step], x[step], slope[step], rest[step], later, step, low)
        return None, None, None, out


class _Standardise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        halves: Halves | None,
        finishes: Sequence[Finish],
        x: Tensor,
        centre: Tensor,
        factor: Tensor,
        bias: Tensor,
    ) -> Tensor:
        ctx.halves, ctx.finishes = halves, finishes
        ctx.save_for_backward(x, centre, factor, bias)
        centre, factor, bias = _columns(x, centre, factor, bias)
        out = empty(x.shape, x.dtype, x.device)
        for step, finish in enumerate(finishes):
            rows, affine = x[step], (centre[step], factor[step], bias[step])
            if usable(rows, *affine):
                rows = rows_contiguous(rows)
                pointers = rows.data_ptr(), rows.stride(0), *(part.data_ptr() for part in affine)
                _MADE[x.dtype](*pointers, out[step].data_ptr(), *rows.shape, *finish.arguments(), threads())
                continue
            y = _made(rows, *affine)
            out[step] = dropout(torch.relu(y) if finish.relu else y, finish.p, finish.noise)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, centre, factor, bias = ctx.saved_tensors
        centre, factor, bias = _columns(x, centre, factor, bias)
        later = Later(gradient, centre, factor, bias, ctx.finishes)
        sums = torch.empty(len(x), 2, x.shape[2], dtype=torch.float64, device=x.device)
        for step in range(len(x)):
            _sums_into(sums[step], x[step], later, step)
        own = None
        if ctx.halves is not None:
            ctx.halves.later = later
        elif ctx.needs_input_grad[2]:
            own, none = empty(x.shape, x.dtype, x.device), torch.zeros_like(factor)
            for step in range(len(x)):
                _gradient_into(own[step], x[step], none[step], none[step], later, step, 0)
        return None, None, own, None, sums[:, :1], sums[:, 1:]


def _columns(x: Tensor, *vectors: Tensor) -> list[Tensor]:
    """Return vectors [steps, 1, channels] in the type of x."""
    return [vector.to(x.dtype).contiguous() for vector in vectors]


def _made(x: Tensor, centre: Tensor, factor: Tensor, bias: Tensor) -> Tensor:
    return (x - centre) * factor + bias


def _moments_into(out: Tensor, x: Tensor, shift: Tensor | None) -> None:
    """Write the sums over the rows of a step, [2 · channels + 1]; the last is left."""
    rows, channels = x.shape
    if not usable(x):
        wide = x.double() if shift is None else x.double() - shift
        out[:channels], out[channels:-1] = wide.sum(0), wide.square().sum(0)
        return
    x, pointer = rows_contiguous(x), None if shift is None else shift.data_ptr()
    if _MOMENTS[x.dtype](x.data_ptr(), x.stride(0), pointer, out.data_ptr(), rows, channels, threads()):
        raise MemoryError("There is no memory for the sums of a batch norm; use fewer threads.")


def _sums_into(out: Tensor, x: Tensor, later: Later, step: int) -> None:
    """Write the sums of b · (x - centre) and of b over the rows of a step, [2, channels]; b as in `_gradient_into`."""
    g, affine, finish = later.gradient[step], [part[step] for part in later[1:4]], later.finishes[step]
    if not usable(x, g, *affine):
        wide = _before(x, g, affine, finish).double()
        out[0], out[1] = (wide * (x - affine[0]).double()).sum(0), wide.sum(0)
        return
    x, g = rows_contiguous(x), rows_contiguous(g)
    pointers = x.data_ptr(), x.stride(0), *(part.data_ptr() for part in affine), g.data_ptr(), g.stride(0)
    if _SUMS[x.dtype](*pointers, out.data_ptr(), *x.shape, *finish.arguments(), threads()):
        raise MemoryError("There is no memory for the gradient of a batch norm; use fewer threads.")


def _gradient_into(
    out: Tensor, x: Tensor, slope: Tensor, rest: Tensor, later: Later | None, step: int, low: int
) -> None:
    """Write b · factor + x · slope + rest for some rows of a step from the row `low` on; b is the gradient before relu
    and dropout, 0 without `later`.
    """
    if later is None:
        zero = torch.zeros_like(slope).to(x.dtype)
        g, affine, finish = None, [zero, zero, zero], Finish.NONE
    else:
        g, finish = later.gradient[step, low : low + len(x)], later.finishes[step]
        affine = [part[step] for part in later[1:4]]
        finish = finish if finish.noise is None or len(g) == later.gradient.shape[1] else _of_rows(finish, low, len(g))
    centre = affine[0]
    rest = rest + slope * centre.double()
    slope, rest = (part.to(x.dtype).contiguous() for part in (slope, rest))
    if not usable(x, g, out, slope, *affine):
        found = (x - centre) * slope + rest
        out.copy_(found if g is None else found + _before(x, g, affine, finish) * affine[1])
        return
    x, g = rows_contiguous(x), None if g is None else rows_contiguous(g)
    pointers = x.data_ptr(), x.stride(0), *(part.data_ptr() for part in affine)
    more = (None, 0) if g is None else (g.data_ptr(), g.stride(0))
    vectors = slope.data_ptr(), rest.data_ptr(), out.data_ptr()
    if _GRADIENT[x.dtype](*pointers, *more, *vectors, *x.shape, *finish.arguments(), threads()):
        raise MemoryError("There is no memory for the gradient of a batch norm; use fewer threads.")


def _before(x: Tensor, g: Tensor, affine: Sequence[Tensor], finish: Finish) -> Tensor:
    """Return the gradient before relu and dropout."""
    g = dropout(g, finish.p, finish.noise)
    return torch.where(_made(x, *affine) > 0, g, 0) if finish.relu else g


def _of_rows(finish: Finish, low: int, rows: int) -> Finish:
    """Return the finish of some rows."""
    if finish.noise is None:
        return finish
    return Finish.of(finish.relu, finish.p, finish.noise.rows(low, low + rows), rows)
