"""Leaves of autograd whose gradients are kept aside: nothing holds on to their values for that."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

K = TypeVar("K", bound=Hashable)


def leaves_of(values: Mapping[K, Tensor], found: dict[Any, Tensor]) -> dict[K, Tensor]:
    """Return values as the beginning of a graph; one backward through it writes their gradients to `found`.

    A gradient may share memory with another tensor of that backward: it is not to be written to.
    """
    if not values:
        return {}
    begun, keys = torch.zeros((), requires_grad=True), list(values)
    made = _Leaves.apply(begun, keys, list(values.values()), found)  # type: ignore[no-untyped-call]
    return dict(zip(keys, made, strict=True))


class _Leaves(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, begun: Tensor, keys: Sequence[Any], values: Sequence[Tensor], found: dict[Any, Tensor]
    ) -> tuple[Tensor, ...]:
        ctx.keys, ctx.found = keys, found
        ctx.set_materialize_grads(False)
        return tuple([value.detach() for value in values])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        for key, gradient in zip(ctx.keys, gradients, strict=True):
            if gradient is not None:
                ctx.found[key] = gradient
        return None, None, None, None
