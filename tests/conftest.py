"""Fixtures for all tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from trisect.data.generators.generate import generate
from trisect.data.records import TimelineRecord
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


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
