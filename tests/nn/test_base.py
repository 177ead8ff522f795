"""A layer of one's own that is not whole says so, when it is made or in one sentence when it is used."""

from __future__ import annotations

import pytest
import torch

from trisect.errors import ConfigError
from trisect.graph.adjacency import Adjacency
from trisect.nn.base import Context, Layer, Temporal
from trisect.nn.temporal.dynamic import DynamicLayer
from trisect.ops.message import Message


class Half(Layer):
    in_channels = out_channels = 3


class Whole(Half):
    def combine(self, message: Message, x: torch.Tensor, adjacency: Adjacency, context: Context) -> torch.Tensor:
        return x


def graph() -> Adjacency:
    return Adjacency.from_csr(torch.tensor([0, 1, 2]), torch.tensor([1, 0], dtype=torch.int32), None, 2)


def test_a_spatial_layer_without_combine() -> None:
    x = torch.ones(2, 3)
    with pytest.raises(ConfigError, match="Half reads neighbours and has no combine"):
        Half()(x, graph(), Context())
    assert Whole()(x, graph(), Context()).equal(x)


def test_a_layer_without_its_known_aggregation() -> None:
    with pytest.raises(ConfigError, match="Whole has no combine_aggregated"):
        Whole().combine_aggregated(torch.ones(2, 3), torch.ones(2, 3), Context())


@pytest.mark.parametrize("kind", [Temporal, DynamicLayer])
def test_parts_along_time_name_what_they_lack(kind: type) -> None:
    lacking = type("Lacking", (kind,), {})
    with pytest.raises(TypeError, match=r"abstract.*initial_state"):
        lacking()
