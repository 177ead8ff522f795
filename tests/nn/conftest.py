"""A small graph with isolated vertices, and the comparison that all tests of the package use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.graph.build import adjacency_from_edges, normalise


@dataclass(frozen=True)
class Graph:
    """Edges src → dst and the features of the vertices, in float64."""

    vertices: int
    edge_index: Tensor
    x: Tensor

    def adjacency(self, kind: str = "symmetric", self_loops: bool = True) -> Adjacency:
        # with explicit weights, since a matrix without values is normalised in float32
        ones = torch.ones(self.edge_index.shape[1], dtype=torch.float64)
        plain = adjacency_from_edges(*self.edge_index, ones, self.vertices, dtype=torch.float64)
        return normalise(plain, kind, self_loops)


def make_graph(vertices: int, edges: int, features: int, seed: int) -> Graph:
    """A directed graph without loops and duplicates; the last two vertices have no edges."""
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randint(0, vertices - 2, (edges, 2), generator=generator)
    pairs = torch.unique(pairs[pairs[:, 0] != pairs[:, 1]], dim=0)
    x = torch.randn(vertices, features, generator=generator, dtype=torch.float64)
    return Graph(vertices, pairs.t().contiguous(), x)


@pytest.fixture
def graph() -> Graph:
    return make_graph(23, 90, 5, seed=0)


@pytest.fixture
def timeline() -> Callable[..., list[Graph]]:
    """Graphs over the same vertices, one a step; step 2 has no edges."""

    def make(steps: int = 7, vertices: int = 13, features: int = 3) -> list[Graph]:
        graphs = [make_graph(vertices, 10 + 5 * step, features, seed=step) for step in range(steps)]
        if steps > 2:
            graphs[2] = Graph(vertices, torch.empty(2, 0, dtype=torch.int64), graphs[2].x)
        return graphs

    return make


def assert_close(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    """Equal shape and largest difference below tolerance times the largest expected value."""
    assert actual.shape == expected.shape
    assert torch.isfinite(actual).all()
    scale = float(expected.abs().max().detach()) if expected.numel() else 0.0
    difference = float((actual - expected).abs().max().detach()) if expected.numel() else 0.0
    assert difference <= tolerance * max(scale, 1e-3), f"differs by {difference:.3g}, scale {scale:.3g}"


@pytest.fixture
def close() -> Callable[..., None]:
    return assert_close


@pytest.fixture
def gradients() -> Callable[..., list[Tensor]]:
    """Gradients of a fixed weighted sum of `output` with regard to `inputs`; weights differ from element to element."""

    def compute(output: Tensor, inputs: Iterable[Tensor]) -> list[Tensor]:
        weights = torch.cos(torch.arange(output.numel(), dtype=output.dtype)).view(output.shape)
        tensors = list(inputs)
        found = torch.autograd.grad((output * weights).sum(), tensors, allow_unused=True)
        return [torch.zeros_like(t) if g is None else g for t, g in zip(tensors, found, strict=True)]

    return compute
