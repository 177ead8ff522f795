"""What layers with attention share: heads, the features that they read, and the dropout of coefficients."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trisect.nn.conv.convolution import Convolution
from trisect.nn.initial import glorot_

if TYPE_CHECKING:
    from trisect.views.view import Neighbours, View


class Attending(Convolution):
    """A layer whose rows weigh what they read, in each head, by a softmax over it. Subclasses compute the scores.

    The adjacency's weights are not used; give it with self-loops.

    Args:
        in_channels: width of x.
        channels: width of one head.
        heads: how many.
        concat: heads side by side (out_channels = heads·channels), or their mean (out_channels = channels).
        negative_slope: of the leaky relu.
        attention_dropout: the probability that a coefficient is dropped; it is drawn for a pair of vertices.
        **options: of `Convolution`.

    Shapes: x [..., rows, in_channels] → [..., rows, out_channels]; weight [heads·channels, in_channels].
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        *,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        attention_dropout: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(in_channels, heads * channels if concat else channels, **options)
        self.channels = channels
        self.heads = heads
        self.concat = concat
        self.negative_slope = negative_slope
        self.attention_dropout = attention_dropout
        self.weight = nn.Parameter(torch.empty(heads * channels, in_channels))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weight by Glorot's rule, and set the bias to zero; subclasses draw theirs on top."""
        super().reset_parameters(generator)
        glorot_(self.weight, generator)

    def forward(self, x: Tensor, g: View) -> Tensor:
        """x [..., rows, in_channels] → [..., rows, out_channels]."""

        def mixed(near: Tensor, own: Tensor, at: Neighbours) -> Tensor:
            y = self.attend(near, own, at).view(-1, self.heads, self.channels)
            return y.flatten(1) if self.concat else y.mean(1)

        return self.after(g.gather(x, self.weight, then=mixed, width=self.out_channels), x, g)

    @abstractmethod
    def attend(self, near: Tensor, own: Tensor, at: Neighbours) -> Tensor:
        """Return the weighted sums of what rows read, [rows, heads·channels].

        Args:
            near: the features of all heads, [columns, heads·channels].
            own: the rows' own inputs, [rows, in_channels].
        """

    def dropped(self, at: Neighbours) -> dict[str, Any]:
        """Return the arguments of `ops.attend` and `attend_edges` that say which coefficients are dropped."""
        if self.attention_dropout == 0.0:
            return {}
        return {"dropout": self.attention_dropout, "noise": at.noise, "source_vertices": at.vertices}

    def _repr_options(self) -> str:
        return f", heads={self.heads}, concat={self.concat}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.channels}{self._repr_options()})"
