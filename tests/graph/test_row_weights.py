"""`y_weight`: how much each vertex counts in a loss, from every source and in every order."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from trisect.data.formats.pyg import static_from_pyg
from trisect.data.formats.store import read_directory, write_directory
from trisect.errors import DataError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.train.run.digest import digest_of

WEIGHT = torch.tensor([0.5, 1.0, 2.0, 0.0])
EDGES = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])


def test_from_pyg_through_a_directory_and_in_another_order(tmp_path: Path) -> None:
    data = SimpleNamespace(edge_index=EDGES, x=torch.eye(4), y=torch.tensor([0, 1, 0, 1]), y_weight=WEIGHT.double())
    record = static_from_pyg(data)
    write_directory(record, tmp_path / "graph")
    graph = Graph.from_record(read_directory(tmp_path / "graph"))  # type: ignore[arg-type]
    assert graph.y_weight is not None
    assert torch.equal(graph.y_weight, WEIGHT)
    order = torch.tensor([2, 0, 3, 1])
    assert torch.equal(graph.reordered(order).y_weight, WEIGHT[order])  # type: ignore[arg-type]
    assert Graph.from_edges(*EDGES).y_weight is None
    assert digest_of(graph) != digest_of(Graph.from_edges(*EDGES, x=torch.eye(4), y=torch.tensor([0, 1, 0, 1])))


def test_of_a_timeline() -> None:
    timeline = Timeline.from_arrays(*EDGES, [0, 2, 4], y_weight=np.asarray(WEIGHT))
    order = torch.tensor([2, 0, 3, 1])
    assert torch.equal(timeline.reordered(order).y_weight, WEIGHT[order])  # type: ignore[arg-type]
    assert torch.equal(timeline.between(1, 2).y_weight, WEIGHT)  # type: ignore[arg-type]


@pytest.mark.parametrize("weight", [[1.0, 2.0], [1.0, -1.0, 1.0, 1.0], [1.0, float("nan"), 1.0, 1.0]])
def test_what_is_no_weight_is_refused(weight: list[float]) -> None:
    with pytest.raises(DataError, match="y_weight"):
        Graph.from_edges(*EDGES, y_weight=weight)
