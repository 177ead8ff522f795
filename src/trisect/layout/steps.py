"""`Steps`: which rows or snapshots each step of the optimizer is made of, as a value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from trisect.errors import ConfigError, LayoutError
from trisect.layout.history import PRESETS, History
from trisect.layout.layout import Layout

StepKind = Literal["epoch", "chunk", "block"]
Outside = Literal["history", "drop"]


@dataclass(frozen=True)
class Batch:
    """The chunks of vertices, or the block of snapshots, of one step of the optimizer.

    Attributes:
        number: of the step in its epoch, from 0; `count`: how many steps the epoch has.
        chunks: of each part of the vertices, ascending; empty where the step is a block.
        block: of the timeline.
    """

    number: int
    count: int
    chunks: tuple[int, ...] = ()
    block: int | None = None

    @property
    def is_last(self) -> bool:
        """Whether the epoch ends with it."""
        return self.number == self.count - 1


@dataclass(frozen=True)
class Steps:
    """How often an epoch steps, and what a step reads of rows that are not in it.

    Attributes:
        kind: `epoch`: once; `chunk`: for each batch of chunks of vertices; `block`: for each block of snapshots.
        batches: how many steps an epoch has.
        outside: of rows outside the batch, a step reads `history` or nothing (`drop`).
    """

    kind: StepKind = "epoch"
    batches: int = 1
    outside: Outside = "history"

    @property
    def drops(self) -> bool:
        """Whether edges to rows outside the batch are left out."""
        return self.kind == "chunk" and self.outside == "drop"

    def laid_out(self, layout: Layout) -> Layout:
        """Return the layout with the chunks, blocks and recipe for history that these steps need."""
        if self.kind == "block" and layout.blocks == 1:
            return replace(layout, blocks=self.batches)
        if self.kind != "chunk" or layout.auto:
            return layout
        chunks = self.batches if layout.chunks == 1 else layout.chunks
        if chunks < self.batches:
            raise LayoutError(
                f"train.batches is {self.batches}, and layout.chunks is {chunks}, of which a step takes at least one;"
                " raise layout.chunks, or leave it out."
            )
        history = layout.history
        if self.outside == "drop":
            history = "exact"
        elif history == "exact":
            raise LayoutError(
                "layout.history is exact, and train.step is chunk, whose steps read history of rows outside; leave"
                " layout.history out, or set train.outside to drop."
            )
        elif history == History():
            history = PRESETS["steps"]
        if isinstance(history, History) and history.scale != 1.0:
            raise LayoutError(
                f"layout.history.scale is {history.scale:g}, and the steps of train.step: chunk read no gradients of"
                " other batches; leave it out."
            )
        if layout.spatial not in ("auto", "halo"):
            raise LayoutError(
                f"layout.spatial is {layout.spatial}, and train.step is chunk, whose rows cross as a halo; leave"
                " layout.spatial out."
            )
        return replace(layout, chunks=chunks, history=history, spatial="halo")

    def of_chunks(self, chunks: int, seed: int, epoch: int) -> list[Batch]:
        """Return the steps of an epoch (1, 2, …): chunks are drawn by seed and epoch, the same on all ranks."""
        from trisect.noise import Noise  # torch comes with it, and a configuration is read without

        noise, count = Noise(seed, epoch), min(self.batches, chunks)
        order = sorted(range(chunks), key=lambda chunk: noise.at(layer=chunk).key("batch"))
        return [Batch(k, count, tuple(sorted(order[k::count]))) for k in range(count)]

    def of_blocks(self, blocks: int) -> list[Batch]:
        """Return the steps of an epoch over a timeline, in the order of time."""
        return [Batch(block, blocks, block=block) for block in range(blocks)]


def require_steps(steps: Steps, *, timeline: bool, vertices: int) -> None:
    """Raise a ConfigError where the data have no such steps."""
    if steps.kind == "block" and not timeline:
        raise ConfigError(
            "train.step is block, and the data are one graph, which has no blocks of snapshots; use chunk or epoch."
        )
    if steps.kind == "chunk" and timeline:
        raise ConfigError(
            "train.step is chunk, and the data are a timeline, whose vertices are not cut into chunks; use block or"
            " epoch."
        )
    if steps.kind == "chunk" and steps.batches > vertices:
        raise ConfigError(
            f"train.batches is {steps.batches}, more than the graph's {vertices} vertices; use fewer batches."
        )
