"""LSTM and GRU of every vertex over all steps, in one pass over memory.

torch's own recurrent kernels are made for wide hidden states and few sequences; here there are very many short-state
sequences, one a vertex. The native kernel runs its vectors across vertices and keeps a strip of them in the first cache
for all steps; backward computes the gates again instead of storing them. Weights have torch.nn.LSTM's and
torch.nn.GRU's layout, and the results agree with theirs to rounding.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trisect.errors import ConfigError
from trisect.native import library
from trisect.ops.memory import alias, empty

_LSTM, _GRU = 0, 1
_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}


@dataclass
class OutputBuffers:
    """The tensors that the native kernel writes: rows of larger ones, so that chunks need not be joined afterwards.

    Attributes:
        out: for the outputs, [steps, rows, hidden], its last dim contiguous.
        gradients: for the gradient of each frame, of the frame's shape, or None where it is not wanted; to be set
            before backward. Autograd is told of none of them.
    """

    out: Tensor
    gradients: Sequence[Tensor | None] = field(default=())


def lstm(
    frames: Tensor | Sequence[Tensor],
    h: Tensor,
    c: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None = None,
    *,
    buffers: OutputBuffers | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One LSTM layer over all steps, its weights shared by all vertices.

    Args:
        frames: one or two tensors [steps, rows, features], read side by side as if concatenated.
        h, c: the state before the first step, each [rows, hidden].
        weight_ih: [4 * hidden, sum of features], gates in the order i, f, g, o.
        weight_hh: [4 * hidden, hidden].
        bias: [4 * hidden], the sum of torch.nn.LSTM's two.
        buffers: where the native kernel writes; they are used only where `writes_into_buffers` is true.

    Returns:
        the outputs [steps, rows, hidden], and the state (h, c) after the last step.
    """
    inputs = _checked(frames, (h, c), weight_ih, weight_hh, 4, (bias,), buffers)
    if not writes_into_buffers(inputs, h):
        return lstm_torch(inputs, h, c, weight_ih, weight_hh, bias)
    hidden = h.shape[1]
    weights = torch.cat((weight_ih, weight_hh), 1).view(4, hidden, -1).permute(1, 2, 0)
    biases = h.new_zeros(hidden, 4) if bias is None else bias.view(4, hidden).t()
    second = inputs[1] if len(inputs) == 2 else None
    out, h_last, c_last = _Recurrent.apply(_LSTM, inputs[0], second, h, c, weights, biases, buffers)  # type: ignore[no-untyped-call]
    return out, h_last, c_last


def gru(
    frames: Tensor | Sequence[Tensor],
    h: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    *,
    buffers: OutputBuffers | None = None,
) -> tuple[Tensor, Tensor]:
    """One GRU layer over all steps, its weights shared by all vertices.

    Args:
        frames: one or two tensors [steps, rows, features], read side by side as if concatenated.
        h: the state before the first step, [rows, hidden].
        weight_ih: [3 * hidden, sum of features], gates in the order r, z, n.
        weight_hh: [3 * hidden, hidden].
        bias_ih, bias_hh: each [3 * hidden]; they differ for n, where r multiplies the hidden side alone.
        buffers: where the native kernel writes; they are used only where `writes_into_buffers` is true.

    Returns:
        the outputs [steps, rows, hidden], and the state h after the last step.
    """
    inputs = _checked(frames, (h,), weight_ih, weight_hh, 3, (bias_ih, bias_hh), buffers)
    if not writes_into_buffers(inputs, h):
        return gru_torch(inputs, h, weight_ih, weight_hh, bias_ih, bias_hh)
    hidden = h.shape[1]
    # the kernel's fourth gate: n has one sum over the inputs and one over the hidden state
    of_input, of_hidden = weight_ih.view(3, hidden, -1), weight_hh.view(3, hidden, hidden)
    of_input = torch.cat((of_input, torch.zeros_like(of_input[:1])))
    of_hidden = torch.stack((of_hidden[0], of_hidden[1], torch.zeros_like(of_hidden[0]), of_hidden[2]))
    weights = torch.cat((of_input, of_hidden), 2).permute(1, 2, 0)
    zero = h.new_zeros(3, hidden)
    first = zero if bias_ih is None else bias_ih.view(3, hidden)
    second = zero if bias_hh is None else bias_hh.view(3, hidden)
    biases = torch.stack((first[0] + second[0], first[1] + second[1], first[2], second[2]), 1)
    frame = inputs[1] if len(inputs) == 2 else None
    out, h_last, _ = _Recurrent.apply(_GRU, inputs[0], frame, h, None, weights, biases, buffers)  # type: ignore[no-untyped-call]
    return out, h_last


