"""Aggregation over a skewed graph: Trisect's kernels, torch's sparse products, gather and scatter, PyG's attention.

All candidates run in this process, turn by turn, on one R-MAT graph in a random vertex order. Beside them stands what
the memory gives: the bandwidth of a copy, and the time to read the gathered rows once and do nothing with them.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trisect.data.generators.static_graphs import rmat
from trisect.graph.adjacency import Adjacency
from trisect.native.library import INT, INT64, POINTER, UINT64, Kernel, available, level, threads
from trisect.ops.attention import attend
from trisect.ops.memory import empty
from trisect.ops.spmm._aggregate_torch import sum_torch
from trisect.ops.spmm.aggregate import aggregate
from trisect.ops.spmm.sums import aggregate_into
from trisect_bench._check import FACTOR, require_sums
from trisect_bench._harness import Timing, interleave

WIDTHS = (6, 16, 64, 100, 128, 256)
_READ_ROWS = Kernel("trisect_read_rows", POINTER, POINTER, INT64, INT64, INT, returns=UINT64)


def run(
    vertices: int = 100_000,
    edges: int = 2_000_000,
    widths: Sequence[int] = WIDTHS,
    rounds: int = 7,
    threads: int = 2,
    attention: bool = True,
    seed: int = 0,
) -> dict[str, Any]:
    """Measure all candidates.

    Args:
        widths: the numbers of features.
        attention: also compare attention at 64 features, forward and backward.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        matrix = _matrix(vertices, edges, seed)
        return {
            "vertices": vertices,
            "edges": matrix.entries,
            "threads": threads,
            "rounds": rounds,
            "instructions": level(),
            "copy_bytes_per_second": _copy_bandwidth(),
            "widths": {str(width): _compare(matrix, width, rounds) for width in widths},
            "attention": {
                f"{heads}x{64 // heads}": _compare_attention(matrix, heads, max(rounds // 2, 2)) for heads in (1, 8)
            }
            if attention
            else {},
        }
    finally:
        torch.set_num_threads(before)


def _matrix(vertices: int, edges: int, seed: int) -> Adjacency:
    """Weighted, duplicates kept, so that the number of entries is that of the edges."""
    record = rmat(vertices, edges / vertices, features=1, classes=0, seed=seed)
    source, target = torch.as_tensor(record.src).long(), torch.as_tensor(record.dst).long()
    order = torch.argsort(target * vertices + source)
    pointers = torch.zeros(vertices + 1, dtype=torch.int64)
    pointers[1:] = torch.bincount(target, minlength=vertices).cumsum(0)
    generator = torch.Generator().manual_seed(seed)
    return Adjacency.from_csr(pointers, source[order], torch.rand(source.numel(), generator=generator), vertices)


def _copy_bandwidth() -> float:
    """Bytes read and written in a second by a large copy between buffers that are in place."""
    source, target = empty((32 << 20,)).zero_(), empty((32 << 20,)).zero_()
    timing = interleave({"copy": lambda: target.copy_(source)}, rounds=7)["copy"]
    return 2 * source.numel() * source.element_size() / timing.best


def _compare(matrix: Adjacency, width: int, rounds: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(matrix.columns, width, generator=generator)
    # what a layer reads inside an epoch: the result of another kernel, on huge pages
    pooled = empty(x.shape).copy_(x)
    gradient = empty((matrix.rows, width)).normal_(generator=generator)
    out = empty((matrix.rows, width))
    turned = matrix.transpose()
    pointers, indices = matrix.pointers(), matrix.indices
    values = torch.ones(matrix.entries) if matrix.values is None else matrix.values
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wide = torch.sparse_csr_tensor(pointers, indices.long(), values, matrix.shape)
        narrow = torch.sparse_csr_tensor(pointers.int(), indices, values, matrix.shape)
    functions: dict[str, Callable[[], object]] = {
        "torch csr int64": lambda: wide @ x,
        "torch csr int32": lambda: narrow @ x,
        "torch sparse.mm sum": lambda: torch.sparse.mm(wide, x, "sum"),
        "trisect": lambda: aggregate(x, matrix),
        "trisect, output reused": lambda: aggregate_into(out, x, matrix),
        "trisect, input on huge pages": lambda: aggregate_into(out, pooled, matrix),
        "trisect backward": lambda: aggregate(gradient, turned),
    }
    if width <= 16:
        functions["gather and scatter"] = lambda: _gather_scatter(x, matrix)
    if available() and width % 2 == 0:
        functions["limit: rows read once"] = lambda: _read_rows(pooled, indices)
    _check_sums(functions, matrix, x, out, "trisect backward")
    _check_sums({"trisect backward": functions["trisect backward"]}, turned, gradient, out)
    timings = interleave(functions, rounds=rounds)
    return {"candidates": _speedups(timings, "torch csr int64"), "gathered_bytes": matrix.entries * width * 4}


def _check_sums(
    functions: Mapping[str, Callable[[], object]], matrix: Adjacency, x: Tensor, out: Tensor, *others: str
) -> None:
    """Compare all functions but the `others` with A·x in float64; those that give no tensor write to `out`."""
    expected = sum_torch(x.double(), matrix)
    values = None if matrix.values is None else matrix.values.abs()
    magnitude = sum_torch(x.double().abs(), matrix.with_values(values))
    for name, function in functions.items():
        if name in others or name.startswith("limit"):
            continue
        out.fill_(torch.nan)
        result = function()
        require_sums(name, result if isinstance(result, Tensor) else out, expected, magnitude)


def _gather_scatter(x: Tensor, matrix: Adjacency) -> Tensor:
    source, target = matrix.edge_index()
    weight = matrix.edge_weight()
    read = x[source] if weight is None else x[source] * weight[:, None]
    return torch.zeros(matrix.rows, x.shape[1]).index_add_(0, target, read)


def _read_rows(x: Tensor, indices: Tensor) -> None:
    _READ_ROWS(x.data_ptr(), indices.data_ptr(), indices.numel(), x.shape[1] // 2, threads())


def _compare_attention(matrix: Adjacency, heads: int, rounds: int) -> dict[str, Any]:
    """Edge softmax and the weighted sum, forward and backward, with the scores given."""
    generator = torch.Generator().manual_seed(heads)
    x = torch.randn(matrix.columns, heads, 64 // heads, generator=generator).requires_grad_()
    source_score = torch.randn(matrix.columns, heads, generator=generator).requires_grad_()
    target_score = torch.randn(matrix.rows, heads, generator=generator).requires_grad_()
    inputs = (x, source_score, target_score)
    gradient = torch.randn(x.shape, generator=generator)
    functions: dict[str, Callable[[], Sequence[Tensor]]] = {
        "trisect": lambda: torch.autograd.grad(attend(*inputs, matrix), inputs, gradient)
    }
    if importlib.util.find_spec("torch_geometric") is not None:
        functions["pyg"] = lambda: torch.autograd.grad(_attend_pyg(*inputs, matrix), inputs, gradient)
    # the sum below a softmax has positive terms, whose roundings walk as far as the root of their number
    longest = int((matrix.ends - matrix.starts).max()) if matrix.rows else 0
    factor = FACTOR + 2 * longest**0.5
    expected = _attention_gradients(x, source_score, target_score, gradient, matrix)
    for name, function in functions.items():
        for result, (sums, magnitude) in zip(function(), expected, strict=True):
            require_sums(f"attention of {name}", result, sums, magnitude, factor)
    timings = interleave(functions, rounds=rounds)
    return {"candidates": _speedups(timings, "pyg" if "pyg" in timings else "trisect")}


def _attention_gradients(
    x: Tensor, source_score: Tensor, target_score: Tensor, gradient: Tensor, matrix: Adjacency
) -> list[tuple[Tensor, Tensor]]:
    """Give the three gradients in float64, each with the sum of its terms' absolute values.

    With the weights a_ij of the softmax, and o_i = Σ_j a_ij·x_j, the terms of x_j's gradient are a_ij·g_i, and those of
    the scores' a_ij·(g_i·x_j - g_i·o_i).
    """
    x, source_score, target_score = (t.detach().double().requires_grad_() for t in (x, source_score, target_score))
    size, g = x.detach().abs(), gradient.double()
    y = attend(x, source_score, target_score, matrix)
    sums = torch.autograd.grad(y, (x, source_score, target_score), g, retain_graph=True)

    def weighted(rows: Tensor) -> Tensor:
        """Give Σ_i a_ij·rows_i for each column j."""
        return torch.autograd.grad(y, x, rows, retain_graph=True)[0]

    reached = attend(size, source_score.detach(), target_score.detach(), matrix)  # Σ_j a_ij·|x_j|
    of_rows = (g.abs() * reached).sum(-1)
    of_x = weighted(g.abs())
    of_sources = (size * of_x).sum(-1) + weighted(of_rows[:, :, None].expand_as(g).contiguous())[:, :, 0]
    return list(zip(sums, (of_x, of_sources, 2 * of_rows), strict=True))


def _attend_pyg(x: Tensor, source_score: Tensor, target_score: Tensor, matrix: Adjacency) -> Tensor:
    """The steps of PyG's GATConv between its linear map and its bias."""
    from torch_geometric.utils import scatter, softmax

    source, target = matrix.edge_index()
    score = torch.nn.functional.leaky_relu(source_score[source] + target_score[target], 0.2)
    weight = softmax(score, target, num_nodes=matrix.rows)
    result: Tensor = scatter(weight[:, :, None] * x[source], target, 0, matrix.rows, "sum")
    return result


def _speedups(timings: dict[str, Timing], reference: str) -> dict[str, dict[str, Any]]:
    base = timings[reference]
    return {
        name: {
            **timing.to_json(),
            "speedup": base.best / timing.best,
            "speedup_median": base.median / timing.median,
        }
        for name, timing in timings.items()
    }


def show(result: dict[str, Any]) -> None:
    """Print the figures as tables."""
    from rich.console import Console
    from rich.table import Table

    # a pipe has no width of its own, and 80 columns would break the names
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(
        f"{result['vertices']} vertices, {result['edges']} edges, {result['threads']} threads, "
        f"{result['instructions']}; copy {result['copy_bytes_per_second'] / 1e9:.1f} GB/s"
    )
    table = Table("features", "candidate", "best ms", "median ms", "times torch int64", "GB/s gathered", "% of limit")
    for width, figures in result["widths"].items():
        candidates = figures["candidates"]
        limit = candidates.get("limit: rows read once")
        for name, timing in candidates.items():
            table.add_row(
                width,
                name,
                f"{timing['best'] * 1e3:.2f}",
                f"{timing['median'] * 1e3:.2f}",
                f"{timing['speedup']:.2f}",
                f"{figures['gathered_bytes'] / timing['best'] / 1e9:.1f}",
                f"{100 * limit['best'] / timing['best']:.0f}" if limit else "",
            )
        table.add_section()
    console.print(table)
    if result["attention"]:
        table = Table("attention", "candidate", "best ms", "median ms", "times PyG")
        for shape, figures in result["attention"].items():
            for name, timing in figures["candidates"].items():
                best, median = timing["best"] * 1e3, timing["median"] * 1e3
                table.add_row(shape, name, f"{best:.1f}", f"{median:.1f}", f"{timing['speedup']:.2f}")
        console.print(table)


if __name__ == "__main__":
    show(run())
