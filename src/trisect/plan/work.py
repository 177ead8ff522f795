"""What a part of a layer has to do: operations, bytes that are gathered, bytes that are gone through, calls.

All are counted for one row, one entry of the matrix, one step or one call, so that the work of any cell is a sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from trisect.nn.temporal.dynamic import SpatialTemporal
from trisect.nn.temporal.evolving import Evolving
from trisect.plan.cluster import UNRATED, Device
from trisect.views.plan import Plan
from trisect.views.trace import LayerTrace

# Attention and the like read each neighbour's row for the score, the weight and the sum.
_PASSES_OF_OTHERS = 3.0
# Bytes of a pair that is drawn: two ends, and where it would stand among those that exist.
_DRAWN = 40.0
# Gates of a recurrent part: written and read, each way, in units of its output.
_GATES = 10.0


@dataclass(frozen=True)
class Work:
    """Some work, in units that a device has a rate for.

    Attributes:
        flops: dense operations a row.
        gathered: bytes a row that is gathered has, for each entry; `passes`: how often all entries are gone through.
        touched: bytes a row that elementwise work reads and writes.
        once: dense operations a step, whatever the rows.
        calls: how often something is started, whatever the size; `step_calls`: the same for each step.
    """

    flops: float = 0.0
    gathered: float = 0.0
    passes: float = 0.0
    touched: float = 0.0
    once: float = 0.0
    calls: float = 0.0
    step_calls: float = 0.0

    def seconds(
        self,
        device: Device,
        *,
        rows: float,
        entries: float,
        table: float,
        steps: int,
        ratios: tuple[float, float, float] = (1.0, 1.0, 1.0),
    ) -> float:
        """Give the time of the work itself, calls apart.

        Args:
            rows, entries: of a step.
            table: rows from which entries are gathered.
            ratios: how many times as long rows, entries (and calls) take as the device's rates say.
        """
        total = self.flops * rows / device.flops + self.touched * rows / device.elementwise + self.once / device.flops
        total *= ratios[0]
        if self.passes and self.gathered:
            rate = device.gather_rate(round(self.gathered), self.gathered * table)
            total += ratios[1] * self.passes * entries * self.gathered / rate
        return total * steps

    def overhead(self, device: Device, steps: int) -> float:
        """Give the time that calls take, whatever their size."""
        return self.calls * device.half + self.step_calls * device.step * steps


def work_of(plan: Plan, number: int, part: str, *, back: bool) -> Work:
    """Return the work of a part of a layer, forward or backward; see `views.exchange.Work` for the parts."""
    size = plan.dtype.itemsize
    if part == "loss":
        return Work(touched=(4.0 if back else 3.0) * size * plan.out_channels, calls=2.0, step_calls=1.0)
    # no gradient of the data's features is wanted
    dense = (1.0 if number == 0 else 2.0) if back else 1.0
    factor = 2.0 if back else 1.0
    many = 1.0 if plan.timeline else 0.0
    if number >= len(plan.layers):
        width = plan.layers[-1].out_channels + plan.out_channels
        return Work(flops=2.0 * float(plan.head or 0) * factor, touched=factor * size * width, calls=1.0)
    layer = plan.layers[number]
    if part == "recur":
        return _temporal(layer, size, factor)
    if part == "top":
        return Work(touched=factor * size * layer.in_channels, calls=1.0, step_calls=2.0)
    if part == "local":
        width = layer.in_channels + layer.out_channels
        return Work(flops=2.0 * layer.parameters * dense, touched=factor * size * width, calls=1.0, step_calls=many)
    product = 2.0 * spatial_weights(layer) * dense
    first = layer.message_channels != layer.in_channels
    if part == "before":
        touched = size * (layer.message_channels + layer.in_channels) if first else 0.0
        return Work(flops=product if first else 0.0, touched=factor * touched, calls=0.5)
    if part == "sum":
        return Work(gathered=size * layer.message_channels / plan.parts, passes=1.0, calls=1.0, step_calls=many)
    ready = part == "ready"
    sums = 0.0 if ready or layer.across == "redistribute" else (1.0 if layer.collects else _PASSES_OF_OTHERS)
    return Work(
        flops=product if ready or not first else 0.0,
        gathered=size * layer.message_channels,
        passes=sums,
        touched=factor * size * (layer.inside_channels * 2.0 + layer.message_channels),
        calls=1.0,
        step_calls=many,
    )


def kind_of(layer: nn.Module, trace: LayerTrace) -> str:
    """Return the name by which the speed of a layer is kept: of its class, and of its temporal part."""
    if isinstance(layer, SpatialTemporal):
        return f"{type(layer.spatial).__name__}+{type(layer.temporal).__name__}"
    if isinstance(layer, Evolving):
        return f"{type(layer).__name__}{layer.variant}"
    name = type(layer).__name__
    return name if trace.spatial else f"{UNRATED}{name}"


def spatial_weights(layer: LayerTrace) -> float:
    """Give how many numbers of a layer a row is multiplied with in its spatial part."""
    if layer.state is None:
        return float(layer.parameters)
    return float(layer.in_channels * layer.inside_channels)


def _temporal(layer: LayerTrace, size: int, factor: float) -> Work:
    """The temporal half: gates of each vertex, frames of a window, or a weight matrix that evolves."""
    if layer.state == "weight":
        # six matrices of the weight's rows are multiplied with it
        return Work(once=2.0 * factor * layer.parameters * layer.out_channels, calls=1.0, step_calls=4.0 * factor)
    if layer.state == "window":
        return Work(touched=factor * size * layer.out_channels * (layer.window + 1), calls=1.0, step_calls=0.5)
    weights = max(0.0, layer.parameters - spatial_weights(layer))
    return Work(
        flops=2.0 * factor * weights, touched=factor * size * _GATES * layer.out_channels, calls=1.0, step_calls=0.5
    )


def pair_works(in_channels: int, channels: int, size: int, *, back: bool) -> tuple[Work, Work, Work]:
    """Return the work of a loss on pairs: on one row that they read, on one pair, and of drawing one.

    A row takes a product for each of the two ends that it may be. Of a pair both rows are read, in backward for each
    end. To draw one is to draw both ends and to look whether it exists.

    Args:
        channels: how wide is what the loss keeps of a pair.
    """
    factor = 2.0 if back else 1.0
    row = Work(flops=4.0 * factor * in_channels * channels, touched=2.0 * factor * size * channels)
    return row, Work(touched=2.0 * factor * size * channels), Work(touched=_DRAWN)
