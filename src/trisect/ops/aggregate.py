"""`aggregate`: what every spatial layer is made of."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trisect.errors import ConfigError, DataError
from trisect.graph.adjacency import Adjacency
from trisect.native.library import INT, INT64, POINTER, Kernel, available, threads
from trisect.noise import Noise, drop_threshold
from trisect.ops._aggregate_torch import max_backward_torch, max_torch, sum_torch
from trisect.ops.dropout import dropout, noise_ids
from trisect.ops.memory import empty

Reduce = Literal["sum", "mean", "max"]

# storage type → (suffix of its kernels, type of sums, values and scales)
KINDS = {
    torch.float32: ("f32", torch.float32),
    torch.float64: ("f64", torch.float64),
    torch.bfloat16: ("bf16", torch.float32),
}
_SUM = {dtype: Kernel(f"trisect_sum_{kind}", POINTER, returns=INT) for dtype, (kind, _) in KINDS.items()}
_MAX = {dtype: Kernel(f"trisect_max_{kind}", *[POINTER] * 7, *[INT64] * 5, INT) for dtype, (kind, _) in KINDS.items()}
_MAX_BACKWARD = {
    dtype: Kernel(f"trisect_max_backward_{kind}", *[POINTER] * 9, *[INT64] * 5, INT)
    for dtype, (kind, _) in KINDS.items()
}


class _SumArguments(ctypes.Structure):
    """struct sum_arguments of native/aggregate.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("starts", "ends", "indices", "values", "row_scale", "column_scale")),
        *((name, ctypes.c_void_p) for name in ("x", "add", "bias", "out", "vertices")),
        *((name, ctypes.c_int64) for name in ("rows", "columns", "features", "column_base")),
        *((name, ctypes.c_int64) for name in ("x_stride", "add_stride", "out_stride")),
        *((name, ctypes.c_double) for name in ("alpha", "beta", "scale")),
        ("key", ctypes.c_uint64),
        ("threshold", ctypes.c_uint32),
        ("post", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("targets", ctypes.c_void_p),
    )


def aggregate(x: Tensor, adjacency: Adjacency, reduce: Reduce = "sum") -> Tensor:
    """For each row of the block, the weighted sum (mean, max) of the rows of x that it reads.

    The gradient reaches x; the values of the adjacency are constants. Rows without entries give 0. On the CPU the
    result does not depend on the number of threads.

    Args:
        x: [columns, features].
        reduce: `sum` (values are weights), `mean` (of the weighted rows, by the number of entries), `max` (the gradient
            goes to the first of equal entries).

    Returns:
        [rows, features].
    """
    _check(x, adjacency)
    if reduce == "sum":
        return _sum(x, adjacency, None, None, collector_of(x))
    if reduce == "mean":
        return _sum(x, adjacency, _inverse_counts(adjacency, x.dtype), None, collector_of(x))
    if reduce == "max":
        result: Tensor = _Max.apply(x, adjacency)  # type: ignore[no-untyped-call]
        return result
    raise ConfigError(f"reduce is {reduce!r}; choose sum, mean or max.")


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
    """
    drop = noise is not None and p > 0.0 and slope == 0.0
    if not (_native(x) and out.dtype == x.dtype and _adjacent(out)):
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
    x = x if _adjacent(x) else x.contiguous()
    values = values_as(adjacency, wide)
    scales = [None if scale is None else scale.to(wide).contiguous() for scale in (row_scale, column_scale, bias)]
    if add is not None:
        add = add.to(x.dtype)
        add = add if _adjacent(add) else add.contiguous()
    vertices = noise_ids(noise, adjacency.rows) if noise is not None and drop else None
    targets = None if targets is None else targets.contiguous()
    starts, ends = adjacency.starts.contiguous(), adjacency.ends.contiguous()
    arguments = _SumArguments(
        *(starts.data_ptr(), ends.data_ptr(), adjacency.indices.data_ptr(), _pointer(values)),
        *(_pointer(scales[0]), _pointer(scales[1]), x.data_ptr(), _pointer(add), _pointer(scales[2])),
        *(out.data_ptr(), _pointer(vertices)),
        *(adjacency.rows, adjacency.columns, x.shape[1], adjacency.column_base),
        *(x.stride(0), 0 if add is None else add.stride(0), out.stride(0)),
        *(alpha, beta, 1.0 / (1.0 - p) if drop else slope or 1.0),
        noise.key("dropout") if noise is not None and drop else 0,
        drop_threshold(p) if drop else 0,
        (8 if slope else int(relu)) | (2 if drop else 0) | (0 if targets is None else 4),
        threads(),
        _pointer(targets),
    )
    if _SUM[x.dtype](ctypes.byref(arguments)):
        raise MemoryError("no memory for an aggregation")


class Collector:
    """Where the gradient of rows that several blocks read is added up.

    Autograd would make a tensor as large as all columns for each block. Here each block adds to the rows that it read.

    Args:
        shape, dtype, device: of the sum.
        reads: which columns of a block to add to, and their rows of its transpose (`read_columns`: all that it reads).
        memory: gives a tensor of that shape for the sum when it is first needed.

    Attributes:
        blank: whether nothing was added yet.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        dtype: torch.dtype,
        device: torch.device | None = None,
        reads: Callable[[Adjacency], tuple[Tensor | None, Adjacency]] | None = None,
        memory: Callable[[], Tensor] | None = None,
    ) -> None:
        self.blank = True
        self._reads = read_columns if reads is None else reads
        self._shape, self._dtype, self._device = shape, dtype, device
        self._memory = memory
        self._total: Tensor | None = None

    @classmethod
    def of(cls, total: Tensor) -> Collector:
        """One that begins with this sum."""
        found = cls((total.shape[0], total.shape[1]), total.dtype, total.device)
        found._total, found.blank = total, False
        return found

    def reset(self) -> None:
        """Begin again from nothing."""
        self.blank = True

    def rows(self) -> Tensor:
        """The sum so far [columns, features], zeros where nothing was added."""
        total = self._place()
        if self.blank:
            total.zero_()
            self.blank = False
        return total

    def place(self, block: Adjacency) -> Tensor | None:
        """Where the gradient of a block's rows is best written before it is added, [rows, features]; None: anywhere."""
        return None

    def _place(self) -> Tensor:
        """Memory for the sum, taken when it is first needed."""
        if self._total is None:
            given = self._memory
            self._total = empty(self._shape, self._dtype, self._device) if given is None else given()
        return self._total

    @torch.no_grad()
    def add(
        self,
        gradient: Tensor,
        block: Adjacency,
        *,
        alpha: float = 1.0,
        row_scale: Tensor | None = None,
        column_scale: Tensor | None = None,
    ) -> None:
        """sum += alpha · (diag(row_scale) · block · diag(column_scale))ᵀ · gradient."""
        targets, turned = self._reads(block)
        if self.blank and 2 * turned.rows > block.columns:
            # the first to add writes all rows, which saves a pass that zeroes them
            self.blank = False
            aggregate_into(
                self._place(), gradient, block.transpose(), alpha=alpha, row_scale=column_scale, column_scale=row_scale
            )
            return
        total = self.rows()
        if column_scale is not None and targets is not None:
            column_scale = column_scale[targets]
        aggregate_into(
            total,
            gradient,
            turned,
            alpha=alpha,
            row_scale=column_scale,
            column_scale=row_scale,
            add=total,
            targets=targets,
        )


