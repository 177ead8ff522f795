"""Relu (or leaky relu) and dropout at the end of a kernel, as arguments of it, and their gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from trisect.errors import ConfigError
from trisect.native.library import DOUBLE, INT, INT64, POINTER, UINT32, UINT64, Kernel, available, threads
from trisect.noise import Noise, drop_threshold
from trisect.ops.dropout import noise_ids
from trisect.ops.memory import empty

KINDS = {torch.float32: "f32", torch.float64: "f64"}

# relu, drop, threshold, scale, key, vertices
FINISH_TYPES = (INT, INT, UINT32, DOUBLE, UINT64, POINTER)

_GRADIENT = {
    dtype: Kernel(
        f"trisect_finish_gradient_{kind}",
        *(POINTER, INT64, POINTER, INT64, POINTER, INT64, POINTER, INT64, INT64),
        *FINISH_TYPES,
        INT,
        returns=INT,
    )
    for dtype, kind in KINDS.items()
}


@dataclass(frozen=True, eq=False)
class Finish:
    """y → dropout(relu(y)); each part may be missing. `noise` is None where nothing is dropped.

    With `slope` it is leaky_relu(y) alone.
    """

    relu: bool
    p: float
    noise: Noise | None
    vertices: Tensor | None
    slope: float = 0.0

    NONE: ClassVar[Finish]

    @classmethod
    def of(cls, relu: bool, p: float, noise: Noise | None, rows: int) -> Finish:
        """Make the finish of that many rows, with the ids of the noise as the kernels read them."""
        if not 0.0 <= p < 1.0:
            raise ConfigError(f"dropout is {p}; choose a probability from 0 up to, but not including, 1.")
        if noise is None or p == 0.0:
            return cls(relu, 0.0, None, None)
        return cls(relu, p, noise, noise_ids(noise, rows))

    @classmethod
    def leaky(cls, slope: float | None) -> Finish:
        """Make a finish without dropout; slope 0 is relu, and None changes nothing."""
        return cls.NONE if slope is None else cls(slope == 0.0, 0.0, None, None, slope)

    @property
    def active(self) -> bool:
        """Whether the finish changes anything."""
        return self.relu or self.noise is not None or self.slope > 0.0

    def arguments(self) -> tuple[object, ...]:
        """Return the arguments of a kernel in the order of FINISH_TYPES."""
        if self.slope > 0.0:
            return 2, 0, 0, self.slope, 0, None
        if self.noise is None:
            return int(self.relu), 0, 0, 1.0, 0, None
        pointer = None if self.vertices is None else self.vertices.data_ptr()
        threshold, scale = drop_threshold(self.p), 1.0 / (1.0 - self.p)
        return int(self.relu), 1, threshold, scale, self.noise.key("dropout"), pointer


Finish.NONE = Finish(False, 0.0, None, None)


def usable(first: Tensor, *others: Tensor | None) -> bool:
    """Whether the native kernels take these tensors: on the CPU, float32 or float64, all alike."""
    device, dtype = first.device, first.dtype
    if device.type != "cpu" or dtype not in KINDS or not available():
        return False
    for other in others:  # noqa: SIM110 (a generator takes longer than some kernels)
        if other is not None and (other.dtype != dtype or other.device != device):
            return False
    return True


def rows_contiguous(x: Tensor) -> Tensor:
    """Return x itself where the elements of a row are adjacent, or else a copy."""
    return x if x.stride(1) == 1 or x.shape[1] <= 1 else x.contiguous()


def finish_gradient(
    gradient: Tensor, out: Tensor | None, finish: Finish, want_bias: bool, result: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return the gradient before relu and dropout, and the sum of its rows where wanted.

    `out` is what the kernel gave (with relu); `result` [rows, width] is written where given and something changes.
    """
    if not finish.active:
        return gradient, gradient.sum(0) if want_bias else None
    rows, width = gradient.shape
    result = empty((rows, width), gradient.dtype) if result is None else result
    gbias = torch.empty(width, dtype=gradient.dtype) if want_bias else None
    failed = _GRADIENT[gradient.dtype](
        gradient.data_ptr(),
        gradient.stride(0),
        None if out is None else out.data_ptr(),
        0 if out is None else out.stride(0),
        result.data_ptr(),
        result.stride(0),
        None if gbias is None else gbias.data_ptr(),
        rows,
        width,
        *finish.arguments(),
        threads(),
    )
    if failed:
        raise MemoryError("There is no memory for the gradient of relu and dropout; cut the graph into more parts.")
    return result, gbias
