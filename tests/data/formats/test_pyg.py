from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from trisect.data import static_from_pyg, timeline_from_pyg
from trisect.errors import DataError


def test_data_by_its_attributes() -> None:
    data = SimpleNamespace(
        edge_index=torch.tensor([[0, 1], [1, 2]]),
        edge_weight=torch.tensor([[0.5], [2.0]]),
        x=torch.ones(4, 3, dtype=torch.float64, requires_grad=True),
        y=torch.tensor([[0], [1], [1], [0]]),
        train_mask=torch.tensor([True, False, False, False]),
    )
    record = static_from_pyg(data)
    assert record.vertices == 4
    assert (record.src.tolist(), record.dst.tolist()) == ([0, 1], [1, 2])
    assert record.weight is not None
    assert record.weight.tolist() == [0.5, 2.0]
    assert record.x is not None
    assert record.x.dtype == np.float32
    assert record.y is not None
    assert record.y.tolist() == [0, 1, 1, 0]
    assert list(record.splits) == ["train"]


def test_real_objects() -> None:
    pyg = pytest.importorskip("torch_geometric.data")
    data = pyg.Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=5)
    assert static_from_pyg(data).vertices == 5
    temporal = pyg.TemporalData(
        src=torch.tensor([0, 3, 1]),
        dst=torch.tensor([1, 0, 2]),
        t=torch.tensor([0, 25, 10]),
        msg=torch.tensor([[1.0], [2.0], [3.0]]),
    )
    with pytest.warns(UserWarning, match="msg is read as one feature an edge"):
        record = timeline_from_pyg(temporal, period=10)
    assert record.offsets.tolist() == [0, 1, 2, 3]
    assert record.src.tolist() == [0, 1, 3]
    assert record.weight is None
    assert record.edge_x is not None
    assert record.edge_x.tolist() == [[1.0], [3.0], [2.0]]
    assert timeline_from_pyg([data, data]).steps == 2


def test_list_of_data_with_late_vertices() -> None:
    steps = [
        SimpleNamespace(edge_index=torch.tensor([[0], [1]]), x=torch.ones(2, 1), y=torch.tensor([0, 1])),
        SimpleNamespace(edge_index=torch.zeros(2, 0, dtype=torch.long), x=torch.ones(2, 1), y=torch.tensor([0, 1])),
        SimpleNamespace(edge_index=torch.tensor([[2, 0], [0, 1]]), x=torch.ones(3, 1), y=torch.tensor([0, 1, 1])),
    ]
    record = timeline_from_pyg(steps)
    assert (record.vertices, record.offsets.tolist()) == (3, [0, 1, 1, 3])
    assert record.x is not None
    assert record.x.shape == (3, 3, 1)
    assert record.y is not None
    assert record.y[:, 2].tolist() == [-1, -1, 1]


def test_wrong_objects() -> None:
    edges = torch.tensor([[0], [1]])
    for data in (SimpleNamespace(), SimpleNamespace(edge_index=edges[0]), SimpleNamespace(edge_index=edges.float())):
        with pytest.raises(DataError, match="edge_index"):
            static_from_pyg(data)
    with pytest.raises(DataError, match="negative"):
        static_from_pyg(SimpleNamespace(edge_index=-edges))
    with pytest.raises(DataError, match="empty"):
        timeline_from_pyg([])
    with pytest.raises(DataError, match="step 1 has no x"):
        timeline_from_pyg([SimpleNamespace(edge_index=edges, x=torch.ones(2, 1)), SimpleNamespace(edge_index=edges)])
    with pytest.raises(DataError, match="leave it out"):
        timeline_from_pyg([SimpleNamespace(edge_index=edges)], period=3)
    with pytest.raises(DataError, match="period is missing"):
        timeline_from_pyg(SimpleNamespace(src=edges[0], dst=edges[1], t=edges[0]))
