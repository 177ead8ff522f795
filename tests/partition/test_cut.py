from __future__ import annotations

import pytest
import torch

from trisect.errors import LayoutError
from trisect.graph.adjacency import Adjacency
from trisect.partition import Partition, cut_graph, metis, part_graph_of, quality
from trisect.partition import cut as cut_module
from trisect.partition.child import ChildError


def dense_of(matrix: Adjacency) -> torch.Tensor:
    out = torch.zeros(matrix.rows, matrix.columns, dtype=torch.float64)
    for row in range(matrix.rows):
        for k in range(int(matrix.starts[row]), int(matrix.ends[row])):
            out[row, int(matrix.indices[k]) - matrix.column_base] += 1.0 if matrix.values is None else matrix.values[k]
    return out


def from_dense(dense: torch.Tensor) -> Adjacency:
    row, column = torch.nonzero(dense, as_tuple=True)
    pointers = torch.zeros(dense.shape[0] + 1, dtype=torch.int64)
    pointers[1:] = torch.cumsum(torch.bincount(row, minlength=dense.shape[0]), 0)
    return Adjacency.from_csr(pointers, column, dense[row, column], dense.shape[1])


def random_graph(n: int, seed: int, density: float = 0.1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(n, n, generator=generator) < density
    return mask * torch.rand(n, n, generator=generator, dtype=torch.float64)


@pytest.fixture(params=["random", "star", "path", "isolated"])
def dense(request: pytest.FixtureRequest) -> torch.Tensor:
    n = 37
    if request.param == "random":
        return random_graph(n, 1)
    out = torch.zeros(n, n, dtype=torch.float64)
    if request.param == "star":
        out[0, 1:] = 1
        out[1:, 0] = 2
    elif request.param == "path":
        out += torch.diag(torch.ones(n - 1, dtype=torch.float64), 1)
    else:
        out[:5, :5] = 1
    return out


@pytest.mark.parametrize(("parts", "chunks"), [(1, 1), (2, 1), (3, 2), (4, 3), (1, 5)])
def test_shares_hold_the_whole_graph(dense: torch.Tensor, parts: int, chunks: int) -> None:
    graph = from_dense(dense)
    partition = cut_graph(graph, parts, chunks)
    assert sorted(partition.order.tolist()) == list(range(graph.rows))
    ordered = dense[partition.order][:, partition.order]
    part_graphs = [part_graph_of(from_dense(ordered), partition, p) for p in range(parts)]
    for part_graph in part_graphs:
        first, last = partition.part(part_graph.part)
        columns = torch.cat([torch.arange(first, last), part_graph.halo])
        assert torch.equal(dense_of(part_graph.adjacency), ordered[first:last][:, columns])
        # what I receive from q is what q sends to me, row by row, chunk by chunk
        for q in range(parts):
            for c in range(chunks):
                low, high = part_graph.receive[q][c]
                theirs = part_graphs[q].send[part_graph.part][c] + partition.part(q)[0]
                assert torch.equal(part_graph.halo[low:high], theirs)
    remote = sum(part_graph.halo.numel() for part_graph in part_graphs)
    owner = torch.empty(graph.rows, dtype=torch.int64)
    for p in range(parts):
        owner[partition.order[slice(*partition.part(p))]] = p
    assert quality(graph, owner, parts).volume == remote


def test_a_wrong_send_list_is_seen() -> None:
    dense = random_graph(30, 2)
    graph = from_dense(dense)
    good = cut_graph(graph, 2)
    bad = Partition(good.order, (0, good.starts[1] + 3, good.starts[2]), 2)
    ordered = from_dense(dense[good.order][:, good.order])
    mine, theirs = part_graph_of(ordered, good, 0), part_graph_of(ordered, bad, 1)
    assert not torch.equal(mine.halo, theirs.send[0][0] + good.part(1)[0])


def test_metis_is_even_and_repeats() -> None:
    graph = from_dense((random_graph(200, 3, 0.05) > 0).double())
    first, second = metis.cut(graph, 4, seed=7), metis.cut(graph, 4, seed=7)
    assert torch.equal(first, second)
    assert quality(graph, first, 4).edge_imbalance < 1.3


def test_without_metis_vertices_are_cut_by_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metis, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match=r"pymetis is not installed.*pip install 'trisect\[metis\]'"):
        assignment = metis.cut(from_dense(random_graph(50, 4)), 5)
    assert (assignment.diff() >= 0).all()
    assert torch.bincount(assignment, minlength=5).min() > 0


def test_a_failing_child_falls_back_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ChildError("killed")

    monkeypatch.setattr(metis, "run_child", fail)
    with pytest.warns(UserWarning, match="METIS did not finish \\(killed\\)"):
        assert metis.cut(from_dense(random_graph(50, 4)), 2).unique().numel() == 2


def test_more_chunks_than_vertices_is_refused() -> None:
    with pytest.raises(LayoutError, match="more than the graph's 10 vertices"):
        cut_graph(from_dense(random_graph(10, 5)), 4, 3)


def test_a_large_part_is_put_in_order_by_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six cliques whose members lie scattered: with a cache that holds one of them, each stands together."""
    count, size = 6, 10
    vertex = torch.arange(count * size)
    group = vertex % count
    near = group[:, None] == group[None, :]
    dense = near.double()
    dense[vertex[:-1], vertex[1:]] = 1
    dense[vertex[1:], vertex[:-1]] = 1
    graph = from_dense(dense)
    plain = cut_graph(graph, 2)
    monkeypatch.setattr(cut_module, "CACHE_BYTES", size * 256)
    found = cut_graph(graph, 2)
    assert found.starts == plain.starts
    for part in (0, 1):
        low, high = found.part(part)
        assert sorted(found.order[low:high].tolist()) == sorted(plain.order[low:high].tolist())
    changes = [int((group[one.order][1:] != group[one.order][:-1]).sum()) for one in (plain, found)]
    assert changes[1] < 0.5 * changes[0]
    # pieces of a graph without any do not change the order
    scattered = from_dense(random_graph(60, 5, 0.5))
    after = cut_graph(scattered, 2)
    monkeypatch.undo()
    assert torch.equal(after.order, cut_graph(scattered, 2).order)
