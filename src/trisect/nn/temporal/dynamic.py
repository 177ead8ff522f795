"""Dynamic models: layers of a spatial part inside each snapshot and a temporal part along time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from trisect.errors import ConfigError
from trisect.nn.base import Layer, Model, Temporal
from trisect.nn.initial import Drawn
from trisect.ops.elementwise import twice

if TYPE_CHECKING:
    from trisect.views.view import View


class DynamicLayer(Drawn):
    """One layer of a dynamic model: verbs inside a snapshot, and `g.recur` along time."""

    in_channels: int
    out_channels: int

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

    def forward(self, x: Tensor, g: View) -> Tensor:
        """x [steps, rows, in_channels] → [steps, rows, out_channels]."""
        if not self.concat:
            return g.recur(self.temporal, self.spatial(x, g))
        x, beside = twice(x)
        return g.recur(self.temporal, self.spatial(x, g), beside)


class DynamicModel(Model):
    """A model of dynamic layers, which needs a timeline; see `Model`."""
