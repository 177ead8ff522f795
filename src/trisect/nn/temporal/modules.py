"""Recurrent parts along time: LSTM and GRU for each vertex, with weights shared by all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trisect.nn.base import State, Temporal
from trisect.nn.initial import fan_in_
from trisect.ops.recurrent import OutputBuffers, gru, lstm, writes_into_buffers


class LSTM(Temporal):
    """An LSTM per vertex; the state is (h, c), each [rows, out_channels].

    Shapes: frames [steps, rows, ·], together in_channels wide → [steps, rows, out_channels]. Weights are in
    torch's layout, gates in the order i, f, g, o: weight_ih [4·out, in], weight_hh [4·out, out]; there is one bias
    [4·out] (torch.nn.LSTM adds up two).
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.weight_ih = nn.Parameter(torch.empty(4 * out_channels, in_channels))
        self.weight_hh = nn.Parameter(torch.empty(4 * out_channels, out_channels))
        self.bias = nn.Parameter(torch.empty(4 * out_channels))
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw all parameters uniformly from ±1/sqrt(out_channels), as torch.nn.LSTM does."""
        for parameter in (self.weight_ih, self.weight_hh, self.bias):
            fan_in_(parameter, self.out_channels, generator)

    def initial_state(self, rows: int, *, dtype: torch.dtype, device: torch.device) -> State:
        """Make a state of zeros."""
        zero = torch.zeros(rows, self.out_channels, dtype=dtype, device=device)
        return zero, zero.clone()

    def forward(self, frames: Sequence[Tensor], state: State, first_step: int) -> tuple[Tensor, State]:
        """Run one step after the other, from the state (h, c) to the next one."""
        outputs, h, c = lstm(frames, state[0], state[1], self.weight_ih, self.weight_hh, self.bias)
        return outputs, (h, c)

    def forward_into(
        self, buffers: OutputBuffers, frames: Sequence[Tensor], state: State
    ) -> tuple[Tensor, State] | None:
        """Write the outputs, and in backward the gradients of the frames, into the buffers."""
        if not _writes_into_buffers(self, frames, state):
            return None
        h, c = state
        outputs, h, c = lstm(frames, h, c, self.weight_ih, self.weight_hh, self.bias, buffers=buffers)
        return outputs, (h, c)


class GRU(Temporal):
    """A GRU per vertex; the state is (h,), [rows, out_channels].

    Shapes: frames [steps, rows, ·], together in_channels wide → [steps, rows, out_channels]. Weights and
    biases are in the layout of torch.nn.GRU, gates in the order r, z, n.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.weight_ih = nn.Parameter(torch.empty(3 * out_channels, in_channels))
        self.weight_hh = nn.Parameter(torch.empty(3 * out_channels, out_channels))
        self.bias_ih = nn.Parameter(torch.empty(3 * out_channels))
        self.bias_hh = nn.Parameter(torch.empty(3 * out_channels))
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw all parameters uniformly from ±1/sqrt(out_channels), as torch.nn.GRU does."""
        for parameter in (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh):
            fan_in_(parameter, self.out_channels, generator)

    def initial_state(self, rows: int, *, dtype: torch.dtype, device: torch.device) -> State:
        """Make a state of zeros."""
        return (torch.zeros(rows, self.out_channels, dtype=dtype, device=device),)

    def forward(self, frames: Sequence[Tensor], state: State, first_step: int) -> tuple[Tensor, State]:
        """Run one step after the other, from the state (h,) to the next one."""
        outputs, h = gru(frames, state[0], self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        return outputs, (h,)

    def forward_into(
        self, buffers: OutputBuffers, frames: Sequence[Tensor], state: State
    ) -> tuple[Tensor, State] | None:
        """Write the outputs, and in backward the gradients of the frames, into the buffers."""
        if not _writes_into_buffers(self, frames, state):
            return None
        weights = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        outputs, h = gru(frames, state[0], *weights, buffers=buffers)
        return outputs, (h,)


def _writes_into_buffers(part: Temporal, frames: Sequence[Tensor], state: State) -> bool:
    """Whether the kernel can write into buffers. It writes the gradients of frames only if autograd calls its
    backward, and without trained weights autograd does not.
    """
    trained = all(parameter.requires_grad for parameter in part.parameters())
    return trained and writes_into_buffers(frames, state[0])
