"""`Wrapped`: a module of the user's own, `forward(x, g)`, as the one layer of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from trisect.nn.base import Layer

if TYPE_CHECKING:
    from trisect.views.view import View


class Wrapped(Layer):
    """A module as a whole: it can be cut by vertex and run in blocks; to be cut by layer takes a list of layers.

    Args:
        module: called as module(x, g), x [..., rows, in_channels].
        in_channels: width of the features.
        out_channels: width of the output, as a trace of the module has it.
    """

    def __init__(self, module: nn.Module, in_channels: int, out_channels: int = 0) -> None:
        super().__init__()
        self.module, self.in_channels, self.out_channels = module, in_channels, out_channels

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Leave the parameters as the user made them."""

    def forward(self, x: Tensor, g: View) -> Tensor:
        """Return module(x, g), [..., rows, out_channels]."""
        out: Tensor = self.module(x, g)
        return out

    def __repr__(self) -> str:
        return f"Wrapped({self.module})"
