"""Aggregation of a timeline's snapshots: one by one, several at once, block-diagonal, from the step before.

Uniformly random edges that live for some steps, so that two neighbouring snapshots share (life - 1) / life of them.
Times are for one step, forward and backward (the transposed matrices), all candidates in this process, turn by turn.
What is made beforehand and kept (groups, transposes) is timed apart, with the number of epochs after which it has paid.
The incremental sum is forward alone, over fixed features and raw entries whose changes are known: what a first layer
could use.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from trisect.data.generators.timelines import uniform
from trisect.graph.adjacency import Adjacency
from trisect.graph.timeline.timeline import Timeline
from trisect.ops.memory import empty
from trisect.ops.spmm.incremental import Incremental, change_between
from trisect.ops.spmm.several import Group, aggregate_group_into, side_by_side
from trisect.ops.spmm.sums import aggregate_into
from trisect_bench._harness import Timing, interleave


def run(
    widths: Sequence[int] = (2, 6, 16, 32, 64),
    lives: Sequence[int] = (2, 5, 10, 20),
    sizes: Sequence[int] = (2, 4, 8),
    vertices: int = 20_000,
    edges: int = 100_000,
    steps: int = 8,
    rounds: int = 5,
    threads: int = 2,
    seed: int = 0,
) -> dict[str, Any]:
    """Measure all candidates.

    Args:
        widths: numbers of features.
        lives: steps that an edge lives.
        sizes: steps of a group: 2, 4 or 8.
        edges: new ones a step.
        steps: aggregated in one turn; a multiple of all sizes.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        figures = [_compare(life, list(widths), list(sizes), vertices, edges, steps, rounds, seed) for life in lives]
    finally:
        torch.set_num_threads(before)
    return {
        "vertices": vertices,
        "edges": edges,
        "steps": steps,
        "threads": threads,
        "rounds": rounds,
        "lives": dict(zip(map(str, lives), figures, strict=True)),
    }


def _snapshots(life: int, vertices: int, edges: int, steps: int, seed: int) -> tuple[list[Adjacency], list[Adjacency]]:
    """Normalised snapshots and the raw ones, of steps whose window is full."""
    record = uniform(vertices=vertices, degree=edges / vertices, steps=steps + life, seed=seed)
    timeline = Timeline.from_record(record, smoothing={"kind": "edge-life", "length": life})
    normalised = list(timeline.snapshots("symmetric", self_loops=True, start=life))
    return normalised, list(timeline.snapshots(start=life))


def _compare(
    life: int, widths: list[int], sizes: list[int], vertices: int, edges: int, steps: int, rounds: int, seed: int
) -> dict[str, Any]:
    snapshots, raws = _snapshots(life, vertices, edges, steps, seed)
    turned, turning = _timed(lambda: [snapshot.transpose() for snapshot in snapshots])
    apart = sum(snapshot.entries for snapshot in snapshots)
    result: dict[str, Any] = {
        "entries": apart / steps,
        "plain_bytes": sum(snapshot.memory_bytes for snapshot in snapshots) / steps,
        "transpose_seconds": turning / steps,
        "groups": {},
        "widths": {},
    }
    groups: dict[int, tuple[list[Group], list[Group]]] = {}
    diagonals: dict[int, tuple[list[Adjacency], list[Adjacency]]] = {}
    for size in sizes:
        parts = [snapshots[first : first + size] for first in range(0, steps, size)]
        laid, laying = _timed(lambda parts=parts: [Group.of(part) for part in parts])  # type: ignore[misc]
        back, turning = _timed(lambda laid=laid: [group.transpose() for group in laid])  # type: ignore[misc]
        groups[size] = (laid, back)
        diagonals[size] = (
            [block_diagonal(part) for part in parts],
            [block_diagonal([snapshot.transpose() for snapshot in part]) for part in parts],
        )
        result["groups"][str(size)] = {
            "share": sum(group.indices.numel() for group in laid) / apart,
            "make_seconds": (laying + turning) / steps,
            "bytes": sum(group.memory_bytes for group in laid) / steps,
        }
    changes, changing = _timed(lambda: [change_between(a, b) for a, b in pairwise(raws)])
    result["changes"] = {
        "share": sum(change.entries for change in changes) / max(1, sum(raw.entries for raw in raws[1:])),
        "make_seconds": changing / max(1, steps - 1),
    }
    for width in widths:
        generator = torch.Generator().manual_seed(width)
        x = empty((steps, vertices, width)).normal_(generator=generator)
        out = empty(x.shape)
        functions: dict[str, Callable[[], object]] = {"one by one": _one_by_one(x, out, snapshots, turned)}
        for size in sizes:
            functions[f"together {size}"] = _together(x, out, *groups[size])
            functions[f"block-diagonal {size}"] = _diagonal(x, out, size, *diagonals[size])
        functions["raw, afresh"] = _afresh(x[0], out, raws)
        functions["raw, incremental"] = _incremental(x[0], raws, changes)
        timings = interleave(functions, rounds=rounds)
        result["widths"][str(width)] = _figures(timings, steps, result["groups"])
    return result


