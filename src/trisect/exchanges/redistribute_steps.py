"""Redistribute by steps: P1's two all-to-alls around the recurrent part.

(Own steps × all rows) become (all steps of a block × an own share of the rows), and back. It fits every temporal
module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from trisect.comm.rows import Shape
from trisect.exchanges.base import Exchange, crossings
from trisect.exchanges.facts import Facts, LayerFacts, equal_shares
from trisect.exchanges.port import Port
from trisect.exchanges.rank_block import RankBlock
from trisect.nn.halves import HalfKind
from trisect.ops.memory import empty
from trisect.schedule.action import Action


class RedistributeSteps(Exchange[Callable[[], Tensor]]):
    """Rows by steps to steps by rows before a temporal half, and back after it; their gradients the other way."""

    name: ClassVar[str] = "redistribute steps"
    axis: ClassVar[str] = "time"
    letter: ClassVar[str] = "t"
    option: ClassVar[str] = "redistribute"

    def stands_before(self, facts: Facts, half: int) -> bool:
        """It comes before a temporal half."""
        return self.sets_apart(facts, half)

    def stands_after(self, facts: Facts, half: int) -> bool:
        """What leaves the temporal half is by steps again, even where the stage ends."""
        return self.sets_apart(facts, half)

    def half_steps(self, facts: Facts, block: int, run: int) -> range:
        """A rank does all steps of the block."""
        return facts.steps(block)

    def half_rows(self, facts: Facts, part: int, run: int) -> slice:
        """It does them for an equal share of the rows."""
        bounds = equal_shares(facts.rows[part], facts.layout.time)
        return slice(bounds[run], bounds[run + 1])

    def takes_part(self, at: RankBlock) -> bool:
        """A rank without steps still does its rows of the steps of all others."""
        return True

    @classmethod
    def refusal(cls, layer: LayerFacts) -> str | None:
        """A weight has no rows that could be dealt out."""
        return "its state is a weight matrix, which has no vertices to deal out" if layer.state == "weight" else None

    def volume(self, facts: Facts, posts: Sequence[tuple[int, Action]], fetched: Sequence[int]) -> dict[str, int]:
        """Σ over runs of steps · (rows that other runs do), times what crosses."""
        total = 0
        for (half, block, back), count in crossings(posts).items():
            rows = 0
            # of many parts, most have as many rows as others
            for part, many in Counter(facts.rows).items():
                bounds = equal_shares(part, facts.layout.time)
                for run, steps in enumerate(facts.runs[block]):
                    rows += many * len(steps) * (part - (bounds[run + 1] - bounds[run]))
            total += count * facts.wire_bytes(rows, _width(facts, half, back=back))
        return {"redistribute": total}

    def post(self, action: Action, port: Port) -> Callable[[], Tensor]:
        """Let own rows go to the ranks that work on them next."""
        crossed = port.crossed(action)
        facts, run = port.facts, port.mesh.run_index
        spreads = _spreads(facts, action.half)
        runs, rows = facts.runs[action.block or 0], facts.rows[port.mesh.part_index]
        by_rows = spreads != action.back
        bounds = equal_shares(rows, len(runs))
        count = (
            len(runs[run]) * rows if by_rows else len(facts.steps(action.block or 0)) * (bounds[run + 1] - bounds[run])
        )
        tensors = [
            torch.zeros(count, width, dtype=port.dtype, device=port.device) if tensor is None else tensor
            for tensor, width in zip(crossed, _widths(facts, action.half, back=action.back), strict=False)
        ]
        message = tensors[0] if len(tensors) == 1 else torch.cat(tensors, 1)
        swap = _by_rows if by_rows else _by_steps
        return swap(message, runs, rows, port, action)

    def wait(self, action: Action, port: Port, posted: Callable[[], Tensor]) -> None:
        """Hand what came to the half that reads it, or the gradients to what made it."""
        port.deliver(action, _split(port.facts, action, posted()))


def _spreads(facts: Facts, half: int) -> bool:
    """Whether rows by steps become steps by rows before a half."""
    layer = facts.layer_at(half, HalfKind.TEMPORAL)
    return layer is not None and layer.along == RedistributeSteps.option


def _widths(facts: Facts, half: int, *, back: bool) -> list[int]:
    """How wide each value is that crosses before a half."""
    number = facts.halves[half].layer
    if not _spreads(facts, half):
        previous = facts.layers[facts.halves[half - 1].layer]
        return [previous.out_channels]
    layer = facts.layers[number]
    widths = [layer.inside_channels]
    if layer.concat and not (number == 0 and (facts.fixed or back)):
        widths.append(layer.in_channels)
    return widths


def _width(facts: Facts, half: int, *, back: bool) -> int:
    return sum(_widths(facts, half, back=back))


def _split(facts: Facts, action: Action, joined: Tensor) -> list[Tensor]:
    widths = _widths(facts, action.half, back=action.back)
    flat = joined.flatten(0, 1)
    return [flat] if len(widths) == 1 else [tensor.contiguous() for tensor in torch.split(flat, widths, 1)]


def _by_rows(message: Tensor, runs: Sequence[range], rows: int, port: Port, action: Action) -> Callable[[], Tensor]:
    """[own steps · rows, width] → [all steps, share, width]."""
    run, width, first = port.mesh.run_index, message.shape[1], runs[0].start
    bounds = equal_shares(rows, len(runs))
    frames = message.view(len(runs[run]), rows, width)
    tensors = [frames[:, low:high].flatten(0, 1) for low, high in pairwise(bounds)]
    own_rows = bounds[run + 1] - bounds[run]
    joined = empty((runs[-1].stop - first, own_rows, width), message.dtype, message.device)
    targets = [joined[own.start - first : own.stop - first].view(len(own) * own_rows, width) for own in runs]
    swap = port.transport.begin_swap(tensors, targets, "redistribute", port.key(action), axis="time")
    targets[run].copy_(tensors[run])

    def wait() -> Tensor:
        swap.wait()
        return joined

    return wait


def _by_steps(message: Tensor, runs: Sequence[range], rows: int, port: Port, action: Action) -> Callable[[], Tensor]:
    """[all steps · share, width] → [own steps, rows, width]."""
    run, width, first = port.mesh.run_index, message.shape[1], runs[0].start
    bounds = equal_shares(rows, len(runs))
    sizes = [high - low for low, high in pairwise(bounds)]
    frames = message.view(runs[-1].stop - first, sizes[run], width)
    tensors = [frames[own.start - first : own.stop - first].flatten(0, 1) for own in runs]
    steps = len(runs[run])
    shapes = [Shape(0 if k == run else steps * size, width, message.dtype) for k, size in enumerate(sizes)]
    swap = port.transport.begin_swap(tensors, shapes, "redistribute", port.key(action), axis="time")

    def wait() -> Tensor:
        received = list(swap.wait())
        received[run] = tensors[run]
        joined = empty((steps, rows, width), message.dtype, message.device)
        for (low, high), tensor in zip(pairwise(bounds), received, strict=True):
            joined[:, low:high] = tensor.view(steps, high - low, width)
        return joined

    return wait
