"""`torch.nn.LSTM` and `torch.nn.GRU` as modules that `View.recur` takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trisect.errors import ConfigError
from trisect.nn.base import State


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
