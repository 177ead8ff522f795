"""The graph that the candidates of `trisect bench epoch` train on."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trisect.data.generators.static_graphs import rmat
from trisect.errors import ConfigError
from trisect.graph.build import normalise
from trisect.graph.graph import Graph


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph with features, labels and training rows, and the sizes of the model."""

    graph: Graph
    x: Tensor
    y: Tensor
    train: Tensor
    model: str
    hidden: int
    layers: int
    classes: int
    dropout: float
    lr: float = 0.01

    def edges(self) -> tuple[Tensor, Tensor]:
        """edge_index and edge_attr of the graph with loops, as Trisect's attention reads it."""
        matrix = self.graph.normalised("none", self_loops=True)
        features = matrix.edge_attributes()
        if features is None:
            raise ConfigError("the problem was made without features of edges; give edge_features.")
        return matrix.edge_index(), features

    def csr(self) -> tuple[Tensor, Tensor, Tensor]:
        """indptr, indices and values of the matrix that the model aggregates by, as Trisect normalises it."""
        kind, loops = ("row", False) if self.model == "sage" else ("symmetric", True)
        matrix = normalise(self.graph.adjacency, kind, loops)  # type: ignore[arg-type]
        indptr = torch.cat([matrix.starts[:1], matrix.ends])
        values = torch.ones(matrix.indices.numel()) if matrix.values is None else matrix.values
        return indptr, matrix.indices, values.float()

    def widths(self) -> list[tuple[int, int]]:
        """Input and output of each layer of GCN and SAGE."""
        all_ = [self.x.shape[1], *[self.hidden] * (self.layers - 1), self.classes]
        return list(itertools.pairwise(all_))


def problem(
    model: str,
    vertices: int = 100_000,
    edges: int = 2_000_000,
    features: int = 128,
    hidden: int = 100,
    layers: int = 16,
    classes: int = 16,
    dropout: float = 0.5,
    shuffle: bool = False,
    seed: int = 0,
    edge_features: int = 0,
) -> Problem:
    """An R-MAT graph with exactly `edges` different edges.

    Its vertices are numbered as the generator makes them; `shuffle` renumbers them at random, which costs those that
    do not reorder.
    """
    rng = np.random.default_rng(seed)
    keys = np.empty(0, np.int64)
    for attempt in range(20):
        record = rmat(vertices, 1.3 * edges / vertices, 1, classes, shuffle=shuffle, seed=seed + 1000 * attempt)
        keys = np.unique(np.concatenate([keys, record.src.astype(np.int64) * vertices + record.dst]))
        if len(keys) >= edges:
            break
    keys = np.sort(rng.permutation(keys)[:edges])
    x = rng.standard_normal((vertices, features), dtype=np.float32)
    y = rng.integers(0, classes, vertices)
    drawn = rng.random(vertices)
    splits = {"train": drawn < 0.5, "val": (drawn >= 0.5) & (drawn < 0.75), "test": drawn >= 0.75}
    ends = (keys // vertices, keys % vertices)
    edge_x = rng.standard_normal((edges, edge_features), dtype=np.float32) if edge_features else None
    graph = Graph.from_edges(*ends, vertices=vertices, x=x, y=y, splits=splits, edge_x=edge_x)
    return Problem(
        graph,
        torch.from_numpy(x),
        torch.from_numpy(y),
        torch.from_numpy(splits["train"]),
        model,
        hidden,
        layers,
        classes,
        dropout,
    )
