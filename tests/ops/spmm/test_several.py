"""Several snapshots at once against one after the other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trisect.errors import ConfigError, DataError
from trisect.graph.adjacency import Adjacency
from trisect.graph.build import adjacency_from_edges
from trisect.graph.timeline.timeline import Timeline
from trisect.nn import build
from trisect.ops import aggregate
from trisect.ops.spmm import grouping as grouping_module
from trisect.ops.spmm import several as several_module
from trisect.ops.spmm._aggregate_torch import sum_torch
from trisect.ops.spmm.grouping import grouped, make, prepare, worthwhile
from trisect.ops.spmm.several import Group, aggregate_group_into, packs, side_by_side
from trisect.views.view import View
from trisect_bench.several import block_diagonal

DTYPES = [torch.float32, torch.float64]


def sliding(
    steps: int, *, vertices: int = 60, edges: int = 90, life: int = 4, undirected: bool = False, kind: str = "symmetric"
) -> list[Adjacency]:
    """Snapshots that share most entries, some more than once, whose degrees change at every step."""
    generator = torch.Generator().manual_seed(steps + vertices)
    raw = steps + life
    src, dst = torch.randint(vertices, (2, raw * edges), generator=generator)
    timeline = Timeline.from_arrays(
        src,
        dst,
        torch.arange(raw + 1) * edges,
        vertices=vertices,
        undirected=undirected,
        smoothing={"kind": "edge-life", "length": life},
    )
    return list(timeline.snapshots(kind, self_loops=True, dtype=torch.float64, start=life))  # type: ignore[arg-type]


def aggregate_group(x: Tensor, group: Group) -> Tensor:
    """A_g · x_g of each step of a group: x [steps, columns, features] → [steps, rows, features]."""
    if not packs(x):
        return torch.stack([sum_torch(frame, group.snapshot(step)) for step, frame in enumerate(x)])
    out = torch.empty(group.steps, group.rows, x.shape[2], dtype=x.dtype)
    aggregate_group_into(out.unbind(), side_by_side(x.unbind()), group)
    return out


def one_by_one(x: Tensor, snapshots: list[Adjacency]) -> Tensor:
    return torch.stack([aggregate(frame, snapshot) for frame, snapshot in zip(x, snapshots, strict=True)])


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups are made the second time."""
    monkeypatch.setattr(grouping_module, "_AFTER", 2)


