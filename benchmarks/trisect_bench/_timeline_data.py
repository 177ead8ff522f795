"""The timeline that `bench.timeline` measures on, the same for all candidates and made before any clock starts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trisect.data.generators.timelines import uniform
from trisect.graph.adjacency import Adjacency
from trisect.graph.timeline.timeline import Timeline

CLASSES = 2


@dataclass(frozen=True)
class Data:
    """x [steps, vertices, 2] (degrees), labels [steps, vertices], and each step's normalised, smoothed snapshot."""

    x: Tensor
    labels: Tensor
    snapshots: list[Adjacency]


def make(steps: int = 50, vertices: int = 20_000, edges: int = 100_000, life: int = 5, seed: int = 0) -> Data:
    """Uniformly random edges, `edges` new ones a step that live for `life` steps."""
    record = uniform(vertices=vertices, degree=edges / vertices, steps=steps, seed=seed)
    timeline = Timeline.from_record(record, smoothing={"kind": "edge-life", "length": life})
    generator = torch.Generator().manual_seed(seed)
    return Data(
        x=timeline.features(),
        labels=torch.randint(CLASSES, (steps, vertices), generator=generator),
        snapshots=list(timeline.snapshots("symmetric", self_loops=True)),
    )
