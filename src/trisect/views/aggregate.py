"""`aggregate` as one node of autograd: a product before or behind a sum over neighbours, and all that follows.

Whatever exchange brings the rows, this is the only place that knows the order of products, sums and endings.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trisect.ops.memory import empty
from trisect.views.ending import Ending, Product
from trisect.views.spatial import Spatial


@dataclass(frozen=True, eq=False)
class Aggregation:
    """What an aggregation does beside its tensors.

    Attributes:
        narrows: whether the product goes before the sum: ending(Â·(x·Wᵀ) + x·rootᵀ + add + bias). Otherwise behind:
            ending(((1-alpha)·Â·x + alpha·add)·wᵀ + x·rootᵀ + bias) with w = theta·W + (1-theta)·I; without alpha,
            `add` comes behind the product too.
        alpha, theta: of GCNII.
    """

    spatial: Spatial
    call: Hashable
    ending: Ending = Ending.NONE
    narrows: bool = True
    alpha: float = 0.0
    theta: float = 1.0


def run_aggregation(
    spec: Aggregation,
    token: Tensor | None,
    x: Tensor,
    weight: Tensor | None = None,
    root: Tensor | None = None,
    bias: Tensor | None = None,
    add: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return the result [..., rows, outputs] and the next token (None where none was given).

    Shapes: x [rows, inputs] or [steps, rows, inputs]; weight, root [outputs, inputs]; bias [outputs].
    """
    function = _ProductFirst if spec.narrows or weight is None else _SumFirst
    result = function.apply(spec, token, x, weight, root, bias, add)  # type: ignore[no-untyped-call]
    return (result, None) if token is None else result


def _once(x: Tensor) -> Tensor:
    """Return one of frames that are the same in all steps: they are multiplied once."""
    return x[:1] if x.shape[0] > 1 and x.stride(0) == 0 else x


def _like(x: Tensor, made: Tensor) -> Tensor:
    """Return a product of `_once(x)` for all steps of x."""
    return made if made.shape[0] == x.shape[0] else made.expand(x.shape[0], -1, -1)


