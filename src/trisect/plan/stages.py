"""Where stages begin: contiguous layers, the most expensive stage as cheap as it can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from trisect.views.trace import LayerTrace


def stage_bounds(costs: Sequence[float], stages: int) -> list[int]:
    """Give where stages begin, so that the most expensive stage is as cheap as it can be (contiguous, none empty).

    Where a single layer is as expensive as several others together, these still are cut evenly: of all cuts whose most
    expensive stage is as cheap, the one with the least sum of squares is taken.
    """
    prefix = [0.0, *accumulate(costs)]
    worst, _ = _cut(prefix, stages, max, float("inf"))
    _, bounds = _cut(prefix, stages, lambda before, cost: before + cost * cost, worst * (1.0 + 1e-12))
    return bounds


def _cut(
    prefix: Sequence[float], stages: int, join: Callable[[float, float], float], most: float
) -> tuple[float, list[int]]:
    """Give the least of what stages come to when they are joined, none more expensive than `most`, and where they
    begin.
    """
    count = len(prefix) - 1
    # best[s][i]: the least that the first i layers come to as s stages
    best = [[float("inf")] * (count + 1) for _ in range(stages + 1)]
    start = [[0] * (count + 1) for _ in range(stages + 1)]
    best[0][0] = 0.0
    for s in range(1, stages + 1):
        for i in range(s, count + 1):
            for j in range(s - 1, i):
                cost = prefix[i] - prefix[j]
                if cost <= most and (joined := join(best[s - 1][j], cost)) < best[s][i]:
                    best[s][i], start[s][i] = joined, j
    bounds = [count]
    for s in range(stages, 0, -1):
        bounds.append(start[s][bounds[-1]])
    return best[stages][count], bounds[::-1]


def layer_costs(layers: Sequence[LayerTrace], *, aggregated: bool) -> list[float]:
    """Say what each layer costs against the others: products of a row with the weights, and the rows that it reads.

    Of a static model twenty neighbours a row are assumed, and an element of a neighbour takes as long as about ten
    products (measured with float32, hidden 100, one thread); a first layer whose aggregation is kept reads none. Of a
    dynamic model all weights count, and twenty for each element that is read.

    Args:
        aggregated: whether the sum of the features is kept.
    """
    if any(layer.state is not None for layer in layers):
        return [float(layer.parameters) + 20.0 * layer.in_channels for layer in layers]
    reads = [layer.spatial and not (number == 0 and aggregated) for number, layer in enumerate(layers)]
    return [
        float(layer.parameters) + (200.0 * layer.message_channels if read else 0.0)
        for layer, read in zip(layers, reads, strict=True)
    ]
