"""A layer of one's own that is not whole says so, when it is made or in one sentence when it is used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from trisect.errors import ConfigError
from trisect.graph.adjacency import Adjacency
from trisect.nn.base import Layer, Temporal
from trisect.nn.temporal.dynamic import DynamicLayer
from trisect.views.view import View


class Lacking(Layer):
    in_channels = out_channels = 3


class Whole(Lacking):
    def forward(self, x: Tensor, g: View) -> Tensor:
        return x


class LackingAlongTime(DynamicLayer):
    def initial_state(self, rows: int, **like: Any) -> tuple[Tensor, ...]:
        return ()


def graph() -> View:
    return View.whole(Adjacency.from_csr(torch.tensor([0, 1, 2]), torch.tensor([1, 0], dtype=torch.int32), None, 2))


@pytest.mark.parametrize("kind", [Lacking, LackingAlongTime])
def test_a_layer_without_forward(kind: type[Layer | DynamicLayer]) -> None:
    x = torch.ones(2, 3)
    with pytest.raises(ConfigError, match=rf"{kind.__name__} has no forward\(x, g\); define it"):
        kind()(x, graph())
    assert Whole()(x, graph()).equal(x)


def test_parts_along_time_name_what_they_lack() -> None:
    lacking = type("Lacking", (Temporal,), {})
    with pytest.raises(TypeError, match=r"abstract.*initial_state"):
        lacking()
