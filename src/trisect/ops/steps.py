"""The aggregation of every step of a timeline as one node of autograd.

Step by step in plain torch, each `xs[t]` costs a gradient as large as all steps, and stacking the results one more pass
over them. Here each step's kernel writes its part of one tensor, forward and backward.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trisect.errors import ConfigError
from trisect.graph.adjacency import Adjacency
from trisect.ops.aggregate import aggregate_into
from trisect.ops.memory import empty


class Snapshots(Protocol):
    """A sequence of adjacencies, which may be made on demand."""

    def __len__(self) -> int:
        """How many steps."""
        ...

    def __getitem__(self, step: int, /) -> Adjacency:
        """The adjacency of a step, counted from the start of the sequence."""
        ...


def aggregate_steps(x: Tensor, snapshots: Snapshots, bias: Tensor | None = None, *, relu: bool = False) -> Tensor:
    """relu(Â_t·x_t + bias) of each step t.

    Args:
        x: [steps, columns, features].
        snapshots: the adjacency of each step, all of the same shape, asked for once; its values are constants. They
            are kept where a backward will follow.
        bias: [features].

    Returns:
        [steps, rows, features].
    """
    if x.dim() != 3 or x.shape[0] != len(snapshots):
        raise ConfigError(
            f"x has shape {tuple(x.shape)} for {len(snapshots)} snapshots; give [steps, columns, features]."
        )
    if bias is not None and tuple(bias.shape) != (x.shape[2],):
        raise ConfigError(f"bias has shape {tuple(bias.shape)}; {(x.shape[2],)} is needed.")
    result: Tensor = _Steps.apply(x, bias, snapshots, relu)  # type: ignore[no-untyped-call]
    return result


class _Steps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, snapshots: Snapshots, relu: bool) -> Tensor:
        kept = []
        out = empty((0, 0, x.shape[2]), x.dtype, x.device)
        for step in range(len(snapshots)):
            snapshot = snapshots[step]
            if step == 0:
                out = empty((x.shape[0], snapshot.rows, x.shape[2]), x.dtype, x.device)
            if snapshot.shape != (out.shape[1], x.shape[1]):
                raise ConfigError(
                    f"snapshot {step} is {snapshot.rows} x {snapshot.columns}; {out.shape[1]} x {x.shape[1]} is needed."
                )
            aggregate_into(out[step], x[step], snapshot, bias=bias, relu=relu)
            if any(ctx.needs_input_grad):
                kept.append(snapshot)
        ctx.snapshots, ctx.shape = kept, x.shape
        ctx.save_for_backward(out if relu else None)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (out,) = ctx.saved_tensors
        needs_x, needs_bias = ctx.needs_input_grad[:2]
        d_x = empty(ctx.shape, gradient.dtype, gradient.device) if needs_x else None
        d_bias = gradient.new_zeros(gradient.shape[2]) if needs_bias else None
        for step, snapshot in enumerate(ctx.snapshots):
            part = gradient[step]
            if out is not None:
                part = torch.ops.aten.threshold_backward(part, out[step], 0.0)
            if d_bias is not None:
                d_bias += part.sum(0)
            if d_x is not None:
                aggregate_into(d_x[step], part, snapshot.transpose())
        return d_x, d_bias, None, None
