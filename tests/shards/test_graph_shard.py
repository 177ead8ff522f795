"""The first layer's sums over neighbours, made of some features at once, are those of all features."""

from __future__ import annotations

import torch

from trisect.shards.graph_shard import GraphShard, single_part


def test_sums_of_some_features_at_once_are_those_of_all(community):
    x = community.features().double()
    adjacency = community.normalised("symmetric", self_loops=True, dtype=torch.float64)
    widths: list[int] = []

    def fetch(some):
        widths.append(some.shape[1])
        return some.contiguous()

    whole, pieces = (GraphShard(single_part(adjacency), lambda: x, None) for _ in range(2))
    whole.keep_aggregated()
    pieces.keep_aggregated(fetch, at_once=32)
    assert widths == [32, 32]
    torch.testing.assert_close(pieces.aggregated(range(1)), whole.aggregated(range(1)), rtol=0.0, atol=0.0)
