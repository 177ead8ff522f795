"""Attention over what each row reads: softmax of the entries' scores, then the weighted sum (GAT).

Each direction gathers every neighbour's row once and stores nothing for an edge; attention_body.h has the derivation.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trisect.errors import ConfigError
from trisect.graph.adjacency import Adjacency
from trisect.native import library
from trisect.noise import Noise, bits_at, drop_threshold, row_keys
from trisect.ops._finish import usable
from trisect.ops.memory import empty

_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}


def attend(
    x: Tensor,
    source_score: Tensor,
    target_score: Tensor,
    adjacency: Adjacency,
    negative_slope: float = 0.2,
    *,
    dropout: float = 0.0,
    noise: Noise | None = None,
    source_vertices: Tensor | None = None,
) -> Tensor:
    """out_i = Σ_j a_ij x_j with a_ij = softmax over j of leaky_relu(source_score_j + target_score_i), in each head.

    The matrix's values are not used. A row without entries gives 0.

    Args:
        x: [columns, heads, channels].
        source_score: [columns, heads].
        target_score: [rows, heads].
        negative_slope: of the leaky relu.
        dropout: the probability that a coefficient a_ij is dropped (the rest is scaled); drawn for the pair of vertices
            and the head, so that no layout changes it. Nothing is dropped without `noise`.
        noise: where the draw belongs; its vertices are those of the rows.
        source_vertices: int64 [columns], the user's vertex ids of the columns; needed with dropout on a block whose
            columns are not its rows.

    Returns:
        [rows, heads, channels].
    """
    _check(x, source_score, target_score, adjacency)
    adjacency = with_adjacent_rows(adjacency)
    draw = pair_draws(adjacency, dropout, noise, source_vertices)
    if usable(x, source_score, target_score):
        result: Tensor = _Attend.apply(  # type: ignore[no-untyped-call]
            x, source_score, target_score, adjacency, negative_slope, *draw
        )
        return result
    return attend_torch(x, source_score, target_score, adjacency, negative_slope, *draw)


def attend_torch(
    x: Tensor,
    source_score: Tensor,
    target_score: Tensor,
    adjacency: Adjacency,
    negative_slope: float = 0.2,
    threshold: int = 0,
    scale: float = 1.0,
    keys: Tensor | None = None,
    ids: Tensor | None = None,
) -> Tensor:
    """`attend` in plain torch operations: the oracle, and the path for other devices and types.

    keys int64 [rows] are the rows' keys for dropout, ids int64 [columns] the vertex ids of the columns.
    """
    source, target = adjacency.edge_index()
    score = torch.nn.functional.leaky_relu(source_score[source] + target_score[target], negative_slope)
    weight = coefficients(score, adjacency, threshold, scale, keys, ids)
    zero = torch.zeros(adjacency.rows, *x.shape[1:], dtype=x.dtype, device=x.device)
    return zero.index_add(0, target, weight[:, :, None] * x[source])


def coefficients(
    score: Tensor, adjacency: Adjacency, threshold: int, scale: float, keys: Tensor | None, ids: Tensor | None
) -> Tensor:
    """Return the softmax of scores [entries, heads] over each row's entries, with dropout; see `attend_torch`."""
    source, target = adjacency.edge_index()
    heads = score.shape[1]
    zero = score.new_zeros(adjacency.rows, heads)
    index = target[:, None].expand_as(score)
    highest = zero.scatter_reduce(0, index, score.detach(), "amax", include_self=False)
    weight = torch.exp(score - highest[target])
    weight = weight / zero.index_add(0, target, weight)[target]
    if keys is None:
        return weight
    vertex = source if ids is None else ids[source]
    pair = vertex[:, None] * heads + torch.arange(heads, device=score.device)
    return weight * (bits_at(keys[target][:, None], pair) >= threshold) * scale


def _check(x: Tensor, source_score: Tensor, target_score: Tensor, adjacency: Adjacency) -> None:
    """The kernel reads raw memory, so that shapes must fit."""
    if x.dim() != 3 or x.shape[0] != adjacency.columns:
        raise ConfigError(f"x has shape {tuple(x.shape)}; [{adjacency.columns}, heads, channels] is needed.")
    for name, score, rows in (
        ("source_score", source_score, adjacency.columns),
        ("target_score", target_score, adjacency.rows),
    ):
        if tuple(score.shape) != (rows, x.shape[1]):
            raise ConfigError(f"{name} has shape {tuple(score.shape)}; {(rows, x.shape[1])} is needed.")
    check_device(x, adjacency)


def check_device(x: Tensor, adjacency: Adjacency) -> None:
    """Refuse rows and a matrix on two devices."""
    if x.device != adjacency.device:
        raise ConfigError(f"x is on {x.device} and the adjacency on {adjacency.device}; move one of them.")


def with_adjacent_rows(adjacency: Adjacency) -> Adjacency:
    """Return the matrix with starts and ends as a kernel reads them: contiguous."""
    if adjacency.starts.is_contiguous() and adjacency.ends.is_contiguous():
        return adjacency
    return replace(adjacency, starts=adjacency.starts.contiguous(), ends=adjacency.ends.contiguous())


