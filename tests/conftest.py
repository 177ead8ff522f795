"""Fixtures for all tests."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TRISECT_POISON", "1")  # before the pool is made: a read of free memory shows in the numbers

from trisect.data.generators.generate import generate
from trisect.data.records import TimelineRecord
from trisect.exchanges.facts import Facts, Runs
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.nn import build
from trisect.nn.base import Layer
from trisect.nn.halves import AnyLayer
from trisect.plan.plan import make_facts
from trisect.train.clusters import CLUSTER_VARIABLE, local_cluster

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells have it for what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def _uncalibrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Plan with the rates that are guessed for this machine, whatever its user has measured; nothing is measured."""
    before = os.environ.get(CLUSTER_VARIABLE)
    path = tmp_path_factory.mktemp("machine") / "cluster.yaml"
    os.environ[CLUSTER_VARIABLE] = str(path)
    local_cluster().write(path)
    yield
    os.environ.pop(CLUSTER_VARIABLE)
    if before is not None:
        os.environ[CLUSTER_VARIABLE] = before


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real graphs beside the checkout; tests that need it skip where it does not exist."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no folder of real graphs at {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture(scope="session")
def ranks() -> ModuleType:
    """tests/ranks/launch.py, which starts worlds of ranks; the folder is no package."""
    spec = importlib.util.spec_from_file_location("launch", Path(__file__).parent / "ranks" / "launch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


VERTICES, STEPS = 40, 8


@pytest.fixture(scope="session")
def community() -> Graph:
    return Graph.from_record(generate("community", vertices=240, seed=1))


@pytest.fixture(scope="session")
def record() -> TimelineRecord:
    """A timeline with everything: features, a class and a number a vertex and step, classes of events."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(30, 60, STEPS)
    sizes[3] = 0
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    src = rng.integers(0, VERTICES, offsets[-1])
    dst = (src + rng.integers(1, 6, offsets[-1])) % VERTICES
    return TimelineRecord(
        vertices=VERTICES,
        src=src,
        dst=dst,
        offsets=offsets,
        x=rng.standard_normal((VERTICES, 5)).astype(np.float32),
        y=(np.arange(VERTICES)[None, :] // 20 + np.arange(STEPS)[:, None] // 4) % 3,
        edge_y=(src < VERTICES // 2).astype(np.int64),
    )


@pytest.fixture(scope="session")
def timeline(record: TimelineRecord) -> Timeline:
    return Timeline.from_record(record)


FACTS_STEPS = 40


@cache
def _model(name: str, layers: int, window: int, features: int) -> tuple[list[AnyLayer], Layer | None]:
    options = {"tm-gcn": {"window": window}, "gat": {"heads": 2}}.get(name, {})
    model = build(name, features, 2, layers=layers, hidden=4, **options)
    return list(model.stack), getattr(model, "head", None)


def _facts_of(
    name: str,
    layout: Layout,
    runs: Runs | None = None,
    *,
    layers: int = 2,
    window: int = 3,
    rows: int = 8,
    features: int = 3,
    **more: Any,
) -> Facts:
    """Facts of a model on one graph, or on a timeline where runs are given; every part has `rows` rows.

    Layers are 4 wide, so that the first one sums up before its product, unless there are more features.
    """
    stack, head = _model(name, layers, window, features)
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
        remote=[4] * FACTS_STEPS,
        timeline=runs is not None,
        **more,
    )


@pytest.fixture(scope="session")
def facts_of() -> Callable[..., Facts]:
    """A maker of the facts of small models."""
    return _facts_of
