"""`aggregate_into` calls the kernel that sums weighted rows in one pass, with all that follows; no autograd here."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from trisect.errors import DataError
from trisect.graph.adjacency import Adjacency
from trisect.native.library import INT, POINTER, Kernel, available, threads
from trisect.noise import Noise, drop_threshold
from trisect.ops.dropout import dropout, noise_ids
from trisect.ops.spmm._aggregate_torch import sum_torch

# storage type → (suffix of its kernels, type of sums, values and scales)
KINDS = {
    torch.float32: ("f32", torch.float32),
    torch.float64: ("f64", torch.float64),
    torch.bfloat16: ("bf16", torch.float32),
}
_SUM = {dtype: Kernel(f"trisect_sum_{kind}", POINTER, returns=INT) for dtype, (kind, _) in KINDS.items()}

_VECTOR = 64  # elements, at most, of the widest


# `struct sum_arguments` of native/aggregate.h; packed, since ctypes takes longer to fill a structure than small sums do
_ARGUMENTS = struct.Struct("@11P7q3dQI2i2Pq")


def aggregate_into(
    out: Tensor,
    x: Tensor,
    adjacency: Adjacency,
    *,
    alpha: float = 1.0,
    row_scale: Tensor | None = None,
    column_scale: Tensor | None = None,
    add: Tensor | None = None,
    beta: float = 1.0,
    bias: Tensor | None = None,
    relu: bool = False,
    slope: float = 0.0,
    p: float = 0.0,
    noise: Noise | None = None,
    targets: Tensor | None = None,
    last_rows: Tensor | None = None,
) -> None:
    """out = dropout(relu(alpha · diag(row_scale) · A · diag(column_scale) · x + beta · add + bias)), without autograd.

    One pass: what follows the sum is done before a row leaves the cache.

    Args:
        out: [rows, features], elements of a row adjacent, rows at any distance; may be `add`, not `x`.
        x: [columns, features].
        row_scale, column_scale: [rows], [columns].
        add: [rows, features].
        bias: [features].
        slope: above 0, leaky_relu with this slope in place of relu, and nothing is dropped.
        p, noise: dropout as `ops.dropout` does it; none without noise.
        targets: int64 [rows], all different; then row i of the result is row targets[i] of `out`, which keeps its other
            rows, and of `add`. With add = out the sums are added to some rows of a larger tensor.
        last_rows: [last columns, features], read instead of the last rows of x, which may hold anything.
    """
    if last_rows is not None and (last_rows.shape[0] > x.shape[0] or last_rows.shape[1:] != x.shape[1:]):
        raise DataError(
            f"last_rows has the shape {list(last_rows.shape)}, and rows {list(x.shape)}; give as many channels,"
            " and no more rows."
        )
    if last_rows is not None and last_rows.shape[0] == 0:
        last_rows = None
    if last_rows is not None and not reads_last_rows(x, last_rows):
        # a copy: autograd may have saved x
        x, last_rows = torch.cat([x[: x.shape[0] - last_rows.shape[0]], last_rows]), None
    drop = noise is not None and p > 0.0 and slope == 0.0
    if not (native(x) and out.dtype == x.dtype and adjacent(out)):
        y = sum_torch(x, adjacency, row_scale, column_scale)
        y = y if alpha == 1.0 else y * alpha
        if add is not None:
            y = torch.add(y, add if targets is None else add.index_select(0, targets), alpha=beta)
        y = y if bias is None else y + bias
        y = torch.relu(y) if relu else y
        y = dropout(y, p, noise) if slope == 0.0 else torch.nn.functional.leaky_relu(y, slope)
        _ = out.copy_(y) if targets is None else out.index_copy_(0, targets, y.to(out.dtype))
        return
    wide = KINDS[x.dtype][1]
    starts, ends, indices, values = adjacency.for_kernels(wide)
    x = x if adjacent(x) else x.contiguous()
    if row_scale is not None or column_scale is not None or bias is not None:
        row_scale, column_scale, bias = (
            None if scale is None else scale.to(wide).contiguous() for scale in (row_scale, column_scale, bias)
        )
    if add is not None:
        add = add if add.dtype == x.dtype else add.to(x.dtype)
        add = add if adjacent(add) else add.contiguous()
    vertices = noise_ids(noise, adjacency.rows) if noise is not None and drop else None
    targets = None if targets is None else targets.contiguous()
    arguments = _ARGUMENTS.pack(
        starts.data_ptr(),
        ends.data_ptr(),
        indices.data_ptr(),
        _address(values),
        _address(row_scale),
        _address(column_scale),
        x.data_ptr(),
        _address(add),
        _address(bias),
        out.data_ptr(),
        _address(vertices),
        adjacency.rows,
        adjacency.columns,
        x.shape[1],
        adjacency.column_base,
        x.stride(0),
        0 if add is None else add.stride(0),
        out.stride(0),
        alpha,
        beta,
        1.0 / (1.0 - p) if drop else slope or 1.0,
        noise.key("dropout") if noise is not None and drop else 0,
        drop_threshold(p) if drop else 0,
        (8 if slope else int(relu)) | (2 if drop else 0) | (0 if targets is None else 4),
        threads(),
        _address(targets),
        _address(last_rows),
        0 if last_rows is None else x.shape[0] - last_rows.shape[0],
    )
    if _SUM[x.dtype](arguments):
        raise MemoryError("There is no memory for an aggregation; cut the graph into more parts.")


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def native(x: Tensor) -> bool:
    """Whether the kernels take x."""
    return x.device.type == "cpu" and x.dtype in KINDS and available()


def adjacent(x: Tensor) -> bool:
    """Whether a kernel can read x as rows at a fixed distance."""
    return (x.stride(1) == 1 or x.shape[1] == 1) and (x.stride(0) >= x.shape[1] or x.shape[0] <= 1)


def reads_last_rows(x: Tensor, last_rows: Tensor) -> bool:
    """Whether a kernel can read `last_rows` instead of the last rows of x.

    It loads full vectors at the end of the other rows of x, which must not reach past the memory of x: unless the last
    rows are very few, their memory is room enough.
    """
    room = last_rows.shape[0] * x.stride(0) >= _VECTOR
    return native(x) and adjacent(x) and room and last_rows.dtype == x.dtype and last_rows.stride() == x.stride()
