"""Sums from those of the step before against fresh ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from trisect.errors import ConfigError
from trisect.graph.adjacency import Adjacency
from trisect.graph.build import row_sums
from trisect.graph.timeline.timeline import Timeline
from trisect.ops import aggregate
from trisect.ops.spmm.incremental import Incremental, change_between


def incremental_sums(
    xs: Tensor,
    raws: Sequence[Adjacency],
    changes: Sequence[Adjacency] | None = None,
    *,
    row_scale: Sequence[Tensor] | None = None,
    column_scale: Sequence[Tensor] | None = None,
    restart: int = 64,
) -> Iterator[Tensor]:
    """diag(row_scale_t) · M_t · diag(column_scale_t) · x_t of each step, [rows, features], in the type of xs."""
    sums = Incremental(restart)
    for step, raw in enumerate(raws):
        x = xs if xs.dim() == 2 else xs[step]
        z = x.double() if column_scale is None else x.double() * column_scale[step].double()[:, None]
        change = None
        if step:
            change = change_between(raws[step - 1], raw) if changes is None else changes[step - 1]
        total = sums.step(z, raw, change)
        scaled = total if row_scale is None else total * row_scale[step].double()[:, None]
        yield scaled.to(xs.dtype, copy=True)


def raw_snapshots(steps: int, kind: str = "none", life: int = 8, vertices: int = 50) -> list[Adjacency]:
    generator = torch.Generator().manual_seed(steps)
    raw = steps + life
    src, dst = torch.randint(vertices, (2, raw * 30), generator=generator)
    timeline = Timeline.from_arrays(
        src,
        dst,
        torch.arange(raw + 1) * 30,
        vertices=vertices,
        smoothing={"kind": "edge-life", "length": life},
    )
    return list(timeline.snapshots(kind, self_loops=True, dtype=torch.float64, start=life))  # type: ignore[arg-type]


def features(form: str, steps: int, dtype: torch.dtype) -> Tensor:
    """Fixed, with some rows that change at some steps, or all new."""
    generator = torch.Generator().manual_seed(0)
    if form == "fixed":
        return torch.randn(50, 3, generator=generator, dtype=dtype)
    xs = torch.randn(steps, 50, 3, generator=generator, dtype=dtype)
    if form == "few":
        for step in range(1, steps):
            same = torch.rand(50, generator=generator) < 0.95
            xs[step, same] = xs[step - 1, same]
    return xs


@pytest.mark.parametrize("form", ["fixed", "few", "all"])
@pytest.mark.parametrize("kind", ["none", "row", "symmetric"])
@pytest.mark.parametrize("restart", [1, 7, 64])
def test_equals_a_fresh_sum(form: str, kind: str, restart: int) -> None:
    raws, wanted = raw_snapshots(12), raw_snapshots(12, kind)
    sums = [row_sums(raw) for raw in raws]
    left = {"none": None, "row": [1 / s for s in sums], "symmetric": [s.rsqrt() for s in sums]}[kind]
    right = left if kind == "symmetric" else None
    xs = features(form, 12, torch.float64)
    found = list(incremental_sums(xs, raws, row_scale=left, column_scale=right, restart=restart))
    for step, result in enumerate(found):
        fresh = aggregate(xs if xs.dim() == 2 else xs[step], wanted[step])
        torch.testing.assert_close(result, fresh, rtol=1e-12, atol=1e-12)


def test_float32_does_not_drift() -> None:
    """Over many steps without a restart the result is the fresh sum rounded once."""
    raws = raw_snapshots(150)
    x = features("fixed", 150, torch.float32) * 1e3
    sums = Incremental(restart=1000)
    change = None
    for before, raw in zip([None, *raws[:-1]], raws, strict=True):
        change = None if before is None else change_between(before, raw)
        result = sums.step(x, raw, change).float()
    assert sums.fresh == 1
    fresh = aggregate(x.double(), raws[-1]).float()
    torch.testing.assert_close(result, fresh, rtol=1e-7, atol=1e-9)


def test_the_comparison_sees_a_change_that_is_left_out() -> None:
    raws = raw_snapshots(3)
    x = features("fixed", 3, torch.float64)
    nothing = Adjacency.from_csr(torch.zeros(51, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), None, 50)
    found = list(incremental_sums(x, raws, [nothing, nothing]))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(found[2], aggregate(x, raws[2]), rtol=1e-12, atol=1e-12)


def test_change_between_is_the_difference() -> None:
    first, second = raw_snapshots(2)
    change = change_between(first, second)
    assert torch.equal(change.dense(), second.dense() - first.dense())
    assert change.entries == int((second.dense() != first.dense()).sum())


def test_begins_afresh_where_too_much_changes() -> None:
    raws = raw_snapshots(4)
    changes = [change_between(a, b) for a, b in pairwise(raws)]
    few, many = Incremental(), Incremental()
    fixed, new = features("fixed", 4, torch.float64), features("all", 4, torch.float64)
    for step, raw in enumerate(raws):
        few.step(fixed, raw, changes[step - 1] if step else None)
        many.step(new[step], raw, changes[step - 1] if step else None)
    assert (few.fresh, many.fresh) == (1, 4)
    with pytest.raises(ConfigError, match="restart is 0"):
        Incremental(restart=0)
