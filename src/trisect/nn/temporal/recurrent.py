"""Recurrent parts along time: LSTM and GRU for each vertex, ours and torch's, with weights shared by all vertices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trisect.errors import ConfigError
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


class PlainRecurrent:
    """A recurrent module of torch; each tensor of its state is [rows, num_layers · hidden_size].

    Args:
        module: with time first, one direction and no dropout of its own.
    """

    state_kind: ClassVar = "vertex"

    def __init__(self, module: nn.LSTM | nn.GRU) -> None:
        wrong = {
            "batch_first": module.batch_first,
            "bidirectional": module.bidirectional,
            "dropout": module.dropout > 0.0,
            "proj_size": module.proj_size > 0,
        }
        for name, given in wrong.items():
            if given:
                raise ConfigError(
                    f"{module} has {name}, which g.recur cannot cut along time or rows; leave {name} out."
                )
        self.module, self.out_channels = module, module.hidden_size

    def initial_state(self, rows: int, *, dtype: torch.dtype, device: torch.device) -> State:
        """Return the state before the first step: zeros."""
        width = self.module.num_layers * self.module.hidden_size
        count = 2 if isinstance(self.module, nn.LSTM) else 1
        return tuple(torch.zeros(rows, width, dtype=dtype, device=device) for _ in range(count))

    def __call__(self, frames: Sequence[Tensor], state: State, first_step: int) -> tuple[Tensor, State]:
        """Return the output, [steps, rows, hidden_size], and the state behind it."""
        x = frames[0] if len(frames) == 1 else torch.cat(list(frames), 2)
        if not len(x):  # which torch refuses
            return x.new_zeros(0, x.shape[1], self.out_channels), state
        shape = x.shape[1], self.module.num_layers, self.module.hidden_size
        before: Any = tuple(tensor.view(shape).transpose(0, 1).contiguous() for tensor in state)
        out, after = self.module(x, before if len(before) == 2 else before[0])
        behind = after if isinstance(after, tuple) else (after,)
        return out, tuple(tensor.transpose(0, 1).reshape(shape[0], -1) for tensor in behind)

    def forward_into(self, buffers: Any, frames: Sequence[Tensor], state: State) -> None:
        """Return None: torch's modules write into no buffers."""

    def __repr__(self) -> str:
        return repr(self.module)


def recurrent(module: Any) -> Any:
    """Return a recurrent module as `View.recur` calls it.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(module, (nn.LSTM, nn.GRU)):
        return PlainRecurrent(module)
    if not hasattr(module, "initial_state"):
        raise ConfigError(f"g.recur cannot run {module} along steps; give torch.nn.LSTM, GRU or a trisect.nn.Temporal.")
    return module
