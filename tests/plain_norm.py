"""`PlainNorm`: batch norm by sums of ones, of rows and of their squares, in plain operations of torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trisect.nn import BatchNorm


class PlainNorm(BatchNorm):
    """What a batch norm is, on a `PlainView` or a `StaleView`, whose rows each have their own sums."""

    def forward(self, x: Tensor, g: Any, *, relu: bool = False, p: float = 0.0) -> Tensor:
        """Return dropout(relu(norm(x))), and update running statistics in training, step by step."""
        assert self.running_mean is not None
        assert self.running_var is not None
        mean, variance = self.running_mean, self.running_var
        if g.trains:
            count = g.sum(torch.ones_like(x[..., :1]))
            mean = g.sum(x) / count
            variance = g.sum(x**2) / count - mean**2
            with torch.no_grad():
                unbiased = variance * count / (count - 1)
                for step in range(len(g.frames(x))):
                    for running, own in ((self.running_mean, mean), (self.running_var, unbiased)):
                        row = g.frames(own)[step, g.last_row if own.shape[-2] > 1 else 0]
                        running.copy_((1 - self.momentum) * running + self.momentum * row)  # type: ignore[operator]
        y = (x - mean) / (variance + self.eps).sqrt() * self.weight + self.bias
        return g.dropout(torch.relu(y) if relu else y, p)  # type: ignore[no-any-return]


def with_plain_norms(model: nn.Module) -> nn.Module:
    """Let all batch norms of a model be plain ones."""
    for module in model.modules():
        if isinstance(module, BatchNorm):
            module.__class__ = PlainNorm
    return model
