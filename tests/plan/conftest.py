"""Facts of small models, made once for each."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from trisect.exchanges.facts import Facts, Runs
from trisect.layout import Layout
from trisect.nn import build
from trisect.nn.base import Layer
from trisect.nn.halves import AnyLayer
from trisect.plan.plan import make_facts

STEPS = 40


@cache
def _model(name: str, layers: int, window: int) -> tuple[list[AnyLayer], Layer | None]:
    options = {"tm-gcn": {"window": window}, "gat": {"heads": 2}}.get(name, {})
    model = build(name, 3, 2, layers=layers, hidden=4, **options)
    return list(model.stack), getattr(model, "head", None)


def _facts_of(
    name: str,
    layout: Layout,
    runs: Runs | None = None,
    *,
    layers: int = 2,
    window: int = 3,
    rows: int = 8,
    **more: Any,
) -> Facts:
    """Facts of a model on one graph, or on a timeline where runs are given; every part has `rows` rows."""
    stack, head = _model(name, layers, window)
    bounds = [len(stack) * s // layout.layer for s in range(layout.layer + 1)]
    cuts = tuple(rows * c // layout.chunks for c in range(layout.chunks + 1))
    return make_facts(
        stack,
        head,
        layout,
        bounds=bounds,
        rows=[rows] * layout.vertex,
        runs=((range(1),),) if runs is None else runs,
        chunk_rows=[cuts] * layout.vertex if runs is None else None,
        remote=[4] * STEPS,
        timeline=runs is not None,
        **more,
    )


@pytest.fixture(scope="session")
def facts_of() -> Callable[..., Facts]:
    return _facts_of
