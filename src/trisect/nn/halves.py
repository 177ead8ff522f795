"""A model as a chain of halves: something may cross ranks between any two of them.

A spatial layer prepares what its neighbours read and combines what it reads of them; some exchanges put a half between
the two, which sums neighbours up. A recurrent part works along time.
A layer whose weight evolves lets the weight evolve first and then convolves with it. A layer that reads no neighbours
is one half, and so is the head of a dynamic model. The last half hands the outputs to the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from trisect.nn.base import Layer
from trisect.nn.temporal.dynamic import DynamicLayer, SpatialTemporal
from trisect.nn.temporal.evolving import Evolving

AnyLayer = Layer | DynamicLayer


class HalfKind(Enum):
    """What a half does with rows: each kind is one step of a layer."""

    LOCAL = "local"
    PREPARE = "prepare"
    AGGREGATE = "aggregate"
    COMBINE = "combine"
    SUMMARY = "summary"
    TEMPORAL = "temporal"
    OUTPUT = "output"


@dataclass(frozen=True)
class Half:
    """One half of one layer.

    Attributes:
        layer: the number of the layer in the model; the head is the layer after the last, the output the one after it.
        aggregated: of a combine, whether the sum over neighbours is kept from before the first epoch.
    """

    kind: HalfKind
    layer: int
    aggregated: bool = False

    def __str__(self) -> str:
        return f"{self.kind.value} {self.layer}"


def halves_of(layers: Sequence[AnyLayer], *, head: bool, aggregated: bool = False) -> tuple[Half, ...]:
    """Return the halves of all layers of a model, in order.

    Args:
        layers: the layers of the model; those of other stages may lie on the meta device.
        head: whether a head follows the last layer.
        aggregated: whether the first layer finds the sum over its neighbours ready.
    """
    halves: list[Half] = []
    for number, layer in enumerate(layers):
        ready = aggregated and number == 0
        if isinstance(layer, Evolving):
            if layer.summary is not None:
                halves.append(Half(HalfKind.SUMMARY, number))
            halves.append(Half(HalfKind.TEMPORAL, number))
        if not reads_neighbours(layer):
            halves.append(Half(HalfKind.LOCAL, number))
        else:
            halves += [] if ready else [Half(HalfKind.PREPARE, number)]
            halves.append(Half(HalfKind.COMBINE, number, ready))
        if isinstance(layer, SpatialTemporal):
            halves.append(Half(HalfKind.TEMPORAL, number))
    if head:
        halves.append(Half(HalfKind.LOCAL, len(layers)))
    return (*halves, Half(HalfKind.OUTPUT, len(layers) + 1))


def reads_neighbours(layer: AnyLayer) -> bool:
    """Whether a layer reads rows of other vertices."""
    if isinstance(layer, SpatialTemporal):
        return layer.spatial.spatial
    return layer.spatial if isinstance(layer, Layer) else True


def spatial_part(layer: AnyLayer) -> Layer | None:
    """Return the part of a layer that works inside a snapshot; None where the layer's weight evolves."""
    if isinstance(layer, SpatialTemporal):
        return layer.spatial
    return layer if isinstance(layer, Layer) else None