def _summed(x: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient of a product of `_once(x)` from that of all steps."""
    return gradient if x.shape[0] == gradient.shape[0] else gradient.sum(0, keepdim=True)


def _frames(x: Tensor, add: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return [rows, channels] as [1, rows, channels], inside a node: views outside of it are nodes of their own."""
    if x.dim() == 3:
        return x, add
    return x[None], None if add is None else add[None]


def _flattened(ctx: Any, *gradients: Tensor | None) -> list[Tensor | None]:
    return [g[0] if ctx.flat and g is not None else g for g in gradients]


def _rooted(x: Tensor, root: Tensor, add: Tensor | None) -> Tensor:
    """Return x·rootᵀ + add, [steps, rows, outputs]."""
    once = _once(x)
    if once is x:
        return Product(Ending.NONE).forward(x, root, None, add)
    rooted = _like(x, Product(Ending.NONE).forward(once, root))
    return rooted if add is None else rooted + add


class _ProductFirst(torch.autograd.Function):
    """ending(Â·(x·Wᵀ) + x·rootᵀ + add + bias); without a weight, ending((1-alpha)·Â·x + alpha·add + bias)."""

    @staticmethod
    def forward(
        ctx: Any,
        spec: Aggregation,
        token: Tensor | None,
        x: Tensor,
        weight: Tensor | None,
        root: Tensor | None,
        bias: Tensor | None,
        add: Tensor | None,
    ) -> Any:
        ctx.flat, (x, add) = x.dim() == 2, _frames(x, add)
        trained, spatial = any(ctx.needs_input_grad), spec.spatial
        once, message, alpha = _once(x), x, spec.alpha if add is not None else 0.0
        if root is not None:
            add = _rooted(x, root, add)
        if weight is not None:
            room = spatial.room(spec.call, x, weight.shape[0]) if once is x else None
            message = _like(x, Product(Ending.NONE).forward(once, weight, out=room))
        out = empty(message.shape, x.dtype, x.device)
        ctx.trail = spatial.sum(
            spec.call,
            message,
            out,
            alpha=1.0 - alpha,
            add=add,
            beta=alpha if alpha else 1.0,
            bias=bias,
            ending=spec.ending,
            trained=trained,
        )
        needs = ctx.needs_input_grad
        ctx.save_for_backward(
            once if needs[3] or needs[4] else None,
            weight if needs[2] else None,
            root if needs[2] else None,
            out if spec.ending.relu and trained else None,
        )
        ctx.spec, ctx.alpha, ctx.with_weight = spec, alpha, weight is not None
        out = out[0] if ctx.flat else out
        return out if token is None else (out, torch.zeros(()))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *token: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, root, out = ctx.saved_tensors
        ctx.maybe_clear_saved_tensors()  # so that each goes as soon as nothing here reads it
        gradient = gradient[None] if ctx.flat else gradient
        spec: Aggregation = ctx.spec
        spatial, alpha = spec.spatial, ctx.alpha
        if spatial.heed is not None:
            spatial.heed()
        _, _, need_x, need_weight, need_root, need_bias, need_add = ctx.needs_input_grad
        reads = need_x or need_weight
        back = gbias = room = None
        alone = root is None and not (need_add or alpha)  # the masked gradient is summed, and no more
        if reads and alone and out is not None and spec.ending.noises is None:
            both = spatial.ended_gradient(gradient, ctx.trail, spec.ending, out, want_bias=need_bias)
            back, gbias = (None, None) if both is None else both
        if back is None:
            room = spatial.gradient_room(spec.call, gradient, gradient.shape[2]) if reads else None
            gradient, gbias = spec.ending.gradient(gradient, out, room, want_bias=need_bias)
        fresh = back is None and room is None and spec.ending.active
        del out
        gx = gw = groot = None
        if need_root:
            groot, _ = Product(Ending.NONE).backward(_summed(x, gradient), (None,), x, None)
        if reads and back is None:
            back = spatial.sum_gradient(spec.call, gradient, ctx.trail, alpha=1.0 - alpha)
        if back is not None and ctx.with_weight:
            if need_x:
                shape = (*back.shape[:2], weight.shape[1])
                free = fresh and root is None and not need_add  # nothing reads the gradient any more
                gx = gradient if free and gradient.shape == shape else empty(shape, back.dtype, back.device)
            total = _summed(x, back) if need_weight else back
            if gx is not None and total is not back:
                Product(Ending.NONE).backward(back, (None,), None, weight, gx=gx)
            into = gx if total is back else None
            gw, _ = Product(Ending.NONE).backward(total, (None,), x if need_weight else None, weight, gx=into)
        else:
            gx = back
        if need_x and root is not None:
            Product(Ending.NONE).backward(gradient, (None,), None, root, gx=gx, accumulate=True)
        gadd = None
        if need_add:
            # the room is used again by the next verb
            gadd = gradient * alpha if alpha else (gradient.clone() if room is not None else gradient)
        gx, gadd = _flattened(ctx, gx, gadd)
        return (None, *(token or (None,)), gx, gw, groot, gbias, gadd)


class _SumFirst(torch.autograd.Function):
    """ending(((1-alpha)·Â·x + alpha·add)·wᵀ + x·rootᵀ + bias)."""

    @staticmethod
    def forward(
        ctx: Any,
        spec: Aggregation,
        token: Tensor | None,
        x: Tensor,
        weight: Tensor,
        root: Tensor | None,
        bias: Tensor | None,
        add: Tensor | None,
    ) -> Any:
        ctx.flat, (x, add) = x.dim() == 2, _frames(x, add)
        trained, needs = any(ctx.needs_input_grad), ctx.needs_input_grad
        mixes = add is not None and spec.alpha != 0.0
        alpha = spec.alpha if mixes else 0.0
        support = empty(x.shape, x.dtype, x.device)
        ctx.trail = spec.spatial.sum(
            spec.call, x, support, alpha=1.0 - alpha, add=add if mixes else None, beta=alpha, trained=trained
        )
        once, behind = _once(x), None if mixes else add
        if root is not None:
            behind = _rooted(x, root, behind)
        product = Product(spec.ending, spec.theta)
        out = product.forward(support, weight, bias, behind, mark=trained)
        ctx.save_for_backward(
            support if needs[3] else None,
            weight if needs[2] or (mixes and needs[6]) else None,
            root if needs[2] else None,
            once if needs[4] else None,
            *product.kept,
        )
        ctx.spec, ctx.alpha, ctx.mixes = spec, alpha, mixes
        ctx.shape = x.shape
        out = out[0] if ctx.flat else out
        return out if token is None else (out, torch.zeros(()))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *token: Tensor) -> tuple[Tensor | None, ...]:
        support, weight, root, once, *kept = ctx.saved_tensors
        gradient = gradient[None] if ctx.flat else gradient
        spec: Aggregation = ctx.spec
        spatial, alpha, mixes = spec.spatial, ctx.alpha, ctx.mixes
        if spatial.heed is not None:
            spatial.heed()
        shape = ctx.shape
        _, _, need_x, _, need_root, need_bias, need_add = ctx.needs_input_grad
        room = spatial.gradient_room(spec.call, gradient, shape[2]) if need_x else None
        # the gradient of `add` is that of the sums but for a factor: one tensor does for both where no room is read
        both = need_add and mixes and room is None
        g_support = room
        if g_support is None and (need_x or (need_add and mixes)):
            g_support = empty(shape, gradient.dtype, gradient.device)
        gadd = None
        if need_add and mixes:
            gadd = g_support if both else empty(shape, gradient.dtype, gradient.device)
        behind = need_root or (root is not None and need_x) or (need_add and not mixes)
        masked = gradient
        if behind and spec.ending.active:
            masked = empty(gradient.shape, gradient.dtype, gradient.device)
        gw, gbias = Product(spec.ending, spec.theta).backward(
            gradient,
            kept,
            support,
            weight,
            gx=g_support,
            want_bias=need_bias,
            masked=masked if masked is not gradient else None,
            factor=alpha if both else 1.0 - alpha,
            more=None if both else gadd,
            more_factor=alpha,
        )
        gx = groot = None
        if need_x and g_support is not None:
            factor = (1.0 - alpha) / alpha if both else 1.0
            gx = spatial.sum_gradient(spec.call, g_support, ctx.trail, alpha=factor)
        if need_root:
            groot, _ = Product(Ending.NONE).backward(_summed(once, masked), (None,), once, None)
        if need_x and root is not None:
            Product(Ending.NONE).backward(masked, (None,), None, root, gx=gx, accumulate=True)
        if need_add and not mixes:
            gadd = masked
        gx, gadd = _flattened(ctx, gx, gadd)
        return (None, *(token or (None,)), gx, gw, groot, gbias, gadd)