def lstm_torch(
    frames: Sequence[Tensor], h: Tensor, c: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """`lstm` in plain torch operations: the oracle, and the path for other devices and types."""
    from_input = torch.nn.functional.linear(torch.cat(tuple(frames), 2), weight_ih, bias)
    out = []
    for step in range(from_input.shape[0]):
        i, f, g, o = (from_input[step] + h @ weight_hh.t()).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        out.append(h)
    return torch.stack(out) if out else from_input.new_zeros(0, *h.shape), h, c


def gru_torch(
    frames: Sequence[Tensor],
    h: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`gru` in plain torch operations: the oracle, and the path for other devices and types."""
    from_input = torch.nn.functional.linear(torch.cat(tuple(frames), 2), weight_ih, bias_ih)
    out = []
    for step in range(from_input.shape[0]):
        r_input, z_input, n_input = from_input[step].chunk(3, 1)
        r_hidden, z_hidden, n_hidden = torch.nn.functional.linear(h, weight_hh, bias_hh).chunk(3, 1)
        r, z = (r_input + r_hidden).sigmoid(), (z_input + z_hidden).sigmoid()
        n = (n_input + r * n_hidden).tanh()
        h = n + z * (h - n)
        out.append(h)
    return torch.stack(out) if out else from_input.new_zeros(0, *h.shape), h


def _checked(
    frames: Tensor | Sequence[Tensor],
    state: Sequence[Tensor],
    weight_ih: Tensor,
    weight_hh: Tensor,
    gates: int,
    biases: Sequence[Tensor | None],
    buffers: OutputBuffers | None,
) -> tuple[Tensor, ...]:
    """Return the frames as a tuple, and refuse shapes that do not fit, since the kernel reads raw memory."""
    inputs = (frames,) if isinstance(frames, Tensor) else tuple(frames)
    if len(inputs) not in (1, 2) or any(frame.dim() != 3 for frame in inputs):
        shapes = [tuple(frame.shape) for frame in inputs]
        raise ConfigError(f"frames have shapes {shapes}; give one or two tensors [steps, rows, features].")
    steps, rows = inputs[0].shape[:2]
    hidden = state[0].shape[-1]
    if inputs[-1].shape[:2] != (steps, rows):
        raise ConfigError(
            f"frames cover {tuple(inputs[-1].shape[:2])} and {(steps, rows)} steps and rows; make them equal."
        )
    for tensor in state:
        if tuple(tensor.shape) != (rows, hidden):
            raise ConfigError(f"the state has shape {tuple(tensor.shape)}; {(rows, hidden)} is needed.")
    features = sum(frame.shape[2] for frame in inputs)
    for name, weight, columns in (("weight_ih", weight_ih, features), ("weight_hh", weight_hh, hidden)):
        if tuple(weight.shape) != (gates * hidden, columns):
            raise ConfigError(f"{name} has shape {tuple(weight.shape)}; {(gates * hidden, columns)} is needed.")
    h = state[0]
    for other in (*state, weight_ih, weight_hh, *biases):
        if other is not None and (other.dtype != h.dtype or other.device != h.device):
            raise ConfigError(
                f"the state h is {h.dtype} on {h.device}, and another state, weight or bias {other.dtype} on"
                f" {other.device}; give all of one type and device."
            )
    for bias in biases:
        if bias is not None and tuple(bias.shape) != (gates * hidden,):
            raise ConfigError(f"a bias has shape {tuple(bias.shape)}; {(gates * hidden,)} is needed.")
    if buffers is not None:
        _check_buffer("buffers.out", buffers.out, (steps, rows, hidden), h)
    return inputs


def _check_buffer(name: str, buffer: Tensor | None, shape: tuple[int, ...], like: Tensor) -> None:
    """Refuse a tensor that the kernel cannot write as it is told to."""
    if buffer is None:
        return
    if tuple(buffer.shape) != shape or buffer.dtype != like.dtype or buffer.device != like.device:
        raise ConfigError(f"{name} is {buffer.dtype} {list(buffer.shape)}; {like.dtype} {list(shape)} is needed.")
    if shape[-1] > 1 and buffer.stride(-1) != 1:
        raise ConfigError(f"{name} has a stride of {buffer.stride(-1)} in its last dim; it must be contiguous there.")


def writes_into_buffers(frames: Sequence[Tensor], h: Tensor) -> bool:
    """Whether the native kernel computes these frames, [steps, rows, ·], from this state."""
    return (
        all(tensor.device.type == "cpu" and tensor.dtype == h.dtype for tensor in (*frames, h))
        and h.dtype in _SUFFIX
        and min(h.shape[1], frames[0].shape[0]) > 0
        and library.available()
    )


class _Frame(ctypes.Structure):
    """This mirrors `FRAME` of native/recurrent.c."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("step_stride", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
        ("width", ctypes.c_int64),
    )

    @classmethod
    def of(cls, tensor: Tensor | None) -> _Frame:
        if tensor is None:
            return cls(None, 0, 0, 0)
        return cls(tensor.data_ptr(), tensor.stride(0), tensor.stride(1), tensor.shape[2])


class _Problem(ctypes.Structure):
    """This mirrors `struct problem` of recurrent_body.h."""

    _fields_ = (
        ("steps", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("hidden", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
        ("frames", _Frame * 2),
        ("h0", ctypes.c_void_p),
        ("c0", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("out_step", ctypes.c_int64),
        ("out_row", ctypes.c_int64),
    )


class _Gradients(ctypes.Structure):
    """This mirrors `struct gradients` of recurrent_body.h."""

    _fields_ = (
        ("out", ctypes.c_void_p),
        ("cells", ctypes.c_void_p),
        ("d_out", ctypes.c_void_p),
        ("d_out_step", ctypes.c_int64),
        ("d_out_row", ctypes.c_int64),
        ("d_h_last", ctypes.c_void_p),
        ("d_c_last", ctypes.c_void_p),
        ("d_frames", _Frame * 2),
        ("d_h0", ctypes.c_void_p),
        ("d_c0", ctypes.c_void_p),
    )


_P, _I = library.POINTER, library.INT
_FORWARD = {
    kind: library.Kernel(f"trisect_recurrent_forward_{kind}", _I, _P, _P, _P, _P, _P, _I, returns=_I)
    for kind in _SUFFIX.values()
}
_BACKWARD = {
    kind: library.Kernel(f"trisect_recurrent_backward_{kind}", _I, _P, _P, _P, _I, returns=_I)
    for kind in _SUFFIX.values()
}
_STRIP = {kind: library.Kernel(f"trisect_recurrent_strip_{kind}", returns=_I) for kind in _SUFFIX.values()}


def _dense(tensor: Tensor) -> Tensor:
    """Return the tensor itself where its last dim is contiguous, as the kernel needs it."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _problem(
    frames: Sequence[Tensor | None], h: Tensor, c: Tensor | None, weights: Tensor, bias: Tensor, out: Tensor
) -> _Problem:
    first = frames[0]
    steps = 0 if first is None else first.shape[0]
    return _Problem(
        steps,
        h.shape[0],
        h.shape[1],
        weights.shape[1],
        (_Frame * 2)(*(_Frame.of(frame) for frame in frames)),
        h.data_ptr(),
        _address(c),
        weights.data_ptr(),
        bias.data_ptr(),
        out.stride(0),
        out.stride(1),
    )


def _check_memory(failed: int) -> None:
    if failed:
        raise MemoryError("There is no memory for the buffers of the recurrent kernel; use fewer threads.")


class _Recurrent(torch.autograd.Function):
    """Runs the native kernel; weights [hidden, inputs, 4] and bias [hidden, 4] as recurrent_body.h describes them."""

    @staticmethod
    def forward(
        ctx: Any,
        cell: int,
        first: Tensor,
        second: Tensor | None,
        h: Tensor,
        c: Tensor | None,
        weights: Tensor,
        bias: Tensor,
        buffers: OutputBuffers | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        first = _dense(first)
        second = None if second is None else _dense(second)
        h, weights, bias = h.contiguous(), weights.contiguous(), bias.contiguous()
        c = None if c is None else c.contiguous()
        kind = _SUFFIX[h.dtype]
        steps, rows, hidden = first.shape[0], *h.shape
        out = empty((steps, rows, hidden), h.dtype) if buffers is None else alias(buffers.out)
        h_last = torch.empty_like(h)
        c_last = None if c is None else torch.empty_like(c)
        cells = None
        if c is not None and any(ctx.needs_input_grad):
            strip = _STRIP[kind]()
            cells = empty((-(-rows // strip), steps, hidden, strip), h.dtype)
        problem = _problem((first, second), h, c, weights, bias, out)
        _check_memory(
            _FORWARD[kind](
                cell,
                ctypes.addressof(problem),
                out.data_ptr(),
                h_last.data_ptr(),
                _address(c_last),
                _address(cells),
                library.threads(),
            )
        )
        ctx.cell, ctx.buffers = cell, buffers
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(first, second, h, c, weights, bias, out, cells)
        return out, h_last, c_last

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_out: Tensor | None, d_h_last: Tensor | None, d_c_last: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        first, second, h, c, weights, bias, out, cells = ctx.saved_tensors
        kind = _SUFFIX[h.dtype]
        d_out = None if d_out is None else _dense(d_out)
        d_h_last = None if d_h_last is None else d_h_last.contiguous()
        d_c_last = None if d_c_last is None else d_c_last.contiguous()
        buffers: OutputBuffers | None = ctx.buffers
        d_frames = [
            empty(frame.shape, frame.dtype) if needed and frame is not None else None
            for frame, needed in zip((first, second), ctx.needs_input_grad[1:3], strict=True)
        ]
        written = d_frames if buffers is None else [*buffers.gradients, None, None][:2]
        for k, (frame, target) in enumerate(zip((first, second), written, strict=True)):
            _check_buffer(f"buffers.gradients[{k}]", target, () if frame is None else tuple(frame.shape), h)
        d_h = torch.empty_like(h)
        d_c = None if c is None else torch.empty_like(c)
        inputs = weights.shape[1]
        lanes = _STRIP[kind]() // 3
        d_weights = torch.empty(h.shape[1], 4, (inputs + lanes) // lanes * lanes, dtype=h.dtype)
        problem = _problem((first, second), h, c, weights, bias, out)
        gradients = _Gradients(
            out.data_ptr(),
            _address(cells),
            _address(d_out),
            0 if d_out is None else d_out.stride(0),
            0 if d_out is None else d_out.stride(1),
            _address(d_h_last),
            _address(d_c_last),
            (_Frame * 2)(*(_Frame.of(frame) for frame in written)),
            d_h.data_ptr(),
            _address(d_c),
        )
        _check_memory(
            _BACKWARD[kind](
                ctx.cell,
                ctypes.addressof(problem),
                ctypes.addressof(gradients),
                d_weights.data_ptr(),
                library.threads(),
            )
        )
        return None, *d_frames, d_h, d_c, d_weights[:, :, :inputs].transpose(1, 2), d_weights[:, :, inputs], None
