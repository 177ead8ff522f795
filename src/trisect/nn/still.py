"""A static model in each snapshot of a timeline, in the form that a timeline is cut with: nothing goes along time."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from trisect.errors import LayoutError
from trisect.nn.base import Model, State
from trisect.nn.dynamic import DynamicModel, SpatialTemporal
from trisect.nn.mproduct import MProduct


class Still(MProduct):
    """A temporal part that hands each frame on: a window of one step, and no state."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, window=1, kind="ones")

    def forward(self, frames: Sequence[Tensor], state: State, first_step: int) -> tuple[Tensor, State]:
        """The frames as they are."""
        return frames[0], state


def as_dynamic(model: Model) -> DynamicModel:
    """The same layers (the same parameters), each with a temporal part that does nothing."""
    for layer in model.stack:
        if layer.reads or not layer.spatial:
            what = f"reads {layer.reads[0]} of an earlier layer" if layer.reads else "reads no neighbours"
            raise LayoutError(
                f"The model's layer {layer} {what}, and a timeline is cut only with static models whose layers are all "
                "convolutions; set model.name to one of these (gcn, sage, gat) or to a dynamic model (cd-gcn), or "
                "leave the layout out."
            )
    layers = [SpatialTemporal(layer, Still(layer.out_channels)) for layer in model.stack]
    return DynamicModel(layers, normalisation=model.normalisation, self_loops=model.self_loops)