def _timed(function: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return function(), time.perf_counter() - start


def _one_by_one(x: Tensor, out: Tensor, snapshots: list[Adjacency], turned: list[Adjacency]) -> Callable[[], None]:
    def work() -> None:
        for matrices in (snapshots, turned):
            for step, matrix in enumerate(matrices):
                aggregate_into(out[step], x[step], matrix)

    return work


def _together(x: Tensor, out: Tensor, groups: list[Group], turned: list[Group]) -> Callable[[], None]:
    def work() -> None:
        for parts in (groups, turned):
            for number, group in enumerate(parts):
                steps = slice(number * group.steps, (number + 1) * group.steps)
                aggregate_group_into(out[steps].unbind(), side_by_side(x[steps].unbind()), group)

    return work


def _diagonal(
    x: Tensor, out: Tensor, size: int, matrices: list[Adjacency], turned: list[Adjacency]
) -> Callable[[], None]:
    def work() -> None:
        for parts in (matrices, turned):
            for number, matrix in enumerate(parts):
                steps = slice(number * size, (number + 1) * size)
                aggregate_into(out[steps].flatten(0, 1), x[steps].flatten(0, 1), matrix)

    return work


def _afresh(x: Tensor, out: Tensor, raws: list[Adjacency]) -> Callable[[], None]:
    def work() -> None:
        for step, raw in enumerate(raws):
            aggregate_into(out[step], x, raw)

    return work


def _incremental(x: Tensor, raws: list[Adjacency], changes: list[Adjacency]) -> Callable[[], None]:
    def work() -> None:
        sums = Incremental()
        for step, raw in enumerate(raws):
            sums.step(x, raw, changes[step - 1] if step else None)

    return work


def _figures(timings: dict[str, Timing], steps: int, groups: dict[str, Any]) -> dict[str, Any]:
    """Seconds a step of each candidate, and after how many epochs a group has paid (None: never)."""
    figures: dict[str, Any] = {
        name: {"best": timing.best / steps, "median": timing.median / steps} for name, timing in timings.items()
    }
    base = figures["one by one"]["median"]
    for size, group in groups.items():
        entry = figures[f"together {size}"]
        gain = base - entry["median"]
        entry["speedup"] = base / entry["median"]
        entry["epochs_to_pay"] = group["make_seconds"] / gain if gain > 0 else None
    return figures


def block_diagonal(snapshots: Sequence[Adjacency]) -> Adjacency:
    """Make one matrix with the snapshots along its diagonal: reads their features one below the other."""
    plain = [snapshot.compact() for snapshot in snapshots]
    starts, indices, base, column = [], [], 0, 0
    for matrix in plain:
        starts.append(matrix.starts + base)
        indices.append(matrix.indices + column)
        base, column = base + matrix.entries, column + matrix.columns
    ends = [matrix.ends + start[0] - matrix.starts[0] for matrix, start in zip(plain, starts, strict=True)]
    values = None
    if any(matrix.values is not None for matrix in plain):
        dtype = next(matrix.values.dtype for matrix in plain if matrix.values is not None)
        ones = [torch.ones(matrix.entries, dtype=dtype, device=matrix.device) for matrix in plain]
        values = torch.cat([one if m.values is None else m.values for m, one in zip(plain, ones, strict=True)])
    return Adjacency(torch.cat(starts), torch.cat(ends), torch.cat(indices), values, column)


def show(result: dict[str, Any]) -> None:
    """Print the figures as a table."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(
        f"{result['vertices']} vertices, {result['edges']} new edges a step, {result['threads']} threads; "
        "milliseconds a step (median)"
    )
    table = Table(
        "life", "features", "candidate", "ms", "times one by one", "entries", "MiB a step", "to make, ms", "pays after"
    )
    for life, figures in result["lives"].items():
        for width, candidates in figures["widths"].items():
            base = candidates["one by one"]["median"]
            for name, timing in candidates.items():
                kind, _, size = name.rpartition(" ")
                group = figures["groups"][size] if kind == "together" else None
                pays = timing.get("epochs_to_pay")
                reference = candidates["raw, afresh"]["median"] if name.startswith("raw") else base
                table.add_row(
                    life,
                    width,
                    name,
                    f"{timing['median'] * 1e3:.2f}",
                    f"{reference / timing['median']:.2f}",
                    f"{group['share']:.2f}" if group else "",
                    f"{group['bytes'] / 2**20:.1f}" if group else "",
                    f"{group['make_seconds'] * 1e3:.1f}" if group else "",
                    "" if group is None else "never" if pays is None else f"{pays:.0f} epochs",
                )
            table.add_section()
        if "changes" in figures:
            changes = figures["changes"]
            console.print(
                f"life {life}: {changes['share']:.2f} of the raw entries change in a step; "
                f"finding them takes {changes['make_seconds'] * 1e3:.1f} ms"
            )
    console.print(table)


if __name__ == "__main__":
    show(run())
