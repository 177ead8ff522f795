"""The state after a block is handed on, and does not hold the frames of all steps with it."""

from __future__ import annotations

import pytest
import torch

from trisect.nn.temporal import mproduct
from trisect.nn.temporal.mproduct import MProduct
from trisect.ops.band import band_torch
from trisect.views.states import States
from trisect.views.timecut import TimeCut
from trisect.views.turn import Turn

STEPS, ROWS, WIDTH = 12, 50, 8
CUT = TimeCut(((range(STEPS),), (range(STEPS, 2 * STEPS),)))


def turn_of(block: int, frames: torch.Tensor) -> Turn:
    return Turn(CUT, block, (0, 1), MProduct(WIDTH, window=4), [frames.detach()], needs=[True], trained=True)


def test_the_frames_of_a_block_are_gone_when_its_state_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    # as on other devices: the kernel of the CPU gives a state of its own
    monkeypatch.setattr(mproduct, "band", band_torch)
    states, frames = States(), torch.rand(STEPS, ROWS, WIDTH)
    turn = turn_of(0, frames)
    state = turn.module.initial_state(ROWS, dtype=frames.dtype, device=frames.device)
    _, after = turn.module([frames], state, 0)
    out = states.forward(turn, turn.frames, 0, hands_on=True)
    assert out.shape == (STEPS, ROWS, WIDTH)
    # a copy of the last three frames, where the module gives a view that would hold all of them
    assert after[0].untyped_storage().nbytes() > 3 * ROWS * WIDTH * 4
    assert states.after[0][0].untyped_storage().nbytes() == 3 * ROWS * WIDTH * 4


def test_the_gradient_of_a_state_goes_back_all_the_same() -> None:
    states, frames = States(), torch.rand(STEPS, ROWS, WIDTH)
    turn = turn_of(0, frames)
    states.forward(turn, turn.frames, 0, hands_on=True)
    wanted = torch.rand_like(states.after[0][0])
    states.wanted[0] = (wanted,)
    [gradient] = states.backward(turn, torch.zeros_like(frames))
    # the state is the last three frames
    assert gradient is not None
    assert torch.equal(gradient[-3:], wanted)
    assert not gradient[:-3].any()


def test_a_block_begins_with_the_state_after_the_one_before() -> None:
    states, frames = States(), torch.rand(2 * STEPS, ROWS, WIDTH, dtype=torch.float64)
    first, second = turn_of(0, frames[:STEPS]), turn_of(1, frames[STEPS:])
    pieces = [states.forward(turn, turn.frames, turn.steps.start, hands_on=turn is first) for turn in (first, second)]
    state = first.module.initial_state(ROWS, dtype=frames.dtype, device=frames.device)
    whole, _ = first.module([frames], state, 0)
    assert torch.allclose(torch.cat(pieces), whole)
    alone, _ = first.module([frames[STEPS:]], state, STEPS)
    assert not torch.allclose(pieces[1], alone)
