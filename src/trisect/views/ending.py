"""`Ending`: what a kernel does behind a sum or a product, and products of frames with all that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from trisect.noise import Noise
from trisect.ops._finish import Finish, finish_gradient, rows_contiguous, usable
from trisect.ops._products import product, product_gradient
from trisect.ops.dropout import dropout
from trisect.ops.memory import alias, empty
from trisect.views.rows import required


@dataclass(frozen=True, eq=False)
class Ending:
    """y → dropout(relu(y)), for frames [steps, rows, channels].

    Attributes:
        noises: of the rows at each step; None: nothing is dropped.
        slope: of relu below zero.
    """

    relu: bool = False
    p: float = 0.0
    noises: Sequence[Noise] | None = None
    slope: float = 0.0

    NONE: ClassVar[Ending]

    @property
    def active(self) -> bool:
        """Whether the ending changes anything."""
        return self.relu or self.noises is not None

    def noise(self, step: int) -> Noise | None:
        """Return the noise of a step; None where nothing is dropped."""
        return None if self.noises is None else self.noises[step]

    def finish(self, noise: Noise | None, rows: int) -> Finish:
        """Return the ending as kernels take it."""
        return Finish.leaky(self.slope) if self.slope > 0.0 else Finish.of(self.relu, self.p, noise, rows)

    def after(self, y: Tensor) -> Tensor:
        """Return the ending of y by operations of autograd."""
        if self.relu:
            y = functional.leaky_relu(y, self.slope) if self.slope > 0.0 else torch.relu(y)
        if self.noises is None:
            return y
        frames = [dropout(frame, self.p, noise) for frame, noise in zip(y.unbind(), self.noises, strict=True)]
        return torch.stack(frames)

    @property
    def plain_relu(self) -> bool:
        """Whether a kernel does the relu."""
        return self.relu and self.slope == 0.0

    def gradient(
        self, gradient: Tensor, out: Tensor | None, result: Tensor | None = None, *, want_bias: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return the gradient before relu and dropout, [steps, rows, channels], and its sum where that is wanted.

        Args:
            out: what the ending gave, needed for relu.
            result: where the gradient is written.
        """
        if not self.active:
            before = gradient if result is None else result.copy_(gradient)
            return before, gradient.sum((0, 1)) if want_bias else None
        if result is None:
            result = empty(gradient.shape, gradient.dtype, gradient.device)
        native = usable(gradient, out, result) and gradient.stride(2) == 1
        total = None
        for step in self._steps(gradient, result):
            part, target, y = _part(gradient, step), _part(result, step), _part(out, step)
            noise = self.noise(step or 0)
            if native:
                _, summed = finish_gradient(part, y, self.finish(noise, part.shape[0]), want_bias, target)
            else:
                before = dropout(part, self.p, noise)
                target.copy_(before if y is None else self._through_relu(before, y))
                summed = target.sum(0) if want_bias else None
            total = summed if total is None else total + required(summed)
        return result, total

    def _through_relu(self, gradient: Tensor, out: Tensor) -> Tensor:
        return torch.where(out > 0, gradient, gradient * self.slope)

    def _steps(self, frames: Tensor, result: Tensor) -> Sequence[int | None]:
        """Return what one call of a kernel does: all steps (None) where no noise tells them apart, else each."""
        steps = len(frames)
        if steps == 1 or (self.noises is None and frames.is_contiguous() and result.is_contiguous()):
            return _ALL
        return range(steps)

    def product(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        add: Tensor | None = None,
        *,
        theta: float = 1.0,
        out: Tensor | None = None,
        mark: bool = False,
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Return the ending of x·wᵀ + add + bias, w = theta·weight + (1-theta)·I, and what backward needs besides.

        Args:
            x: [steps, rows, inputs].
            weight: [outputs, inputs].
            add: [steps, rows, outputs].
            out: where the result is written, [steps, rows, outputs].
            mark: whether a backward will follow.
        """
        if out is None:
            out = empty((*x.shape[:2], weight.shape[0]), x.dtype, x.device)
        kept: list[Tensor | None] = []
        for step in self._steps(x, out):
            rows, target, addend = _part(x, step), _part(out, step), _part(add, step)
            noise = self.noise(step or 0)
            if usable(rows, weight, bias, addend, target):
                rows = rows_contiguous(rows)
                finish = self.finish(noise, rows.shape[0])
                kept.append(product(rows, weight, bias, addend, finish, mark, target, theta)[1])
                continue
            y = functional.linear(rows, mixed(weight, theta), bias)
            y = y if addend is None else y + addend
            if self.relu:
                y = functional.leaky_relu(y, self.slope)
            target.copy_(dropout(y, self.p, noise))
            # no view: what is written to the rest of `out` does not count
            kept.append(alias(target) if mark and self.relu else None)
        return out, kept

    def product_gradient(
        self,
        gradient: Tensor,
        x: Tensor | None,
        weight: Tensor | None,
        kept: Sequence[Tensor | None] = (None,),
        *,
        theta: float = 1.0,
        gx: Tensor | None = None,
        accumulate: bool = False,
        want_bias: bool = False,
        masked: Tensor | None = None,
        factor: float = 1.0,
        more: Tensor | None = None,
        more_factor: float = 1.0,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients of the weight (where x is given) and of the bias; write the others where they are given.

        Args:
            gradient: of the result, [steps, rows, outputs].
            x, weight: for the gradient of the weight, and of x.
            kept: what `product` left.
            gx: [steps, rows, inputs], gets `factor` times the gradient of x, or has it added.
            masked: [steps, rows, outputs], gets the gradient before the ending.
            more: [steps, rows, inputs], gets `more_factor` times the gradient of x.
        """
        gw = gbias = None
        # as `product` did it: all steps at once, or one after the other
        at_once = len(kept) == 1
        gradient = gradient.contiguous() if at_once and len(gradient) > 1 else gradient
        steps: Sequence[int | None] = [None] if at_once else range(len(gradient))
        for step, bits in zip(steps, kept, strict=True):
            g, own, to, into, also = (_part(frame, step) for frame in (gradient, x, gx, masked, more))
            noise = self.noise(step or 0)
            g = rows_contiguous(g)
            if usable(g, own, weight, to, into, also):
                found = product_gradient(
                    g,
                    bits,
                    None if own is None else rows_contiguous(own),
                    weight,
                    self.finish(noise, g.shape[0]),
                    inputs=next((matrix.shape[1] for matrix in (weight, own) if matrix is not None), 0),
                    gx=to,
                    accumulate=accumulate,
                    want_bias=want_bias,
                    masked=into,
                    theta=theta,
                    factor=factor,
                    more=also,
                    more_factor=more_factor,
                )
            else:
                g = dropout(g, self.p, noise)
                if self.relu and bits is not None:
                    g = self._through_relu(g, bits)
                if into is not None:
                    into.copy_(g)
                if to is not None and weight is not None:
                    back = g @ mixed(weight, theta)
                    if also is not None:
                        also.copy_(back * more_factor)
                    _ = to.add_(back, alpha=factor) if accumulate else to.copy_(back * factor)
                found = None if own is None else (g.t() @ own) * theta, g.sum(0) if want_bias else None
            gw = found[0] if gw is None else gw + required(found[0])
            gbias = found[1] if gbias is None else gbias + required(found[1])
        return gw, gbias


Ending.NONE = Ending()


def mixed(weight: Tensor, theta: float) -> Tensor:
    """Return theta·weight + (1-theta)·I."""
    if theta == 1.0:
        return weight
    return torch.lerp(torch.eye(weight.shape[0], dtype=weight.dtype, device=weight.device), weight, theta)


def _part(frames: Any, step: int | None) -> Any:
    """Return a step of frames, or all of them as [steps · rows, channels]; None stays None."""
    if frames is None:
        return None
    return frames.flatten(0, 1) if step is None else frames[step]


_ALL: Sequence[int | None] = [None]