@pytest.fixture(params=["native", "torch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(several_module, "available", lambda: False)
    return str(request.param)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("features", [1, 2, 6, 8, 20, 33, 64])
@pytest.mark.parametrize("steps", [1, 2, 4, 8])
@pytest.mark.parametrize("undirected", [False, True])
def test_equals_one_by_one(path: str, dtype: torch.dtype, features: int, steps: int, undirected: bool) -> None:
    snapshots = sliding(steps, undirected=undirected)
    group = Group.of(snapshots, dtype)
    x = torch.randn(steps, 60, features, dtype=dtype)
    limit = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(aggregate_group(x, group), one_by_one(x, snapshots), rtol=limit, atol=limit)
    turned = [snapshot.transpose() for snapshot in snapshots]
    torch.testing.assert_close(aggregate_group(x, group.transpose()), one_by_one(x, turned), rtol=limit, atol=limit)


def test_the_comparison_sees_a_wrong_value() -> None:
    snapshots = sliding(2)
    x = torch.randn(2, 60, 6, dtype=torch.float64)
    group = Group.of(snapshots, torch.float64)
    assert group.values is not None
    group.values[5, 1] += 1e-6
    with pytest.raises(AssertionError):
        torch.testing.assert_close(aggregate_group(x, group), one_by_one(x, snapshots), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("features", [1, 6, 8, 17, 32])
def test_a_step_is_the_same_to_the_bit_in_any_group(dtype: torch.dtype, features: int) -> None:
    snapshots = sliding(8)
    x = torch.randn(8, 60, features, dtype=dtype)
    wanted = None
    for size in (1, 2, 4, 8):
        parts = [Group.of(snapshots[first : first + size], dtype) for first in range(0, 8, size)]
        found = [aggregate_group(x[k * size : (k + 1) * size], part) for k, part in enumerate(parts)]
        found += [aggregate_group(x[k * size : (k + 1) * size], part.transpose()) for k, part in enumerate(parts)]
        wanted = torch.cat(found) if wanted is None else wanted
        assert torch.equal(torch.cat(found), wanted)


def test_a_group_holds_the_union_once_and_each_value() -> None:
    snapshots = sliding(4)
    group = Group.of(snapshots, torch.float64)
    dense = torch.stack([snapshot.dense() for snapshot in snapshots])
    assert group.indices.numel() == int((dense != 0).any(0).sum()) < sum(snapshot.entries for snapshot in snapshots)
    assert all(torch.equal(group.snapshot(step).dense(), dense[step]) for step in range(4))
    assert group.memory_bytes == group.indices.numel() * (4 + 4 * 8) + 60 * 8


def test_an_undirected_group_is_its_own_transpose(path: str) -> None:
    def known(snapshots: list[Adjacency]) -> Group:
        return Group.of([snapshot.as_symmetric() for snapshot in snapshots], torch.float64)

    group = known(sliding(2, undirected=True))
    assert group.transpose() is group
    assert Group.of(sliding(2), torch.float64).transpose() is not group


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_snapshots(data: st.DataObject) -> None:
    """Empty rows and snapshots, weights and views with nothing in common included."""
    rows, columns = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    steps = data.draw(st.sampled_from([1, 2, 4]))
    snapshots = []
    for _ in range(steps):
        cells = data.draw(st.lists(st.integers(0, rows * columns - 1), unique=True, max_size=12))
        cell = torch.tensor(sorted(cells), dtype=torch.int64)
        weight = torch.rand(len(cells), dtype=torch.float64) if data.draw(st.booleans()) else None
        pointers = torch.zeros(rows + 1, dtype=torch.int64)
        pointers[1:] = torch.bincount(cell // columns, minlength=rows).cumsum(0)
        snapshots.append(Adjacency.from_csr(pointers, cell % columns, weight, columns))
    if data.draw(st.booleans()):
        first = data.draw(st.integers(0, columns - 1))
        snapshots = [snapshot.columns_between(first, columns) for snapshot in snapshots]
    group = Group.of(snapshots, torch.float64)
    x = torch.randn(steps, snapshots[0].columns, 3, dtype=torch.float64)
    torch.testing.assert_close(aggregate_group(x, group), one_by_one(x, snapshots), rtol=1e-12, atol=1e-12)
    g = torch.randn(steps, rows, 3, dtype=torch.float64)
    turned = [snapshot.transpose() for snapshot in snapshots]
    torch.testing.assert_close(aggregate_group(g, group.transpose()), one_by_one(g, turned), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_block_diagonal(weighted: bool) -> None:
    snapshots = sliding(3, kind="symmetric" if weighted else "none")
    if not weighted:
        snapshots[1] = snapshots[1].with_values(None)
    x = torch.randn(3, 60, 5, dtype=torch.float64)
    found = aggregate(x.flatten(0, 1), block_diagonal(snapshots)).view(3, 60, 5)
    torch.testing.assert_close(found, one_by_one(x, snapshots), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("slope", [None, 0.0, 0.3])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_training_steps_are_the_same_to_the_bit_before_and_after_groups_are_made(
    dtype: torch.dtype, slope: float | None, steps: int
) -> None:
    """So that a run that is resumed, and makes its groups later, goes on as it would have."""
    snapshots = sliding(steps, life=9)
    x = torch.randn(steps, 60, 6, dtype=dtype, requires_grad=True)
    bias = torch.randn(6, dtype=dtype, requires_grad=True)
    direction = torch.randn(steps, 60, 6, dtype=dtype)
    results = []
    for _ in range(3):
        out = View.whole(snapshots).aggregate(x, bias=bias, slope=slope)
        results.append((out, *torch.autograd.grad(out, [x, bias], direction)))
    narrow = dtype == torch.float32
    sizes = {1: [1], 2: [2], 5: [4, 1] if narrow else [2, 2, 1]}[steps]
    assert [group.steps for group in grouped(snapshots, 6, dtype)] == sizes
    for later in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], later, strict=True))
    plain = one_by_one(x, snapshots) + bias
    plain = plain if slope is None else torch.nn.functional.leaky_relu(plain, slope)
    limit = 1e-10 if dtype == torch.float64 else 1e-4
    wanted = (plain, *torch.autograd.grad(plain, [x, bias], direction))
    for a, b in zip(results[2], wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=limit, atol=limit)


@pytest.mark.parametrize("name", ["evolvegcn-o", "cd-gcn", "tm-gcn"])
def test_gradients_of_models_with_groups_and_without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots = sliding(5)
    x = torch.randn(5, 60, 3, dtype=torch.float64)
    model = build(name, 3, 2, hidden=6).double()

    def gradients() -> list[Tensor]:
        out = model(x, View.whole(snapshots))
        return list(torch.autograd.grad((out * out).sum(), list(model.parameters())))

    first, with_groups = gradients(), gradients()
    monkeypatch.setattr(grouping_module, "packs", lambda x: False)
    plain = gradients()
    for a, b, c in zip(first, with_groups, plain, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(b, c, rtol=1e-10, atol=1e-12)


def test_snapshots_made_anew_are_never_laid_over_each_other() -> None:
    for _ in range(3):
        assert [group.steps for group in grouped(sliding(4), 6, torch.float32)] == [1, 1, 1, 1]
    kept = sliding(7)
    sizes = [[group.steps for group in grouped(kept, 16, torch.float32)] for _ in range(3)]
    assert sizes == [[1] * 7, [2, 2, 2, 1], [2, 2, 2, 1]]


def test_narrow_rows_of_much_in_common_come_in_fours() -> None:
    kept = sliding(7, life=9)
    sizes = [[group.steps for group in grouped(kept, 6, torch.float32)] for _ in range(3)]
    assert sizes == [[1] * 7, [4, 2, 1], [4, 2, 1]]
    # fours of little in common are pairs after all, from the same epoch on
    apart = sliding(4, life=2)
    sizes = [[group.steps for group in grouped(apart, 6, torch.float32)] for _ in range(3)]
    assert sizes == [[1] * 4, [2, 2], [2, 2]]


def test_prepared_snapshots_are_in_groups_at_once() -> None:
    kept = sliding(5, life=9)
    prepare(kept, 6, torch.float32)
    assert [group.steps for group in grouped(kept, 6, torch.float32)] == [4, 1]
    prepare(kept, 16, torch.float32)
    assert [group.steps for group in grouped(kept, 16, torch.float32)] == [2, 2, 1]
    wide = sliding(2)
    prepare(wide, 256, torch.float32)
    assert [group.steps for group in grouped(wide, 256, torch.float32)] == [1, 1]


def test_what_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert worthwhile(6, torch.float32, 2, 0.6, 10, 10)
    assert not worthwhile(6, torch.float32, 4, 0.6, 10, 10)
    assert worthwhile(6, torch.float32, 4, 0.4, 10, 10)
    assert not worthwhile(16, torch.float32, 4, 0.4, 10, 10)
    assert not worthwhile(6, torch.float32, 2, 0.6, 11, 10)
    assert not worthwhile(6, torch.float32, 2, 0.95, 10, 10)
    assert not worthwhile(256, torch.float32, 2, 0.6, 10, 10)
    pair = sliding(2)
    assert make(pair, 6, torch.float32) is not None
    apart = [sliding(2)[0], sliding(3)[0]]
    assert make(apart, 6, torch.float32) is None
    monkeypatch.setattr(grouping_module, "free_bytes", lambda device: 0)
    assert make(pair, 6, torch.float32) is None


def test_what_makes_no_group() -> None:
    with pytest.raises(ConfigError, match="3 snapshots"):
        Group.of(sliding(3))
    with pytest.raises(ConfigError, match="make no group"):
        Group.of([sliding(2)[0], sliding(2, vertices=20)[0]])


def test_duplicates_are_refused_without_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several_module, "available", lambda: False)
    twice = Adjacency.from_csr(torch.tensor([0, 2]), torch.tensor([1, 1]), None, 2)
    with pytest.raises(DataError, match="twice"):
        Group.of([twice, adjacency_from_edges([0], [0], None, 2).rows_between(0, 1)])
