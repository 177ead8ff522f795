from __future__ import annotations

import pytest
import torch

from trisect.graph import Timeline
from trisect.graph.timeline.events import RawEvents


@pytest.mark.parametrize("native", [True, False])
def test_keys_of_a_step_ascend_and_repeat(native: bool) -> None:
    timeline = Timeline.from_arrays([0, 2, 0, 1], [1, 2, 1, 0], [0, 3, 4], vertices=3)
    events = RawEvents.of(timeline)
    assert events.bits == 2
    assert events.keys(0, native=native).tolist() == [1 << 2 | 0, 1 << 2 | 0, 2 << 2 | 2]
    assert events.keys(1, native=native).tolist() == [0 << 2 | 1]
    assert events.turned().keys(0, native=native).tolist() == [0 << 2 | 1, 0 << 2 | 1, 2 << 2 | 2]


@pytest.mark.parametrize("native", [True, False])
def test_both_directions_count_a_loop_once(native: bool) -> None:
    timeline = Timeline.from_arrays([0, 2], [1, 2], [0, 2], vertices=3, undirected=True)
    assert RawEvents.of(timeline).keys(0, native=native).tolist() == [0 << 2 | 1, 1 << 2 | 0, 2 << 2 | 2]


def test_events_may_be_brought_from_elsewhere() -> None:
    brought: list[int] = []

    def bring(array: torch.Tensor) -> torch.Tensor:
        brought.append(array.numel())
        return array.clone()

    ends = torch.tensor([1, 0], dtype=torch.int32)
    events = RawEvents(ends, ends.flip(0), torch.tensor([0, 2]), 2, 2, bring=bring)
    assert events.keys(0).tolist() == [1, 2]
    assert brought == [2, 2]
