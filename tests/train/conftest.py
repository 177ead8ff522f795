"""Small graphs for the tests of training."""

from __future__ import annotations

import numpy as np
import pytest

from trisect.data.generate import generate
from trisect.data.records import TimelineRecord
from trisect.graph.graph import Graph
from trisect.graph.timeline import Timeline

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
