"""The token through all verbs of a cell: every rank meets every exchange in backward, in the reverse order.

Each verb that moves rows takes the token that the one before it made, and makes a new one; the last is tied to the
cell's output. So autograd reaches every exchange, also where no row of this rank has a loss, and in one order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def new_token() -> Tensor:
    """Return the token of a cell that has met nobody yet."""
    return torch.zeros((), requires_grad=True)


def tie(out: Tensor, token: Tensor | None) -> Tensor:
    """Return the output of a cell, whose backward goes through all of the cell's exchanges."""
    if token is None or not torch.is_grad_enabled():
        return out
    tied: Tensor = _Tie.apply(out, token)  # type: ignore[no-untyped-call]
    return tied


class _Tie(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, token: Tensor) -> Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, torch.zeros(())
