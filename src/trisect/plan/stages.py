"""Where stages begin: contiguous layers, the most expensive stage as cheap as it can be."""

from __future__ import annotations

from collections.abc import Sequence

from trisect.exchanges.facts import LayerFacts


def stage_bounds(costs: Sequence[float], stages: int) -> list[int]:
    """Give where stages begin, so that the most expensive stage is as cheap as it can be (contiguous, none empty)."""
    count = len(costs)
    prefix = [0.0]
    for cost in costs:
        prefix.append(prefix[-1] + cost)
    # best[s][i]: the least possible maximum when the first i layers form s stages
    best = [[float("inf")] * (count + 1) for _ in range(stages + 1)]
    cut = [[0] * (count + 1) for _ in range(stages + 1)]
    best[0][0] = 0.0
    for s in range(1, stages + 1):
        for i in range(s, count + 1):
            for j in range(s - 1, i):
                worst = max(best[s - 1][j], prefix[i] - prefix[j])
                if worst < best[s][i]:
                    best[s][i], cut[s][i] = worst, j
    bounds = [count]
    for s in range(stages, 0, -1):
        bounds.append(cut[s][bounds[-1]])
    return bounds[::-1]


def layer_costs(layers: Sequence[LayerFacts]) -> list[float]:
    """Say what each layer costs against the others: products of a row with the weights, and the rows that it reads.

    Of a static model twenty neighbours a row are assumed, and an element of a neighbour takes as long as about ten
    products (measured with float32, hidden 100, one thread); a first layer whose aggregation is kept reads none. Of a
    dynamic model all weights count, and twenty for each element that is read.
    """
    if any(layer.state is not None for layer in layers):
        return [float(layer.parameters) + 20.0 * layer.in_channels for layer in layers]
    reads = [layer.spatial and not (number == 0 and layer.preaggregates) for number, layer in enumerate(layers)]
    return [
        layer.in_channels * layer.out_channels + (200.0 * layer.message_channels if read else 0.0)
        for layer, read in zip(layers, reads, strict=True)
    ]
