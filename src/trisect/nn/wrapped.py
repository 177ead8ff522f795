"""`Wrapped`: a module of the user's own, `forward(x, g)`, as the one layer of a model."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trisect.errors import ConfigError
from trisect.nn.base import Layer

if TYPE_CHECKING:
    from trisect.views.view import View


class Wrapped(Layer):
    """A module as a whole: it can be cut by vertex and run in blocks; to be cut by layer takes a list of layers.

    Args:
        module: called as module(x, g), x [..., rows, in_channels].
        in_channels: width of the features.
        view: of a few rows, on which the module is tried once, to see how wide its output is.
    """

    def __init__(self, module: nn.Module, in_channels: int, view: View) -> None:
        super().__init__()
        self.module, self.in_channels = module, in_channels
        self.out_channels, self.recurrences = self._tried(view)

    def _tried(self, view: View) -> tuple[int, int]:
        """Return how wide the output is, and how often the module asks for `recur`."""
        x = torch.zeros(len(view.steps), view.rows, self.in_channels)
        x = x if view.along is not None else x[0]
        like: Any = next(self.module.parameters(), x)
        buffers = copy.deepcopy(dict(self.module.named_buffers()))
        view.enter(0)
        with torch.no_grad():
            try:
                out = self.module(x.to(like), view)
            except Exception as error:
                raise ConfigError(
                    f"{type(self.module).__name__} failed on {view.rows} rows of {self.in_channels} channels"
                    f" ({type(error).__name__}: {error}); a module is called as module(x, g), g a trisect.View."
                ) from error
            for name, buffer in self.module.named_buffers():
                buffer.copy_(buffers[name])
        if not isinstance(out, Tensor) or out.shape[:-1] != x.shape[:-1]:
            shape = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ConfigError(
                f"{type(self.module).__name__} gives {shape} for x of shape {list(x.shape)}; return a row for each row."
            )
        return int(out.shape[-1]), view.recurrences

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Leave the parameters as the user made them."""

    def forward(self, x: Tensor, g: View) -> Tensor:
        """Return module(x, g), [..., rows, out_channels]."""
        out: Tensor = self.module(x, g)
        return out

    def __repr__(self) -> str:
        return f"Wrapped({self.module})"
