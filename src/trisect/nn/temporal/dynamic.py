"""Dynamic models: layers of a spatial part inside each snapshot and a temporal part along time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from trisect.errors import ConfigError
from trisect.nn.base import Layer, Normalisation, Temporal, check_widths, edge_channels_of
from trisect.nn.initial import generator_for
from trisect.ops.elementwise import twice

if TYPE_CHECKING:
    from trisect.views.view import View


class DynamicLayer(nn.Module, ABC):
    """One layer of a dynamic model: verbs inside a snapshot, and `g.recur` along time."""

    in_channels: int
    out_channels: int

    @abstractmethod
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the parameters anew, from the generator or from torch's own."""

    def forward(self, x: Tensor, g: View) -> Tensor:
        """Return the layer's output [steps, rows, out_channels]; all else than x is asked of the view.

        Args:
            x: [steps, rows, in_channels]; the steps may share memory.
            g: of these rows and steps.
        """
        raise ConfigError(f"{type(self).__name__} has no forward(x, g); define it.")


class SpatialTemporal(DynamicLayer):
    """A spatial layer in each snapshot, then a recurrent part for each vertex: z = temporal(y) or temporal([y ‖ x]).

    Args:
        spatial: any `Layer` that reads no shared inputs.
        temporal: reads spatial.out_channels, or with `concat` spatial.out_channels + spatial.in_channels.
        concat: whether the temporal part reads the layer's input beside the convolved frame (CD-GCN).
    """

    def __init__(self, spatial: Layer, temporal: Temporal, *, concat: bool = False) -> None:
        super().__init__()
        if spatial.reads:
            raise ConfigError(f"spatial layer {spatial} reads shared inputs {spatial.reads}; a dynamic layer has none.")
        width = spatial.out_channels + (spatial.in_channels if concat else 0)
        if temporal.in_channels != width:
            raise ConfigError(
                f"temporal part {temporal} reads {temporal.in_channels} channels, but the spatial part gives {width}; "
                "make them equal."
            )
        self.spatial = spatial
        self.temporal = temporal
        self.concat = concat
        self.in_channels = spatial.in_channels
        self.out_channels = temporal.out_channels

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the spatial part's parameters first, then the temporal part's."""
        self.spatial.reset_parameters(generator)
        self.temporal.reset_parameters(generator)

    def forward(self, x: Tensor, g: View) -> Tensor:
        """x [steps, rows, in_channels] → [steps, rows, out_channels]."""
        if not self.concat:
            return g.recur(self.temporal, self.spatial(x, g))
        x, beside = twice(x)
        return g.recur(self.temporal, self.spatial(x, g), beside)


class DynamicModel(nn.Module):
    """Dynamic layers in order, an optional head, and the form of the adjacency that they want.

    Args:
        layers: each layer's in_channels is the out_channels of the one before.
        head: a layer that reads no neighbours, applied to each step's output (logits); None: the last layer's output.
        normalisation, self_loops: how each snapshot is to be prepared.
    """

    head: Layer | None

    def __init__(
        self,
        layers: Sequence[DynamicLayer],
        head: Layer | None = None,
        *,
        normalisation: Normalisation = "symmetric",
        self_loops: bool = True,
    ) -> None:
        super().__init__()
        if not layers:
            raise ConfigError("a dynamic model needs at least one layer; layers is empty.")
        check_widths([*layers, *([] if head is None else [head])])
        if getattr(head, "dropout", 0.0):
            raise ConfigError(f"head {head} drops features; set dropout on the last layer instead.")
        self.layers = nn.ModuleList(layers)
        self.head = head
        self.normalisation: Normalisation = normalisation
        self.self_loops = self_loops

    @property
    def stack(self) -> list[DynamicLayer]:
        """Return the layers as a typed list."""
        return cast("list[DynamicLayer]", list(self.layers))

    @property
    def in_channels(self) -> int:
        """Return the width of the input."""
        return self.stack[0].in_channels

    @property
    def out_channels(self) -> int:
        """Return the width of the output."""
        return self.stack[-1].out_channels if self.head is None else self.head.out_channels

    @property
    def edge_channels(self) -> int:
        """Return the number of features of an edge that layers read; 0: no layer reads any."""
        return edge_channels_of(self.modules())

    def reset_parameters(self, seed: int) -> None:
        """Draw all parameters anew: layer i from (seed, i), the head as the layer after the last."""
        for number, layer in enumerate(self.stack):
            layer.reset_parameters(generator_for(seed, number))
        if self.head is not None:
            self.head.reset_parameters(generator_for(seed, len(self.layers)))

    def forward(self, x: Tensor, g: View) -> Tensor:
        """Run all layers and the head on a view: x [steps, rows, in_channels] → [steps, rows, out_channels]."""
        for number, layer in enumerate(self.stack):
            g.enter(number)
            x = layer(x, g)
        if self.head is None:
            return x
        g.enter(len(self.layers), draws=False)
        out: Tensor = self.head(x, g)
        return out
