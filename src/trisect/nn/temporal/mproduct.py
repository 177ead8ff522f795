"""TM-GCN's temporal part, Malik et al., "Dynamic Graph Convolutional Networks Using the Tensor M-Product"
(1910.07643).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from trisect.nn.base import State, Temporal

Kind = Literal["mean", "harmonic", "ones"]

# Steps that one dense product covers: wide enough for a fast product, narrow enough that the zeros of the band cost
# little.
_STEPS = 64


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

    def matrix(self, first_step: int, steps: int, device: torch.device | None = None) -> Tensor:
        """Give the rows first_step .. first_step+steps-1 of M, for the frames first_step-w+1 .. ; float64 [steps,
        steps+w-1].
        """
        frame = torch.arange(steps + self.window - 1, device=device)
        lag = frame[:steps, None] + (self.window - 1) - frame[None, :]
        band = ((lag >= 0) & (lag < self.window)).to(torch.float64)
        if self.kind == "harmonic":
            return band / (lag.clamp(min=0) + 1)
        if self.kind == "mean":
            seen = torch.arange(first_step + 1, first_step + steps + 1, device=device).clamp(max=self.window)
            return band / seen[:, None]
        return band

    def forward(self, frames: Sequence[Tensor], state: State, first_step: int) -> tuple[Tensor, State]:
        """Multiply by a dense slice of M for every 64 steps; the zeros of M keep it exact."""
        joined = torch.cat(list(frames), 2) if len(frames) > 1 else frames[0]
        steps, rows, channels = joined.shape
        series = torch.cat([state[0], joined]) if self.window > 1 else joined
        outputs = []
        for start in range(0, steps, _STEPS):
            count = min(_STEPS, steps - start)
            band = self.matrix(first_step + start, count, joined.device).to(joined.dtype)
            read = series[start : start + count + self.window - 1]
            outputs.append((band @ read.reshape(read.shape[0], -1)).view(count, rows, channels))
        result = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return result, (series[series.shape[0] - (self.window - 1) :],)

    def __repr__(self) -> str:
        return f"MProduct({self.out_channels}, window={self.window}, kind={self.kind})"
