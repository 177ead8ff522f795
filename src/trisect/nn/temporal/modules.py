"""Recurrent parts along time: LSTM and GRU for each vertex, with weights shared by all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from trisect.nn.base import State, Temporal
from trisect.nn.initial import fan_in_
from trisect.ops.recurrent import OutputBuffers, gru, lstm, writes_into_buffers


class Gated(Temporal):
    """A recurrent part of gates, in torch's layout: weight_ih [gates·out, in], weight_hh [gates·out, out].

    All parameters are drawn uniformly from ±1/sqrt(out_channels), as torch does.

    Shapes: frames [steps, rows, ·], together in_channels wide → [steps, rows, out_channels].

    Attributes:
        kernel: kernel(frames, *state, *weights, *biases) → (outputs, *state after).
        gates: how many there are; `biases`: the names of vectors [gates·out].
        states: how many tensors [rows, out_channels] the state has.
    """

    kernel: ClassVar[Any]
    gates: ClassVar[int]
    biases: ClassVar[tuple[str, ...]]
    states: ClassVar[int]

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        width, start = self.gates * out_channels, partial(fan_in_, fan_in=out_channels)
        self.weight_ih = self.drawn("weight_ih", width, in_channels, start=start)
        self.weight_hh = self.drawn("weight_hh", width, out_channels, start=start)
        for name in self.biases:
            self.register_parameter(name, self.drawn(name, width, start=start))

    def initial_state(self, rows: int, *, dtype: torch.dtype, device: torch.device) -> State:
        """Make a state of zeros."""
        return tuple(torch.zeros(rows, self.out_channels, dtype=dtype, device=device) for _ in range(self.states))

    def forward(
        self, frames: Sequence[Tensor], state: State, first_step: int, buffers: OutputBuffers | None = None
    ) -> tuple[Tensor, State]:
        """Run one step after the other, from the state to the one behind the last step."""
        weights = (getattr(self, name) for name in ("weight_ih", "weight_hh", *self.biases))
        outputs, *after = self.kernel(frames, *state, *weights, buffers=buffers)
        return outputs, tuple(after)

    def forward_into(
        self, buffers: OutputBuffers, frames: Sequence[Tensor], state: State
    ) -> tuple[Tensor, State] | None:
        """Write the outputs, and in backward the gradients of the frames, into the buffers."""
        # autograd calls the kernel's backward, which writes the frames' gradients, for weights that are trained
        trained = all(parameter.requires_grad for parameter in self.parameters())
        return self.forward(frames, state, 0, buffers) if trained and writes_into_buffers(frames, state[0]) else None


class LSTM(Gated):
    """An LSTM per vertex; the state is (h, c), each [rows, out_channels].

    Gates in the order i, f, g, o; there is one bias [4·out] (torch.nn.LSTM adds up two).
    """

    kernel = staticmethod(lstm)
    gates = 4
    biases = ("bias",)
    states = 2


class GRU(Gated):
    """A GRU per vertex; the state is (h,), [rows, out_channels]. Gates in the order r, z, n, as in torch.nn.GRU."""

    kernel = staticmethod(gru)
    gates = 3
    biases = ("bias_ih", "bias_hh")
    states = 1
