"""Messages made of a source row and the features of its edge: attention (GATv2) and sums (GINE).

The kernels form messages on the way and store for an edge a bit for each feature and a coefficient for each head;
edges_body.h has the derivation. Features of edges are data, and get no gradient.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trisect.errors import ConfigError
from trisect.graph.adjacency import Adjacency
from trisect.native import library
from trisect.noise import Noise
from trisect.ops._finish import usable
from trisect.ops.attention import check_device, coefficients, pair_draws, with_adjacent_rows
from trisect.ops.memory import empty

_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
_CHUNK = 1 << 24
"""How many numbers the torch path forms at once where no gradient is needed."""


def attend_edges(
    x: Tensor,
    target: Tensor,
    attention: Tensor,
    adjacency: Adjacency,
    weight: Tensor | None = None,
    negative_slope: float = 0.2,
    *,
    dropout: float = 0.0,
    noise: Noise | None = None,
    source_vertices: Tensor | None = None,
) -> Tensor:
    """out_i = Σ_j a_ij x_j, a_ij = softmax over j of att · leaky_relu(x_j + target_i + W e_ij), in each head (GATv2).

    The matrix's values are not used. A row without entries gives 0.

    Args:
        x: [columns, heads·channels].
        target: [rows, heads·channels].
        attention: [heads, channels].
        adjacency: whose edges have `features` e.
        weight: W, [heads·channels, features of an edge]; None: edges are not read.
        negative_slope: of the leaky relu.
        dropout, noise, source_vertices: as in `ops.attend`.

    Returns:
        [rows, heads·channels].
    """
    heads, channels = attention.shape
    _check(x, adjacency, heads * channels, weight)
    if tuple(target.shape) != (adjacency.rows, heads * channels):
        raise ConfigError(f"target has shape {tuple(target.shape)}; {(adjacency.rows, heads * channels)} is needed.")
    adjacency = with_adjacent_rows(adjacency)
    draw = pair_draws(adjacency, dropout, noise, source_vertices)
    if usable(x, target, attention, weight):
        turned = None if weight is None else weight.t()
        result: Tensor = _AttendEdges.apply(x, target, attention, turned, adjacency, negative_slope, draw)  # type: ignore[no-untyped-call]
        return result
    return attend_edges_torch(x, target, attention, adjacency, weight, negative_slope, *draw)


def attend_edges_torch(
    x: Tensor,
    target: Tensor,
    attention: Tensor,
    adjacency: Adjacency,
    weight: Tensor | None = None,
    negative_slope: float = 0.2,
    threshold: int = 0,
    scale: float = 1.0,
    keys: Tensor | None = None,
    ids: Tensor | None = None,
) -> Tensor:
    """`attend_edges` in plain torch operations: the oracle, and the path for other devices and types."""
    heads, channels = attention.shape
    source, row = adjacency.edge_index()
    scores = []
    for part, edges in _parts(adjacency, weight, x):
        z = x[source[part]] + target[row[part]]
        z = torch.nn.functional.leaky_relu(z if edges is None else z + edges, negative_slope)
        scores.append((z.view(-1, heads, channels) * attention).sum(-1))
    coefficient = coefficients(torch.cat(scores), adjacency, threshold, scale, keys, ids)
    out = x.new_zeros(adjacency.rows, heads * channels)
    for part, _ in _parts(adjacency, None, x):
        values = x[source[part]].view(-1, heads, channels) * coefficient[part][:, :, None]
        out = out.index_add(0, row[part], values.flatten(1))
    return out


def relu_edges(x: Tensor, bias: Tensor, adjacency: Adjacency, weight: Tensor | None) -> Tensor:
    """out_i = Σ_j relu(x_j + bias + W e_ij) over the edges of row i (the sum in GINE).

    The matrix's values are not used.

    Args:
        x: [columns, channels].
        bias: [channels].
        adjacency: whose edges have `features` e.
        weight: W, [channels, features of an edge].

    Returns:
        [rows, channels].
    """
    _check(x, adjacency, bias.numel(), weight)
    adjacency = with_adjacent_rows(adjacency)
    if usable(x, bias, weight):
        turned = None if weight is None else weight.t()
        result: Tensor = _ReluEdges.apply(x, bias, turned, adjacency)  # type: ignore[no-untyped-call]
        return result
    return relu_edges_torch(x, bias, adjacency, weight)


def relu_edges_torch(x: Tensor, bias: Tensor, adjacency: Adjacency, weight: Tensor | None) -> Tensor:
    """`relu_edges` in plain torch operations: the oracle, and the path for other devices and types."""
    source, row = adjacency.edge_index()
    out = x.new_zeros(adjacency.rows, x.shape[1])
    for part, edges in _parts(adjacency, weight, x):
        z = x[source[part]] + bias
        out = out.index_add(0, row[part], torch.relu(z if edges is None else z + edges))
    return out


def _parts(adjacency: Adjacency, weight: Tensor | None, x: Tensor) -> Iterator[tuple[slice, Tensor | None]]:
    """Go through the entries in parts whose messages are not too many numbers, each with W e of its edges."""
    features = None if weight is None else adjacency.edge_attributes()
    size = adjacency.entries if torch.is_grad_enabled() else max(1, _CHUNK // max(1, x.shape[1]))
    for start in range(0, max(1, adjacency.entries), max(1, size)):
        part = slice(start, min(adjacency.entries, start + size))
        made = None
        if features is not None and weight is not None:
            made = torch.nn.functional.linear(features[part].to(x.dtype), weight)
        yield part, made


def _check(x: Tensor, adjacency: Adjacency, width: int, weight: Tensor | None) -> None:
    """The kernel reads raw memory, so that shapes must fit."""
    if tuple(x.shape) != (adjacency.columns, width):
        raise ConfigError(f"x has shape {tuple(x.shape)}; {(adjacency.columns, width)} is needed.")
    check_device(x, adjacency)
    if weight is None:
        return
    if adjacency.features is None:
        raise ConfigError(
            f"The layer reads {weight.shape[1]} features of each edge, and the edges have none; give the data edge_x."
        )
    if tuple(weight.shape) != (width, adjacency.edge_channels):
        raise ConfigError(
            f"The weight of edge features has shape {tuple(weight.shape)}; "
            f"{(width, adjacency.edge_channels)} is needed."
        )


class _Problem(ctypes.Structure):
    """This mirrors `struct edges` of edges_body.h."""

    _fields_ = (
        ("starts", ctypes.c_void_p),
        ("ends", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("long_positions", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("column_base", ctypes.c_int64),
        ("entries", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        ("edge_channels", ctypes.c_int64),
        ("slope", ctypes.c_double),
        ("features", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("target_keys", ctypes.c_void_p),
        ("source_ids", ctypes.c_void_p),
        ("keep_scale", ctypes.c_double),
        ("threshold", ctypes.c_uint32),
    )


_P, _I = library.POINTER, library.INT


def _kernels(name: str, pointers: int, returns: Any = _I) -> dict[torch.dtype, library.Kernel]:
    return {
        dtype: library.Kernel(f"trisect_edges_{name}_{kind}", *[_P] * pointers, _I, returns=returns)
        for dtype, kind in _SUFFIX.items()
    }


_ATTEND, _ATTEND_ROWS, _ATTEND_COLUMNS = (
    _kernels("attend", 7),
    _kernels("attend_rows", 12),
    _kernels("attend_columns", 8),
)
_RELU, _RELU_ROWS, _RELU_COLUMNS = _kernels("relu", 5), _kernels("relu_rows", 4), _kernels("relu_columns", 4, None)
_SIGN_BYTES = {
    dtype: library.Kernel(f"trisect_edges_sign_bytes_{kind}", library.INT64, returns=library.INT64)
    for dtype, kind in _SUFFIX.items()
}


class _Call:
    """The problem of one call: a matrix, the features of its edges and their weight, and room for its entries.

    Attributes:
        room: for how many entries arrays are needed; a block of rows needs those of its own.
    """

    def __init__(
        self,
        adjacency: Adjacency,
        dtype: torch.dtype,
        heads: int,
        channels: int,
        weight: Tensor | None,
        slope: float = 0.0,
        draw: tuple[int, float, Tensor | None, Tensor | None] = (0, 1.0, None, None),
    ) -> None:
        self.adjacency, self._dtype, self._sizes, self._slope, self._draw = (
            adjacency,
            dtype,
            (heads, channels),
            slope,
            draw,
        )
        self._weight = weight
        self._features = None if weight is None else adjacency.features_as(dtype)
        self.first = int(adjacency.starts.min()) if adjacency.rows else 0
        self.room = (int(adjacency.ends.max()) if adjacency.rows else 0) - self.first
        self.sign_bytes = int(_SIGN_BYTES[dtype](heads * channels))

    def problem(self, matrix: Adjacency) -> _Problem:
        """Describe the matrix, or its transpose, to a kernel."""
        threshold, scale, keys, ids = self._draw
        matrix.checked()
        positions = matrix.positions if matrix is not self.adjacency else None
        narrow = positions is not None and positions.dtype == torch.int32
        return _Problem(
            matrix.starts.data_ptr(),
            matrix.ends.data_ptr(),
            matrix.indices.data_ptr(),
            library.pointer(positions) if narrow else None,
            None if narrow else library.pointer(positions),
            matrix.rows,
            matrix.column_base,
            matrix.indices.numel(),
            self.first,
            *self._sizes,
            0 if self._features is None else self._features.shape[1],
            self._slope,
            library.pointer(self._features),
            library.pointer(self._weight),
            library.pointer(keys),
            library.pointer(ids),
            scale,
            threshold,
        )

    def signs(self) -> Tensor:
        """Make room for the signs of all entries."""
        return empty((self.room, self.sign_bytes), torch.uint8)


def _done(failed: int) -> None:
    if failed:
        raise MemoryError("There is no memory for the buffers of the edges' kernel; use fewer threads.")


class _AttendEdges(torch.autograd.Function):
    """GATv2's attention by the native kernels."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        target: Tensor,
        attention: Tensor,
        weight: Tensor | None,
        adjacency: Adjacency,
        slope: float,
        draw: tuple[int, float, Tensor | None, Tensor | None],
    ) -> Tensor:
        x, target, attention = x.contiguous(), target.contiguous(), attention.contiguous()
        weight = None if weight is None else weight.contiguous()
        heads, channels = attention.shape
        call = _Call(adjacency, x.dtype, heads, channels, weight, slope, draw)
        out = empty((adjacency.rows, heads * channels), x.dtype)
        alpha = signs = None
        if any(ctx.needs_input_grad):
            alpha, signs = empty((call.room, heads), x.dtype), call.signs()
        problem = call.problem(adjacency)
        tensors = (x, target, attention, out, alpha, signs)
        _done(_ATTEND[x.dtype](ctypes.addressof(problem), *(library.pointer(t) for t in tensors), library.threads()))
        ctx.call = call
        ctx.save_for_backward(x, target, attention, weight, out, alpha, signs)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        x, target, attention, weight, out, alpha, signs = ctx.saved_tensors
        call, count, dtype = ctx.call, library.threads(), x.dtype
        d_out = d_out.contiguous()
        pairs = empty((call.room, 2 * attention.shape[0]), dtype)
        d_x, d_target = empty(x.shape, dtype), empty(target.shape, dtype)
        d_attention = torch.zeros_like(attention)
        d_weight = None if weight is None else torch.zeros_like(weight)
        problem = call.problem(call.adjacency)
        tensors = (x, target, attention, out, alpha, signs, d_out, pairs, d_target, d_weight, d_attention)
        _done(_ATTEND_ROWS[dtype](ctypes.addressof(problem), *(library.pointer(t) for t in tensors), count))
        problem = call.problem(call.adjacency.transpose(positions=True))
        read = (x, attention, signs, pairs, d_out, d_x, d_attention)
        _done(_ATTEND_COLUMNS[dtype](ctypes.addressof(problem), *(library.pointer(t) for t in read), count))
        return d_x, d_target, d_attention, d_weight, None, None, None