def collect(message: Tensor, collector: Collector) -> Tensor:
    """The same tensor, the gradient of whose aggregations goes to the collector instead of autograd."""
    vars(message)["collector"] = collector
    return message


def collector_of(message: Tensor) -> Collector | None:
    """What `collect` attached to this very tensor."""
    found = getattr(message, "collector", None)
    return found if isinstance(found, Collector) else None


def add_rows(total: Tensor, rows: Tensor, x: Tensor) -> None:
    """total[rows] += x, for different rows (int64), without autograd."""
    count = rows.numel()
    if count == 0:
        return
    if not (_native(total) and total.dtype == x.dtype):
        total.index_add_(0, rows, x.to(total.dtype))
        return
    places = torch.arange(count + 1)
    each = Adjacency(places[:-1], places[1:], places[:-1].to(torch.int32), None, count)
    aggregate_into(total, x, each, add=total, targets=rows)


def read_columns(block: Adjacency) -> tuple[Tensor | None, Adjacency]:
    """The columns that a block reads (None: all), and their rows of its transpose. Found once."""
    found = block._cache.get("read")
    if isinstance(found, tuple):
        return found
    known = "transpose" in block._cache
    turned = block.transpose()
    rows = torch.nonzero(turned.ends > turned.starts)[:, 0]
    result: tuple[Tensor | None, Adjacency] = (None, turned)
    if rows.numel() < turned.rows:
        part = replace(turned, starts=turned.starts[rows], ends=turned.ends[rows], _cache={})
        result = (rows, part)
        if not known and 2 * rows.numel() <= turned.rows:
            # two integers for every column of the whole matrix are much for a small block
            block._cache.pop("transpose")
    block._cache["read"] = result
    return result


def values_as(adjacency: Adjacency, dtype: torch.dtype) -> Tensor | None:
    """The adjacency's values in the type that a kernel reads; converted once for a matrix and all its views."""
    values = adjacency.values
    if values is None or (values.dtype == dtype and values.is_contiguous()):
        return values
    home = adjacency
    while isinstance(origin := home._cache.get("origin"), tuple):
        home = origin[1]
    found = home._cache.get(f"values_{dtype}")
    if not isinstance(found, Tensor):
        found = values.to(dtype).contiguous()
        home._cache[f"values_{dtype}"] = found
    return found


def _sum(
    x: Tensor,
    adjacency: Adjacency,
    row_scale: Tensor | None,
    column_scale: Tensor | None,
    collector: Collector | None = None,
) -> Tensor:
    result: Tensor = _Sum.apply(x, adjacency, row_scale, column_scale, collector)  # type: ignore[no-untyped-call]
    return result


