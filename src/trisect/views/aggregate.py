"""`aggregate` as one node of autograd: a product before or behind a sum over neighbours, and all that follows.

Whatever exchange brings the rows, this is the only place that knows the order of products, sums and endings. A product
without a sum is the same node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trisect.ops.memory import alias, empty
from trisect.views.ending import Ending
from trisect.views.rows import required
from trisect.views.spatial import Spatial
from trisect.views.verbs import Asked

NONE = Ending.NONE


@dataclass(frozen=True, eq=False)
class Aggregation:
    """What an aggregation does beside its tensors.

    Attributes:
        spatial: sums up over neighbours; None: nothing is summed.
        narrows: whether the product goes before the sum: ending(Â·(x·Wᵀ) + x·rootᵀ + add + bias). Otherwise behind:
            ending(((1-alpha)·Â·x + alpha·add)·wᵀ + x·rootᵀ + bias) with w = theta·W + (1-theta)·I; without alpha,
            `add` comes behind the product too.
        alpha, theta: of GCNII.
        room: where a product behind the sum is made; None: anywhere.
    """

    spatial: Spatial | None
    call: Asked = (0, 0, 0)
    ending: Ending = NONE
    narrows: bool = False
    alpha: float = 0.0
    theta: float = 1.0
    room: Tensor | None = None


def run_aggregation(
    spec: Aggregation,
    token: Tensor | None,
    x: Tensor,
    weight: Tensor | None = None,
    root: Tensor | None = None,
    bias: Tensor | None = None,
    add: Tensor | None = None,
) -> Any:
    """Return the result [..., rows, outputs]; with a token, also the next one.

    Shapes: x [rows, inputs] or [steps, rows, inputs]; weight, root [outputs, inputs]; bias [outputs].
    """
    return _Aggregate.apply(spec, token, x, weight, root, bias, add)  # type: ignore[no-untyped-call]


def dense(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    add: Tensor | None = None,
    ending: Ending = NONE,
    theta: float = 1.0,
    *,
    room: Callable[[Tensor, int], Tensor | None] | None = None,
) -> Tensor:
    """Return ending(x·wᵀ + add + bias), w = theta·weight + (1-theta)·I.

    Shapes: x [rows, inputs] or [steps, rows, inputs]; weight [outputs, inputs]; add [..., rows, outputs].

    Args:
        room: room(x, outputs) → where the result is made, or None.
    """
    equal = x.dim() == 3 and add is None and ending.noises is None
    single = _once(x) if equal else x
    made = None if room is None or single is not x else room(x, weight.shape[0])
    spec = Aggregation(None, ending=ending, theta=theta, room=made)
    result: Tensor = run_aggregation(spec, None, single, weight, None, bias, add)
    return result if single is x else result.expand(len(x), -1, -1)


def behind(
    sums: Tensor,
    x: Tensor,
    weight: Tensor | None,
    root: Tensor | None,
    bias: Tensor | None,
    add: Tensor | None,
    alpha: float,
    theta: float,
    ending: Ending,
) -> Tensor:
    """Return what an aggregation of x makes of its sums, where these are there already; all of them are frames."""
    if alpha != 0.0 and add is not None:
        sums, add = torch.lerp(sums, add, alpha), None
    if root is not None:
        add = dense(x, root, None, add)
    if weight is not None:
        return dense(sums, weight, bias, add, ending, theta)
    sums = sums if add is None else sums + add
    return ending.after(sums if bias is None else sums + bias)


def _once(x: Tensor) -> Tensor:
    """Return one of frames that are the same in all steps: they are multiplied once."""
    return x[:1] if x.shape[0] > 1 and x.stride(0) == 0 else x


def _like(x: Tensor, made: Tensor) -> Tensor:
    """Return a product of `_once(x)` for all steps of x."""
    return made if made.shape[0] == x.shape[0] else made.expand(x.shape[0], -1, -1)


def _summed(x: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient of a product of `_once(x)` from that of all steps."""
    return gradient if x.shape[0] == gradient.shape[0] else gradient.sum(0, keepdim=True)


def _rooted(x: Tensor, root: Tensor, add: Tensor | None) -> Tensor:
    """Return x·rootᵀ + add, [steps, rows, outputs]."""
    once = _once(x)
    if once is x:
        return NONE.product(x, root, None, add)[0]
    rooted = _like(x, NONE.product(once, root)[0])
    return rooted if add is None else rooted + add