def pair_draws(
    adjacency: Adjacency, dropout: float, noise: Noise | None, source_vertices: Tensor | None
) -> tuple[int, float, Tensor | None, Tensor | None]:
    """Return how coefficients are dropped: `threshold` of the draw, `scale` of the rest, the rows' keys (None: nothing
    is dropped), and the columns' vertex ids (None: columns are vertices 0, 1, …).
    """
    if noise is None or dropout <= 0.0:
        return 0, 1.0, None, None
    targets = noise.vertex_ids(adjacency.rows, adjacency.device)
    if source_vertices is None and noise.vertices is not None:
        if adjacency.rows != adjacency.columns or adjacency.self_start != 0:
            raise ConfigError(
                f"dropout in attention on a block of {adjacency.rows} rows and {adjacency.columns} columns needs "
                "source_vertices, the vertex ids of the columns."
            )
        source_vertices = targets
    if source_vertices is not None:
        if tuple(source_vertices.shape) != (adjacency.columns,):
            raise ConfigError(
                f"source_vertices has the shape {list(source_vertices.shape)}; [{adjacency.columns}] is needed, the"
                " vertex id of each column."
            )
        source_vertices = source_vertices.to(adjacency.device, torch.int64).contiguous()
    keys = row_keys(noise.key("attention"), targets)
    return drop_threshold(dropout), 1.0 / (1.0 - dropout), keys, source_vertices


class _Problem(ctypes.Structure):
    """This mirrors `struct attention` of attention_body.h."""

    _fields_ = (
        ("starts", ctypes.c_void_p),
        ("ends", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("column_base", ctypes.c_int64),
        ("entries", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        ("slope", ctypes.c_double),
        ("target_keys", ctypes.c_void_p),
        ("source_ids", ctypes.c_void_p),
        ("keep_scale", ctypes.c_double),
        ("threshold", ctypes.c_uint32),
    )


_P, _I = library.POINTER, library.INT
_FORWARD = {
    kind: library.Kernel(f"trisect_attend_forward_{kind}", *[_P] * 7, _I, returns=_I) for kind in _SUFFIX.values()
}
_PREPARE = {kind: library.Kernel(f"trisect_attend_prepare_{kind}", *[_P] * 6, _I) for kind in _SUFFIX.values()}
_BACKWARD = {
    kind: library.Kernel(f"trisect_attend_backward_{kind}", *[_P] * 7, _I, returns=_I) for kind in _SUFFIX.values()
}


def _problem(
    matrix: Adjacency,
    x: Tensor,
    slope: float,
    threshold: int,
    scale: float,
    keys: Tensor | None,
    ids: Tensor | None,
) -> _Problem:
    matrix.checked()
    return _Problem(
        matrix.starts.data_ptr(),
        matrix.ends.data_ptr(),
        matrix.indices.data_ptr(),
        matrix.rows,
        matrix.column_base,
        matrix.indices.numel(),
        x.shape[1],
        x.shape[2],
        slope,
        None if keys is None else keys.data_ptr(),
        None if ids is None else ids.data_ptr(),
        scale,
        threshold,
    )


def _done(failed: int) -> None:
    if failed:
        raise MemoryError("There is no memory for the buffers of the attention kernel; use fewer threads.")


class _Attend(torch.autograd.Function):
    """Attention by the native kernels, which gather again in backward and store nothing for an edge."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        source: Tensor,
        target: Tensor,
        adjacency: Adjacency,
        slope: float,
        threshold: int,
        scale: float,
        keys: Tensor | None,
        ids: Tensor | None,
    ) -> Tensor:
        x, source, target = x.contiguous(), source.contiguous(), target.contiguous()
        kind = _SUFFIX[x.dtype]
        shape = (adjacency.rows, *x.shape[1:])
        out = empty(shape, x.dtype)
        stats = positive = None
        if any(ctx.needs_input_grad):
            stats = empty((adjacency.rows, 4, x.shape[1]), x.dtype)
            positive = empty(shape, x.dtype)
        problem = _problem(adjacency, x, slope, threshold, scale, keys, ids)
        _done(
            _FORWARD[kind](
                ctypes.addressof(problem),
                x.data_ptr(),
                source.data_ptr(),
                target.data_ptr(),
                out.data_ptr(),
                None if stats is None else stats.data_ptr(),
                None if positive is None else positive.data_ptr(),
                library.threads(),
            )
        )
        ctx.adjacency, ctx.slope, ctx.draw = adjacency, slope, (threshold, scale, keys, ids)
        ctx.save_for_backward(x, source, out, stats, positive)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        x, source, out, stats, positive = ctx.saved_tensors
        kind, count = _SUFFIX[x.dtype], library.threads()
        d_out = d_out.contiguous()
        # prepare writes into the statistics, and backward may be called a second time
        stats = empty(stats.shape, stats.dtype).copy_(stats)
        d_target = torch.empty(stats.shape[0], x.shape[1], dtype=x.dtype)
        d_x, d_source = empty(x.shape, x.dtype), empty(source.shape, x.dtype)
        problem = _problem(ctx.adjacency, x, ctx.slope, *ctx.draw)
        _PREPARE[kind](
            ctypes.addressof(problem),
            out.data_ptr(),
            positive.data_ptr(),
            d_out.data_ptr(),
            stats.data_ptr(),
            d_target.data_ptr(),
            count,
        )
        problem = _problem(ctx.adjacency.transpose(), x, ctx.slope, *ctx.draw)
        _done(
            _BACKWARD[kind](
                ctypes.addressof(problem),
                x.data_ptr(),
                source.data_ptr(),
                stats.data_ptr(),
                d_out.data_ptr(),
                d_x.data_ptr(),
                d_source.data_ptr(),
                count,
            )
        )
        return d_x, d_source, d_target, None, None, None, None, None, None