class _Sum(torch.autograd.Function):
    """diag(row_scale) · A · diag(column_scale) · x; its backward is itself with the transposed matrix."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        adjacency: Adjacency,
        row_scale: Tensor | None,
        column_scale: Tensor | None,
        collector: Collector | None,
    ) -> Tensor:
        ctx.adjacency, ctx.scales, ctx.collector = adjacency, (row_scale, column_scale), collector
        if not _native(x):
            return sum_torch(x, adjacency, row_scale, column_scale)
        out = empty((adjacency.rows, x.shape[1]), x.dtype)
        aggregate_into(out, x, adjacency, row_scale=row_scale, column_scale=column_scale)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        row_scale, column_scale = ctx.scales
        if ctx.collector is not None:
            ctx.collector.add(gradient, ctx.adjacency, row_scale=row_scale, column_scale=column_scale)
            return None, None, None, None, None
        return _sum(gradient, ctx.adjacency.transpose(), column_scale, row_scale), None, None, None, None


class _Max(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, adjacency: Adjacency) -> Tensor:
        ctx.adjacency = adjacency
        if not _native(x):
            out, winner = max_torch(x, adjacency)
            ctx.save_for_backward(winner)
            return out
        rows, features = adjacency.rows, x.shape[1]
        out, winner = empty((rows, features), x.dtype), empty((rows, features), torch.int32)
        x = x if _adjacent(x) else x.contiguous()
        starts, ends = adjacency.starts.contiguous(), adjacency.ends.contiguous()
        values = values_as(adjacency, KINDS[x.dtype][1])
        _MAX[x.dtype](
            *(starts.data_ptr(), ends.data_ptr(), adjacency.indices.data_ptr(), _pointer(values)),
            *(x.data_ptr(), out.data_ptr(), winner.data_ptr()),
            *(rows, features, adjacency.column_base, x.stride(0), features, threads()),
        )
        ctx.save_for_backward(winner)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (winner,) = ctx.saved_tensors
        adjacency: Adjacency = ctx.adjacency
        turned = adjacency.transpose(positions=True)
        if not _native(gradient) or turned.positions is None:
            return max_backward_torch(gradient, winner, adjacency), None
        rows, features = turned.rows, gradient.shape[1]
        out = empty((rows, features), gradient.dtype)
        gradient = gradient if _adjacent(gradient) else gradient.contiguous()
        starts, ends = turned.starts.contiguous(), turned.ends.contiguous()
        origins, positions = adjacency.starts.contiguous(), _positions64(turned)
        values = values_as(turned, KINDS[gradient.dtype][1])
        _MAX_BACKWARD[gradient.dtype](
            *(starts.data_ptr(), ends.data_ptr(), turned.indices.data_ptr(), positions.data_ptr()),
            *(origins.data_ptr(), _pointer(values), gradient.data_ptr(), winner.data_ptr(), out.data_ptr()),
            *(rows, features, turned.column_base, gradient.stride(0), features, threads()),
        )
        return out, None


def _check(x: Tensor, adjacency: Adjacency) -> None:
    if x.dim() != 2 or x.shape[0] != adjacency.columns:
        raise DataError(
            f"x has the shape {tuple(x.shape)}; an adjacency of {adjacency.columns} columns reads "
            f"[{adjacency.columns}, features]."
        )
    if not x.is_floating_point():
        raise DataError(f"x has the type {x.dtype}; convert it to a floating type first.")
    if adjacency.values is not None and adjacency.values.requires_grad:
        raise DataError(
            "The values of the adjacency require a gradient, which aggregate does not give; detach them, or use "
            "ops.attend for weights that are learnt."
        )
    if x.device != adjacency.device:
        raise DataError(f"x is on {x.device} and the adjacency on {adjacency.device}; move one of them.")


def _native(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype in KINDS and available()


def _adjacent(x: Tensor) -> bool:
    """Whether a kernel can read x as rows at a fixed distance."""
    return (x.stride(1) == 1 or x.shape[1] == 1) and (x.stride(0) >= x.shape[1] or x.shape[0] <= 1)


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _inverse_counts(adjacency: Adjacency, dtype: torch.dtype) -> Tensor:
    """1 / number of entries for each row (1 for empty rows) in the type of sums, [rows]; made once."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    found = adjacency._cache.get(f"inverse_counts_{wide}")
    if not isinstance(found, Tensor):
        found = (adjacency.ends - adjacency.starts).clamp(min=1).to(wide).reciprocal()
        adjacency._cache[f"inverse_counts_{wide}"] = found
    return found


def _positions64(turned: Adjacency) -> Tensor:
    found = turned._cache.get("positions64")
    if not isinstance(found, Tensor):
        if turned.positions is None:
            raise DataError("a matrix without positions is no transpose")
        found = turned.positions.to(torch.int64).contiguous()
        turned._cache["positions64"] = found
    return found