class _Aggregate(torch.autograd.Function):
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
        needs, spatial, ending = ctx.needs_input_grad, spec.spatial, spec.ending
        trained, flat = any(needs), x.dim() == 2
        if flat:  # inside the node: views outside of it are nodes of their own
            x, add = x[None], None if add is None else add[None]
        first, alpha = weight is None or spec.narrows, 0.0 if add is None else spec.alpha
        once, sums, plus = _once(x), x, add if first or not alpha else None
        if root is not None:
            plus = _rooted(x, root, plus)
        if spatial is not None:
            if weight is not None and first:
                room = spatial.room(spec.call, x, weight.shape[0]) if once is x else None
                sums = _like(x, NONE.product(once, weight, out=room)[0])
            message, sums = sums, empty(sums.shape, x.dtype, x.device)
            ctx.trail = spatial.sum(
                spec.call,
                message,
                sums,
                alpha=1.0 - alpha,
                add=plus if first else add if alpha else None,
                beta=alpha or 1.0,
                bias=bias if first else None,
                ending=ending if first else NONE,
                trained=trained,
            )
        if weight is None or first:
            out, kept = sums, [sums if ending.relu and trained else None]
        else:
            out, kept = ending.product(sums, weight, bias, plus, theta=spec.theta, out=spec.room, mark=trained)
            # no view of the room, whose other rows are written while these are read
            out = out if spec.room is None else alias(out)
        _, _, need_x, need_weight, need_root, _, need_add = needs
        ctx.save_for_backward(
            once if need_root or (first and need_weight) else None,
            sums if need_weight and not first else None,
            weight if need_x or (need_add and alpha) else None,
            root if need_x else None,
            *kept,
        )
        ctx.spec, ctx.alpha, ctx.flat, ctx.shape, ctx.first = spec, alpha, flat, x.shape, first
        ctx.with_weight = weight is not None
        out = out[0] if flat else out
        return out if token is None else (out, torch.zeros(()))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *token: Tensor) -> tuple[Tensor | None, ...]:
        x, sums, weight, root, *kept = ctx.saved_tensors
        ctx.maybe_clear_saved_tensors()  # so that each goes as soon as nothing here reads it
        spec, ending, alpha = ctx.spec, ctx.spec.ending, ctx.alpha
        spatial: Any = spec.spatial
        if spatial is not None and spatial.heed is not None:
            spatial.heed()
        gradient = gradient[None] if ctx.flat else gradient
        _, _, need_x, need_weight, need_root, need_bias, need_add = ctx.needs_input_grad
        gx = gw = groot = gadd = gbias = room = None
        if not ctx.first:
            if need_x and spatial is not None:
                room = spatial.gradient_room(spec.call, gradient, ctx.shape[2])
            # the gradient of `add` is that of the sums but for a factor: one tensor does for both where no room is read
            mixes = need_add and alpha != 0.0
            both, gsums = mixes and room is None, room
            if gsums is None and (need_x or mixes):
                gsums = empty(ctx.shape, gradient.dtype, gradient.device)
            if mixes:
                gadd = gsums if both else empty(ctx.shape, gradient.dtype, gradient.device)
            masked = None
            if ending.active and (need_root or root is not None or (need_add and not mixes)):
                masked = empty(gradient.shape, gradient.dtype, gradient.device)
            gw, gbias = ending.product_gradient(
                gradient,
                sums,
                weight,
                kept,
                theta=spec.theta,
                gx=gsums,
                want_bias=need_bias,
                masked=masked,
                factor=alpha if both else 1.0 - alpha,
                more=None if both else gadd,
                more_factor=alpha,
            )
            gradient, gx = gradient if masked is None else masked, gsums
            if need_x and spatial is not None:
                gx = spatial.sum_gradient(spec.call, gx, ctx.trail, alpha=(1.0 - alpha) / alpha if both else 1.0)
        else:
            reads, alone = need_x or need_weight, not (need_root or root is not None or need_add or alpha)
            (out,) = kept
            del kept
            ended = None
            if reads and alone and out is not None and ending.noises is None:
                # the masked gradient is summed, and no more
                ended = spatial.ended_gradient(gradient, ctx.trail, ending, out, want_bias=need_bias)
            if ended is not None:
                gx, gbias = ended
            else:
                room = spatial.gradient_room(spec.call, gradient, gradient.shape[2]) if reads else None
                gradient, gbias = ending.gradient(gradient, out, room, want_bias=need_bias)
                del out
                if reads:
                    gx = spatial.sum_gradient(spec.call, gradient, ctx.trail, alpha=1.0 - alpha)
            if reads and ctx.with_weight:
                back, gx = required(gx), None
                total = _summed(x, back) if need_weight else back
                if need_x:
                    # nothing reads the gradient any more
                    free = alone and ended is None and room is None and ending.active
                    shape = (*back.shape[:2], weight.shape[1])
                    gx = gradient if free and gradient.shape == shape else empty(shape, back.dtype, back.device)
                if need_x and total is not back:
                    NONE.product_gradient(back, None, weight, gx=gx)
                into = gx if total is back else None
                gw, _ = NONE.product_gradient(total, x if need_weight else None, weight, gx=into)
        if need_root:
            groot, _ = NONE.product_gradient(_summed(x, gradient), x, None)
        if root is not None:
            NONE.product_gradient(gradient, None, root, gx=gx, accumulate=True)
        if need_add and gadd is None:
            gadd = gradient * alpha if alpha else gradient
            if gadd is gradient and room is not None and ctx.first:
                gadd = gradient.clone()  # the room is used again by the next verb
        gx, gadd = (g[0] if ctx.flat and g is not None else g for g in (gx, gadd))
        return (None, *(token or (None,)), gx, gw, groot, gbias, gadd)