class _ReluEdges(torch.autograd.Function):
    """GINE's sum by the native kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, weight: Tensor | None, adjacency: Adjacency) -> Tensor:
        x, bias = x.contiguous(), bias.contiguous()
        weight = None if weight is None else weight.contiguous()
        call = _Call(adjacency, x.dtype, 1, x.shape[1], weight)
        out = empty((adjacency.rows, x.shape[1]), x.dtype)
        signs = call.signs() if any(ctx.needs_input_grad) else None
        problem = call.problem(adjacency)
        tensors = (x, bias, out, signs)
        _done(_RELU[x.dtype](ctypes.addressof(problem), *(library.pointer(t) for t in tensors), library.threads()))
        ctx.call, ctx.columns = call, x.shape[0]
        ctx.save_for_backward(weight, signs)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        weight, signs = ctx.saved_tensors
        call, count, dtype = ctx.call, library.threads(), d_out.dtype
        d_out = d_out.contiguous()
        d_weight = None
        if weight is not None:
            d_weight = torch.zeros_like(weight)
            problem = call.problem(call.adjacency)
            tensors = (signs, d_out, d_weight)
            _done(_RELU_ROWS[dtype](ctypes.addressof(problem), *(library.pointer(t) for t in tensors), count))
        d_x = empty((ctx.columns, d_out.shape[1]), dtype)
        problem = call.problem(call.adjacency.transpose(positions=True))
        tensors = (signs, d_out, d_x)
        _RELU_COLUMNS[dtype](ctypes.addressof(problem), *(library.pointer(t) for t in tensors), count)
        return d_x, d_x.sum(0), d_weight, None
