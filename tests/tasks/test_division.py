from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from trisect.graph.timeline.timeline import Timeline
from trisect.noise import Noise
from trisect.tasks import EdgeClassification, LinkPrediction, NodeClassification, Task, TaskContext
from trisect.tasks.decoders import Decoder
from trisect.tasks.division import Division

VERTICES, STEPS, CHANNELS = 24, 6, 4
STARTS = (0, 9, 15, 24)


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(0, VERTICES, (2, 30 * STEPS), generator=generator)
    return Timeline.from_arrays(
        ends[0],
        ends[1],
        torch.arange(STEPS + 1) * 30,
        vertices=VERTICES,
        y=torch.randint(0, 3, (STEPS, VERTICES), generator=generator),
        edge_y=torch.randint(0, 2, (30 * STEPS,), generator=generator),
    )


TASKS: list[Task] = [
    LinkPrediction(split=(4, 1, 0), negatives=2),
    LinkPrediction(split=(4, 1, 0), decoder="bilinear", memory=2, average="steps", sampling="destinations"),
    EdgeClassification(split=(4, 1, 0), horizon=1),
    NodeClassification(split=(4, 1, 1), decoder="linear"),
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.name}-{getattr(task, 'decoder', '')}")
def test_the_losses_of_parts_add_up(timeline: Timeline, task: Task) -> None:
    whole, frames, decoder, noise, total = _whole(timeline, task)
    assert _parts(whole, frames, decoder, noise).item() == pytest.approx(total.item(), rel=1e-12)
    expected = torch.autograd.grad(total, [frames, *decoder.parameters()])
    found = torch.autograd.grad(_parts(whole, frames, decoder, noise), [frames, *decoder.parameters()])
    for one, other in zip(expected, found, strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-14)


def test_wrong_rows_show(timeline: Timeline) -> None:
    whole, frames, decoder, noise, total = _whole(timeline, TASKS[0])
    shifted = _parts(whole, frames, decoder, noise, shift=1)
    assert shifted.item() != pytest.approx(total.item(), rel=1e-6)


def _whole(timeline: Timeline, task: Task) -> tuple[Any, Tensor, Decoder, Noise, Tensor]:
    whole = task.bind(timeline, TaskContext(7))
    decoder = whole.decoder(CHANNELS)
    assert isinstance(decoder, Decoder)
    decoder.reset_parameters(0, 3)
    decoder.double()
    frames = torch.rand(4, VERTICES, CHANNELS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    frames.requires_grad_()
    noise = Noise(7, epoch=3)
    return whole, frames, decoder, noise, whole.loss(decoder, frames, 0, noise)


def _parts(whole: Any, frames: Tensor, decoder: Decoder, noise: Noise, shift: int = 0) -> Tensor:
    losses = []
    for part_index in range(3):
        part = whole.divide(STARTS, part_index)
        own = frames[:, STARTS[part_index] : STARTS[part_index + 1]]
        given: Any = own
        if part.wanted(0, noise) is not None:
            # every part must know what every other one wants
            wanted = [part.wanted(step, noise)[part_index] for step in range(4)]
            other = whole.divide(STARTS, (part_index + 1) % 3)
            assert all(rows.equal(other.wanted(step, noise)[part_index]) for step, rows in enumerate(wanted))
            given = [
                torch.cat([own[step], frames[step][(rows + shift) % VERTICES]]) for step, rows in enumerate(wanted)
            ]
        losses.append(part.loss(decoder, given, 0, noise))
    return torch.stack(losses).sum()


def test_a_worked_example() -> None:
    division = Division((0, 4, 7), 0)
    src, dst = torch.tensor([1, 1, 6, 3]), torch.tensor([2, 5, 0, 6])
    assert division.mine(src).tolist() == [True, True, False, True]
    remote = division.remote(src, dst)
    assert [rows.tolist() for rows in remote] == [[5, 6], [0]]
    mine = division.mine(src)
    local = division.local(src[mine], dst[mine], remote[0])
    assert [ends.tolist() for ends in local] == [[1, 1, 3], [2, 4, 5]]


@pytest.mark.parametrize("vertices", [40, 400_000])
def test_remote_rows_are_the_same_from_a_table_and_by_sorting(vertices):
    """Few codes of many possible ones are sorted; many of few are looked up."""
    generator = torch.Generator().manual_seed(vertices)
    src, dst = torch.randint(vertices, (2, 300), generator=generator)
    starts = (0, vertices // 4, vertices // 2, vertices)
    remote = Division(starts, 0).remote(src, dst)
    wanted = [set(), set(), set()]
    for source, target in zip(src.tolist(), dst.tolist(), strict=True):
        scorer, holder = (sum(row >= start for start in starts[1:]) for row in (source, target))
        if scorer != holder:
            wanted[scorer].add(target)
    assert [rows.tolist() for rows in remote] == [sorted(rows) for rows in wanted]
