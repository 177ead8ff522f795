"""`Ending`: what a kernel does behind a sum or a product, and products of frames with all that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

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
        for part, y, target, noise in self._parts(gradient, out, result):
            if native:
                finish = self.finish(noise, part.shape[0])
                _, summed = finish_gradient(part, y, finish, want_bias, target)
            else:
                before = dropout(part, self.p, noise)
                target.copy_(before if y is None else self._through_relu(before, y))
                summed = target.sum(0) if want_bias else None
            total = summed if total is None else total + required(summed)
        return result, total

    def _through_relu(self, gradient: Tensor, out: Tensor) -> Tensor:
        return torch.where(out > 0, gradient, gradient * self.slope)

    def _parts(
        self, gradient: Tensor, out: Tensor | None, result: Tensor
    ) -> list[tuple[Tensor, Tensor | None, Tensor, Noise | None]]:
        """Cut frames into what one call of a kernel does: all steps at once where no noise tells them apart."""
        if len(gradient) > 1 and self.noises is None and gradient.is_contiguous() and result.is_contiguous():
            return [(gradient.flatten(0, 1), None if out is None else out.flatten(0, 1), result.flatten(0, 1), None)]
        return [
            (gradient[t], None if out is None else out[t], result[t], self.noise(t)) for t in range(gradient.shape[0])
        ]


Ending.NONE = Ending()


@dataclass(eq=False)
class Product:
    """x·wᵀ of frames with a bias, an addend and an ending behind it; w = theta·weight + (1-theta)·I.

    Attributes:
        kept: what backward needs beside x and the weight.
    """

    ending: Ending
    theta: float = 1.0
    kept: tuple[Tensor | None, ...] = ()

    def forward(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        add: Tensor | None = None,
        out: Tensor | None = None,
        *,
        mark: bool = False,
    ) -> Tensor:
        """Return [steps, rows, outputs].

        Args:
            x: [steps, rows, inputs].
            weight: [outputs, inputs].
            add: [steps, rows, outputs].
            out: where the result is written.
            mark: whether a backward will follow.
        """
        if out is None:
            out = empty((*x.shape[:2], weight.shape[0]), x.dtype, x.device)
        kept = []
        for step, (rows, target) in self._parts(x, out):
            addend = _part(add, step)
            noise = self.ending.noise(step or 0)
            if usable(rows, weight, bias, addend, target):
                finish = self.ending.finish(noise, rows.shape[0])
                rows = rows_contiguous(rows)
                _, bits = product(rows, weight, bias, addend, finish, mark, target, self.theta)
                kept.append(bits)
                continue
            y = functional.linear(rows, mixed(weight, self.theta), bias)
            y = y if addend is None else y + addend
            if self.ending.relu:
                y = functional.leaky_relu(y, self.ending.slope)
            target.copy_(dropout(y, self.ending.p, noise))
            # no view: what is written to the rest of `out` does not count
            kept.append(alias(target) if mark and self.ending.relu else None)
        self.kept = tuple(kept)
        return out

    def backward(
        self,
        gradient: Tensor,
        kept: Sequence[Tensor | None],
        x: Tensor | None,
        weight: Tensor | None,
        *,
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
            kept: what `forward` left.
            x, weight: for the gradient of the weight, and of x.
            gx: [steps, rows, inputs], gets `factor` times the gradient of x, or has it added.
            masked: [steps, rows, outputs], gets the gradient before the ending.
            more: [steps, rows, inputs], gets `more_factor` times the gradient of x.
        """
        gw = gbias = None
        # as `forward` did it: all steps at once, or one after the other
        at_once = len(kept) == 1
        gradient = gradient.contiguous() if at_once and len(gradient) > 1 else gradient
        steps: Sequence[int | None] = [None] if at_once else range(len(gradient))
        for step, bits in zip(steps, kept, strict=True):
            g, own, to, into, also = (_part(frame, step) for frame in (gradient, x, gx, masked, more))
            noise = self.ending.noise(step or 0)
            g = rows_contiguous(required(g))
            if usable(g, own, weight, to, into, also):
                finish = self.ending.finish(noise, g.shape[0])
                found = product_gradient(
                    g,
                    bits,
                    None if own is None else rows_contiguous(own),
                    weight,
                    finish,
                    inputs=_width(own, weight),
                    gx=to,
                    accumulate=accumulate,
                    want_bias=want_bias,
                    masked=into,
                    theta=self.theta,
                    factor=factor,
                    more=also,
                    more_factor=more_factor,
                )
            else:
                found = self._torch(
                    g, bits, own, weight, noise, to, into, also, accumulate, want_bias, factor, more_factor
                )
            gw = found[0] if gw is None else gw + required(found[0])
            gbias = found[1] if gbias is None else gbias + required(found[1])
        return gw, gbias

    def _torch(
        self,
        g: Tensor,
        out: Tensor | None,
        x: Tensor | None,
        weight: Tensor | None,
        noise: Noise | None,
        gx: Tensor | None,
        masked: Tensor | None,
        more: Tensor | None,
        accumulate: bool,
        want_bias: bool,
        factor: float,
        more_factor: float,
    ) -> tuple[Tensor | None, Tensor | None]:
        g = dropout(g, self.ending.p, noise)
        if self.ending.relu and out is not None:
            g = self.ending._through_relu(g, out)
        if masked is not None:
            masked.copy_(g)
        if gx is not None and weight is not None:
            back = g @ mixed(weight, self.theta)
            if more is not None:
                more.copy_(back * more_factor)
            _ = gx.add_(back, alpha=factor) if accumulate else gx.copy_(back * factor)
        gw = None if x is None else (g.t() @ x) * self.theta
        return gw, g.sum(0) if want_bias else None

    def _parts(self, x: Tensor, out: Tensor) -> list[tuple[int | None, tuple[Tensor, Tensor]]]:
        if len(x) == 1 or (self.ending.noises is None and x.is_contiguous() and out.is_contiguous()):
            return [(None, (x.flatten(0, 1), out.flatten(0, 1)))]
        return [(step, (x[step], out[step])) for step in range(x.shape[0])]


def mixed(weight: Tensor, theta: float) -> Tensor:
    """Return theta·weight + (1-theta)·I."""
    if theta == 1.0:
        return weight
    return torch.lerp(torch.eye(weight.shape[0], dtype=weight.dtype, device=weight.device), weight, theta)


def _part(frames: Tensor | None, step: int | None) -> Tensor | None:
    if frames is None:
        return None
    return frames.flatten(0, 1) if step is None else frames[step]


def _width(x: Tensor | None, weight: Tensor | None) -> int:
    """Return how many inputs a product has."""
    if weight is not None:
        return int(weight.shape[1])
    return 0 if x is None else int(x.shape[1])
