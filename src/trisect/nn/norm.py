"""Norms: `LayerNorm` of each row for itself, and `BatchNorm`, whose statistics are those of all rows of a step."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from trisect.errors import ConfigError
from trisect.nn.base import Layer
from trisect.ops._finish import Finish
from trisect.ops.batch_norm import Halves, moments, standardise

if TYPE_CHECKING:
    from trisect.views.view import View

Norm = Literal["none", "layer", "batch"]


class BatchNorm(Layer):
    """Batch norm over the rows of a step, Ioffe & Szegedy (1502.03167), as torch.nn.BatchNorm1d has it.

    out = (x - mean) / sqrt(variance + eps) · weight + bias. In training mean and variance are those of all rows of each
    step, whatever the cut; running statistics follow them, and are what evaluation uses. On a timeline each step
    updates these once, in the order of steps.

    Args:
        channels: width, in and out.
        eps: added to the variance.
        momentum: the weight of a step's statistics in the running ones; None: their mean over all steps so far.
        affine: whether there are weight and bias.
        track_running_stats: whether there are running statistics; without, evaluation normalises by its own rows.

    Shapes: x [..., rows, channels] → the same; weight, bias, running_mean, running_var [channels].
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        channels: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__()
        self.in_channels = self.out_channels = channels
        self.eps, self.momentum, self.affine, self.track_running_stats = eps, momentum, affine, track_running_stats
        self.weight = self.drawn("weight", channels, start=nn.init.ones_) if affine else None
        self.bias = self.drawn("bias", channels, start=nn.init.zeros_) if affine else None
        self.register_buffer("running_mean", torch.zeros(channels) if track_running_stats else None)
        self.register_buffer("running_var", torch.ones(channels) if track_running_stats else None)
        tracked = torch.tensor(0, dtype=torch.int64) if track_running_stats else None
        self.register_buffer("num_batches_tracked", tracked)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set weight and bias to the identity, and forget all statistics."""
        super().reset_parameters()
        for name, buffer in self.named_buffers():
            buffer.fill_(1.0 if name == "running_var" else 0.0)

    def forward(self, x: Tensor, g: View, *, relu: bool = False, p: float = 0.0) -> Tensor:
        """Return dropout(relu(out)) of x [..., rows, channels], in the same passes over memory.

        Args:
            relu: whether a relu follows.
            p: with which probability each number is dropped behind that; none is in evaluation.
        """
        halves, frames = None, g.frames(x)
        if self.running_mean is not None and self.running_var is not None and not (self.training and g.trains):
            mean, variance = self.running_mean.double()[None, None], self.running_var.double()[None, None]
            mean, variance = (value.expand(len(frames), 1, -1) for value in (mean, variance))
        else:
            halves = Halves()
            mean, variance = self._of_rows(x, g, halves)
        factor = torch.rsqrt(variance + self.eps)
        if self.weight is not None:
            factor = factor * self.weight.double()
        # rounded to the type of x the mean is taken from x; the rest of it goes with the bias
        centre = mean.detach().to(x.dtype)
        rest = (centre.double() - mean) * factor
        bias = rest if self.bias is None else rest + self.bias.double()
        noises = g.chance() if p > 0.0 else None
        finishes = [
            Finish.of(relu, p, None if noises is None else noises[step], frames.shape[1]) for step in range(len(frames))
        ]
        y = standardise(frames, centre, factor, bias, halves, finishes)
        return y if x.dim() == 3 else y.squeeze(0)

    def _of_rows(self, x: Tensor, g: View, halves: Halves) -> tuple[Tensor, Tensor]:
        """Return mean and variance of all rows of each step, float64 [steps, 1, channels]."""
        shift = None
        if self.running_mean is not None and not g.stale:
            shift = self.running_mean.detach().to(torch.float64, copy=True)
        total = g.frames(g.sum(x, partial(moments, shift=shift, halves=halves)))
        count = total[..., -1:]
        if count.numel() and float(count.detach().min()) < 2.0:
            raise ConfigError(
                f"{self} has one row in training, of which there is no variance; give it at least two, or use a layer"
                " norm."
            )
        mean, square = (total[..., :-1] / count).chunk(2, -1)
        variance = (square - mean.square()).clamp(min=0.0)
        mean = mean if shift is None else mean + shift
        if self.training and g.trains and self.running_mean is not None:
            with torch.no_grad():
                g.update(self, torch.cat([mean, variance * (count / (count - 1.0))], 1))
        return mean, variance

    def weights(self, steps: int) -> tuple[float, Tensor]:
        """Return with which weight running statistics stay when so many steps come in, and those of these, in order."""
        if self.momentum is None:
            before = 0 if self.num_batches_tracked is None else int(self.num_batches_tracked)
            each = 1.0 / (before + steps)
            return before * each, torch.full((steps,), each, dtype=torch.float64)
        left = (1.0 - self.momentum) ** torch.arange(steps, -1, -1, dtype=torch.float64)
        return float(left[0]), self.momentum * left[1:]

    @torch.no_grad()
    def update(self, total: Tensor, steps: int) -> None:
        """Update running statistics by steps.

        Args:
            total: sum of their means and variances, [2, channels], each step with its weight of `weights`.
            steps: how many they are.
        """
        keep, _ = self.weights(steps)
        for running, part in zip((self.running_mean, self.running_var), total.unbind(), strict=True):
            if running is not None:
                running.copy_(running.double() * keep + part.double())
        if self.num_batches_tracked is not None:
            self.num_batches_tracked += steps

    def __repr__(self) -> str:
        usual = {"eps": 1e-5, "momentum": 0.1, "affine": True, "track_running_stats": True}
        other = (f", {name}={getattr(self, name)}" for name, value in usual.items() if getattr(self, name) != value)
        return f"BatchNorm({self.in_channels}{''.join(other)})"


def norm_of(kind: Norm, channels: int) -> nn.LayerNorm | BatchNorm | None:
    """Return a norm by name; None for "none"."""
    return None if kind == "none" else nn.LayerNorm(channels) if kind == "layer" else BatchNorm(channels)


def normalised(
    x: Tensor, norm: nn.LayerNorm | BatchNorm | None, g: View, *, relu: bool = False, p: float = 0.0
) -> Tensor:
    """Return dropout(relu(norm(x))) of x [..., rows, channels]."""
    if isinstance(norm, BatchNorm):
        return norm(x, g, relu=relu, p=p)  # type: ignore[no-any-return]
    if norm is None:
        return g.dropout(torch.relu(x) if relu else x, p)
    return g.normalise(x, norm, relu=relu, p=p)
