"""The box of work, vertices × layers × time, cut into the pieces that ranks hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from trisect.report.markup import Markup, table
from trisect.report.quantities import counted, share
from trisect.report.run_view import RunView
from trisect.report.words import Words, layer_name

_MOST_PIECES = 768


@dataclass(frozen=True)
class Box:
    """The box: along each axis where its pieces begin and the last ends, and which rank has which.

    Attributes:
        rows: of each part; `chunks`: how many chunks each part has.
        layers: how many layers the model has; `stages`: the layers of each stage.
        runs: runs[block][run] = (first step, end), or None of a graph.
        exact: whether plan.json has the sizes; otherwise shares are drawn equal.
    """

    rows: Sequence[int]
    chunks: int
    layers: int
    stages: Sequence[Sequence[int]]
    runs: Sequence[Sequence[tuple[int, int]]] | None
    exact: bool

    @property
    def blocks(self) -> int:
        """How many blocks the steps are cut into."""
        return 1 if self.runs is None else len(self.runs)

    @property
    def steps(self) -> int:
        """How many steps are trained on."""
        return 1 if self.runs is None else max(end for block in self.runs for _, end in block)


def box_of(run: RunView) -> Box:
    """Read how the box was cut from plan.json; where that has no sizes, from the layout."""
    axes, plan, words = run.axes, run.plan, Words(run.plan)
    rows = plan.at("rows").counts()
    layers = words.layers
    stages: list[list[int]] = []
    for first, last in words.stages:
        stages.append(list(range(first, min(last + 1, layers))))
    runs: list[list[tuple[int, int]]] | None = None
    if plan.at("runs"):
        runs = [
            [(pair[0], pair[1]) for each in block if len(pair := each.counts()) == 2 and pair[0] <= pair[1]]
            for block in plan.at("runs")
        ]
        if not runs or any(len(block) != axes.time for block in runs) or not max(e for b in runs for _, e in b):
            runs = None
    exact = (
        len(rows) == axes.vertex
        and sum(rows) > 0
        and len(stages) == axes.layer
        and all(stages)
        and (runs is not None or axes.time == 1)
    )
    if not exact:
        rows = [1] * axes.vertex
        stages, layers = [[k] for k in range(axes.layer)], axes.layer
        runs = None if axes.time == 1 else [[(k, k + 1) for k in range(axes.time)]]
    chunks = run.summary.at("layout", "chunks").count() or 1
    return Box(rows, chunks if runs is None and chunks <= 256 else 1, layers, stages, runs, exact)


def box_data(run: RunView, box: Box) -> dict[str, Any]:
    """Give the box as the page draws it: pieces as [rank, x0, x1, y0, y1, z0, z1], each from 0 to 1."""
    axes = run.axes
    xs = [0.0, *(x / sum(box.rows) for x in accumulate(box.rows))]
    sizes = [len(stage) for stage in box.stages]
    ys = [0.0, *(y / sum(sizes) for y in accumulate(sizes))]
    runs = box.runs or [[(0, 1)]]
    if len(runs) * axes.world > _MOST_PIECES:  # too many to be told apart: a run is drawn as if it were in one piece
        share_ = box.steps / axes.time
        runs = [[(round(k * share_), round((k + 1) * share_)) for k in range(axes.time)]]
    pieces = []
    for block in runs:
        for rank in range(axes.world):
            time, stage, part = axes.of(rank)
            first, end = block[time]
            if end > first:
                z = (first / box.steps, end / box.steps)
                pieces.append([rank, xs[part], xs[part + 1], ys[stage], ys[stage + 1], *z])
    return {
        "kind": "box",
        "world": axes.world,
        "pieces": [[rank, *(round(value, 5) for value in bounds)] for rank, *bounds in pieces],
        "chunks": box.chunks,
        "flat": box.runs is None,
        "axes": _axis_names(run, box),
        "ranks": [_sentence(run, box, rank) for rank in range(axes.world)],
    }


def _axis_names(run: RunView, box: Box) -> list[str]:
    axes = run.axes
    if not box.exact:
        return [counted(axes.vertex, "part"), counted(axes.layer, "stage"), counted(axes.time, "run")]
    vertices = counted(sum(box.rows), "vertex", "vertices")
    layers = counted(box.layers, "layer")
    steps = counted(box.steps, "step")
    if axes.vertex > 1:
        vertices += f" in {axes.vertex} parts"
    if box.chunks > 1:
        vertices += f", {box.chunks} chunks"
    if axes.layer > 1:
        layers += f" in {axes.layer} stages"
    if axes.time > 1 and box.blocks > 1:
        steps += f" in {box.blocks} blocks of {axes.time} runs"
    elif axes.time > 1 or box.blocks > 1:
        steps += f" in {axes.time} runs" if axes.time > 1 else f" in {box.blocks} blocks"
    return [vertices, layers, steps]


def share_of(run: RunView, box: Box, rank: int) -> float:
    """Give the fraction of the box that a rank holds."""
    time, stage, part = run.axes.of(rank)
    steps = 1.0 if box.runs is None else sum(block[time][1] - block[time][0] for block in box.runs) / box.steps
    return box.rows[part] / sum(box.rows) * len(box.stages[stage]) / sum(map(len, box.stages)) * steps


def _held(run: RunView, box: Box, rank: int) -> tuple[str, str, str]:
    """Say which vertices, layers and steps a rank holds."""
    time, stage, part = run.axes.of(rank)
    if not box.exact:
        return f"part {part}", f"stage {stage}", f"run {time}"
    steps = "all"
    if box.runs is not None:
        own = [block[time] for block in box.runs if block[time][1] > block[time][0]]
        listed = [f"{a}" if b == a + 1 else f"{a}–{b - 1}" for a, b in own]
        steps = ", ".join(listed[:4]) + (f", … ({len(own)} runs)" if len(listed) > 4 else "") or "none"
    return f"{box.rows[part]:,}", layer_name(box.stages[stage]), steps


def _sentence(run: RunView, box: Box, rank: int) -> str:
    vertices, layers, steps = _held(run, box, rank)
    if not box.exact:
        return f"Rank {rank} holds {vertices}, {layers}, {steps}."
    times = "" if box.runs is None else f", steps {steps}"
    return f"Rank {rank} holds {vertices} vertices, {layers}{times}: {share(share_of(run, box, rank))} of the box."


def rank_table(run: RunView, box: Box) -> Markup:
    """Give each rank's share of the box as a table."""
    head = ["rank", "vertices", "layers", "steps", "share"]
    rows = []
    for rank in range(run.axes.world):
        vertices, layers, steps = _held(run, box, rank)
        part = share(share_of(run, box, rank)) if box.exact else "–"
        rows.append(
            [
                f"rank\N{NO-BREAK SPACE}{rank}",
                vertices,
                layers.removeprefix("layers ").removeprefix("layer "),
                steps,
                part,
            ]
        )
    return table(head, rows, caption="What each rank holds")
