"""The state after a block is handed on, and does not hold the frames of all steps with it."""

from __future__ import annotations

import torch

from trisect.engine.recurrence import Recurrence
from trisect.exchanges.facts import facts_of
from trisect.nn import build

STEPS, ROWS = 12, 50


def _recurrence(window):
    layer = build("tm-gcn", 4, 3, layers=1, hidden=8, window=window).stack[0]
    return Recurrence(layer, facts_of(layer), torch.float32, torch.device("cpu"))


def test_the_frames_of_a_block_are_gone_when_its_state_is_noted():
    recurrence = _recurrence(window=4)
    width = recurrence.facts.inside_channels
    frames = torch.rand(STEPS, ROWS, width, requires_grad=True)
    state = recurrence.enter(0, 0, ROWS)
    out, after = recurrence.layer.recur([frames], tuple(state), 0)
    recurrence.leave(0, after)
    # a copy of the last three frames, where a view would hold all of them
    assert after[0].untyped_storage().nbytes() == 3 * ROWS * width * 4
    assert out.shape == (STEPS, ROWS, width)
    assert recurrence.after[0][0].untyped_storage().nbytes() == 3 * ROWS * width * 4


def test_the_gradient_of_a_state_goes_back_all_the_same():
    recurrence = _recurrence(window=4)
    frames = torch.rand(STEPS, ROWS, recurrence.facts.inside_channels, requires_grad=True)
    _, after = recurrence.layer.recur([frames], tuple(recurrence.enter(0, 0, ROWS)), 0)
    recurrence.leave(0, after)
    wanted = torch.rand_like(after[0])
    recurrence.wanted[0] = (wanted,)
    roots = recurrence.roots(0)
    assert len(roots) == 1
    torch.autograd.backward([root for root, _ in roots], [gradient for _, gradient in roots])
    # the state is the last three frames
    assert frames.grad is not None
    assert torch.equal(frames.grad[-3:], wanted)
    assert not frames.grad[:-3].any()
