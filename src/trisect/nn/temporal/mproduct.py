"""TM-GCN's temporal part, Malik et al., "Dynamic Graph Convolutional Networks Using the Tensor M-Product"
(1910.07643).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from trisect.nn.base import State, Temporal
from trisect.ops.band import band

Kind = Literal["mean", "harmonic", "ones"]


class MProduct(Temporal):
    """z_t = Σ_{k=t-w+1..t} M[t,k]·y_k with a banded lower triangular M that has no parameters.

    The state is (the last w-1 frames,), [w-1, rows, channels], zeros before the first step.

    Args:
        channels: width, in and out.
        window: w.
        kind: `mean` M[t,k] = 1/min(w,t) with t counted from 1; `harmonic` M[t,k] = 1/(t-k+1), not normalised;
            `ones` M[t,k] = 1.

    Shapes: frames [steps, rows, channels] → [steps, rows, channels].
    """

    state_kind = "window"

    def __init__(self, channels: int, *, window: int, kind: Kind = "mean") -> None:
        super().__init__()
        self.in_channels = self.out_channels = channels
        self.window = window
        self.kind: Kind = kind

    def initial_state(self, rows: int, *, dtype: torch.dtype, device: torch.device) -> State:
        """Begin with frames of zeros, since there are none yet."""
        return (torch.zeros(self.window - 1, rows, self.out_channels, dtype=dtype, device=device),)

    def weights(self, first_step: int, steps: int, device: torch.device | None = None) -> Tensor:
        """Return the band of the rows first_step .. first_step+steps-1 of M, the oldest frame first; float64 [steps,
        window].
        """
        weights = torch.ones(steps, self.window, dtype=torch.float64, device=device)
        if self.kind == "harmonic":
            return weights / torch.arange(self.window, 0, -1, device=device)
        if self.kind == "mean":
            seen = torch.arange(first_step + 1, first_step + steps + 1, device=device).clamp(max=self.window)
            return weights / seen[:, None]
        return weights

    def forward(self, frames: Sequence[Tensor], state: State, first_step: int) -> tuple[Tensor, State]:
        """Add up the frames of each step's window; before the first step there are zeros."""
        joined = torch.cat(list(frames), 2) if len(frames) > 1 else frames[0]
        out, last = band(joined, state[0], self.weights(first_step, joined.shape[0], joined.device))
        return out, (last,)

    def __repr__(self) -> str:
        return f"MProduct({self.out_channels}, window={self.window}, kind={self.kind})"
