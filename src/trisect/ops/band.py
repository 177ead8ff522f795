"""Weighted sums over a window of frames along time: a banded matrix without parameters times a timeline.

The matrix is never made: each row has as many weights as the window is wide. The native kernel goes over memory once,
and nothing is kept for backward, which is the same sum with the weights of the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trisect.native.library import INT, INT64, POINTER, Kernel, available, threads
from trisect.ops.memory import empty

_KERNELS = {
    dtype: Kernel(f"trisect_band_{kind}", POINTER, POINTER, INT64, POINTER, POINTER, POINTER, INT64, INT64, INT)
    for dtype, kind in ((torch.float32, "f32"), (torch.float64, "f64"))
}
# Steps that one dense product of the torch path covers: wide enough for a fast product, narrow enough that the zeros of
# the band cost little.
_STEPS = 64


def band(frames: Tensor, before: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """out[t] = Σ_j weights[t, j]·series[t+j], where the series is the frames before the first, then the frames.

    Args:
        frames: [steps, rows, channels].
        before: [window-1, rows, channels].
        weights: [steps, window], without a gradient.

    Returns: the sums, of the frames' shape, and the last window-1 frames of the series.
    """
    if available() and frames.device.type == "cpu" and frames.dtype in _KERNELS and len(frames):
        out, last = _Band.apply(frames, before, weights.to(frames.dtype))  # type: ignore[no-untyped-call]
        return out, last
    return band_torch(frames, before, weights)


def band_torch(frames: Tensor, before: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """`band` in plain torch operations: the oracle, and the path for other devices and types."""
    (steps, rows, channels), window = frames.shape, weights.shape[1]
    series = torch.cat([before, frames]) if window > 1 else frames
    outputs = [frames.new_zeros(0, rows, channels)]
    for start in range(0, steps, _STEPS):
        own = weights[start : start + _STEPS]
        count = len(own)
        dense = own.new_zeros(count, count + window - 1)
        dense.scatter_(
            1, torch.arange(count, device=own.device)[:, None] + torch.arange(window, device=own.device), own
        )
        read = series[start : start + count + window - 1]
        outputs.append((dense.to(frames.dtype) @ read.reshape(len(read), -1)).view(count, rows, channels))
    return torch.cat(outputs), series[len(series) - (window - 1) :]


class _Band(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, frames: Tensor, before: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        steps, window = weights.shape
        series = [*before.contiguous(), *frames.contiguous()]
        out = empty(frames.shape, frames.dtype)
        first = torch.arange(steps)
        _sum(series, list(out), first, first + window, weights)
        kept = series[len(series) - (window - 1) :]
        last = torch.stack(kept) if kept else before.new_zeros(before.shape)
        ctx.save_for_backward(weights)
        ctx.shapes = before.shape, frames.shape
        ctx.set_materialize_grads(False)
        return out, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_out: Tensor | None, of_last: Tensor | None) -> tuple[Tensor | None, ...]:
        (weights,) = ctx.saved_tensors
        of_before = empty(ctx.shapes[0], weights.dtype) if ctx.needs_input_grad[1] else None
        of_frames = empty(ctx.shapes[1], weights.dtype)
        (steps, window), skipped = weights.shape, 0 if of_before is not None else ctx.shapes[0][0]
        series = [*(() if of_before is None else of_before), *of_frames]
        if of_out is None:
            for frame in series:
                frame.zero_()
        else:
            # a frame of the series is read by the steps up to its own, each with another weight
            frame = torch.arange(skipped, steps + window - 1)
            first, last = (frame - window + 1).clamp(min=0), (frame + 1).clamp(max=steps)
            reader = first[:, None] + torch.arange(window)
            column = (frame[:, None] - reader).clamp(min=0)
            _sum(list(of_out.contiguous()), series, first, last, weights[reader.clamp(max=steps - 1), column])
        if of_last is not None:
            for own, more in zip(reversed(series), reversed(list(of_last)), strict=False):
                own += more
        return of_frames, of_before, None


def _sum(read: Sequence[Tensor], written: Sequence[Tensor], first: Tensor, last: Tensor, weights: Tensor) -> None:
    """Write to each frame the sum of the frames first .. last-1 that are read, with its row of the weights."""
    if not written:
        return
    weights = weights.contiguous()
    sources, targets = (torch.tensor([frame.data_ptr() for frame in frames]) for frames in (read, written))
    _KERNELS[written[0].dtype](
        sources.data_ptr(),
        targets.data_ptr(),
        len(written),
        first.data_ptr(),
        last.data_ptr(),
        weights.data_ptr(),
        weights.shape[1],
        written[0].numel(),
        threads(),
    )
