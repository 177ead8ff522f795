"""Two exchanges that the library does not have, registered as it registers its own, and cases that train with them.

Importing this module changes the catalogue of the process; tests import it in ranks alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import torch
from run_cases import Case
from torch import Tensor

from trisect.comm.incoming import Swap
from trisect.comm.rows import Shape
from trisect.exchanges import catalogue
from trisect.exchanges.base import Exchange, crossings
from trisect.exchanges.facts import Facts, LayerFacts
from trisect.exchanges.halo import Halo
from trisect.exchanges.port import Port
from trisect.exchanges.rank_block import RankBlock
from trisect.nn.halves import HalfKind
from trisect.schedule.action import Action


class GatherSteps(Exchange[Callable[[], Tensor]]):
    """Every run gets the frames of all others, does the temporal half over all steps, and keeps its own.

    Gradients of frames go back to the run that made them, which adds them up. No state crosses.
    """

    name: ClassVar[str] = "gather steps"
    axis: ClassVar[str] = "time"
    letter: ClassVar[str] = "z"
    option: ClassVar[str] = "gather"

    @classmethod
    def refusal(cls, layer: LayerFacts) -> str | None:
        return "it reads more than the rows of its spatial half" if layer.state == "weight" or layer.concat else None

    def stands_before(self, facts: Facts, half: int) -> bool:
        return self.sets_apart(facts, half)

    def stands_after(self, facts: Facts, half: int) -> bool:
        return self.sets_apart(facts, half)

    def half_steps(self, facts: Facts, block: int, run: int) -> range:
        return facts.steps(block)

    def takes_part(self, at: RankBlock) -> bool:
        return True

    def volume(self, facts: Facts, posts: Sequence[tuple[int, Action]], fetched: Sequence[int]) -> dict[str, int]:
        total = 0
        for (half, block, _), count in crossings(posts).items():
            layer = facts.layer_at(half, HalfKind.TEMPORAL)
            if layer is not None and self.serves(layer):
                rows = len(facts.steps(block)) * facts.vertices * (facts.layout.time - 1)
                total += count * facts.wire_bytes(rows, layer.inside_channels)
        return {"gather": total}

    def post(self, action: Action, port: Port) -> Callable[[], Tensor]:
        facts, run, block = port.facts, port.mesh.run_index, action.block or 0
        rows, runs, steps = facts.rows[port.mesh.part_index], facts.runs[block], facts.steps(block)
        bounds = [(own.start - steps.start) * rows for own in runs] + [len(steps) * rows]
        layer = facts.layer_at(action.half, HalfKind.TEMPORAL)
        before = layer is not None and self.serves(layer)
        (message,) = port.crossed(action)
        width = facts.layers[facts.halves[action.half - 1].layer].out_channels
        if before and layer is not None:
            width = layer.inside_channels
        count = len(runs[run]) * rows if before != action.back else len(steps) * rows
        if message is None:
            message = torch.zeros(count, width, dtype=port.dtype, device=port.device)
        own = slice(bounds[run], bounds[run + 1])
        if not before:  # nothing crosses: a run keeps its steps, and the others have no gradient here
            if not action.back:
                return lambda: message[own]
            padded = message.new_zeros(len(steps) * rows, width)
            padded[own] = message
            return lambda: padded
        if not action.back:
            joined = message.new_empty(len(steps) * rows, width)
            targets = [joined[low:high] for low, high in pairwise(bounds)]
            swap = port.transport.begin_swap([message] * len(runs), targets, "gather", port.key(action), axis="time")
            joined[own] = message

            def gathered() -> Tensor:
                swap.wait()
                return joined

            return gathered
        parts = [message[low:high] for low, high in pairwise(bounds)]
        shapes = [Shape(0 if k == run else len(runs[run]) * rows, width, port.dtype) for k in range(len(runs))]
        back = port.transport.begin_swap(parts, shapes, "gather", port.key(action), axis="time")
        return lambda: sum((rows for k, rows in enumerate(back.wait()) if k != run), parts[run])

    def wait(self, action: Action, port: Port, posted: Callable[[], Tensor]) -> None:
        port.deliver(action, [posted()])


class HaloInHalves(Halo):
    """A halo that crosses in two messages, each with half of the columns."""

    name: ClassVar[str] = "halo in halves"
    letter: ClassVar[str] = "q"
    option: ClassVar[str] = "halves"
    hides: ClassVar[bool] = False

    def post(self, action: Action, port: Port) -> Any:
        layer, boards = port.facts.layer_of(action.half), port.boards
        crossing, summed = boards.crossing(action.chunk), action.back and not boards.pulls
        buffer = boards.gradient_buffer(layer) if action.back and boards.pulls else boards.buffer(layer)
        outgoing = [buffer.index_select(0, rows) for rows in crossing.sends]
        counts = [rows.numel() for rows in crossing.sends] if summed else crossing.receives
        if summed:
            outgoing = boards.halo_gradients(layer, action.chunk)
        kind, middle = "halo-gradients" if action.back else "halo", buffer.shape[1] // 2
        swaps = []
        for low, high in ((0, middle), (middle, buffer.shape[1])):
            shapes = [Shape(count, high - low, port.dtype) for count in counts]
            half = [rows[:, low:high].contiguous() for rows in outgoing]
            swaps.append(port.transport.begin_swap(half, shapes, kind, port.key(action)))
        return swaps

    def wait(self, action: Action, port: Port, posted: Any) -> None:
        swaps: list[Swap] = posted
        layer, boards = port.facts.layer_of(action.half), port.boards
        received = [torch.cat(halves, 1) for halves in zip(*(list(swap.wait()) for swap in swaps), strict=True)]
        if action.back and not boards.pulls:
            boards.add_gradients(layer, action.chunk, received)
            return
        buffer = boards.gradient_buffer(layer) if action.back else boards.buffer(layer)
        boards.scatter(buffer[boards.steps * boards.rows :], received)
        if action.back:
            boards.extend_gradients(layer, buffer[boards.steps * boards.rows :])


catalogue.register(GatherSteps())
catalogue.register(HaloInHalves())


def prepare(case: Case, folder: Path) -> None:
    """Do the launcher's part of a case of another module."""
    importlib.import_module(case["of"]).prepare(case, folder)


def compared(case: Case, folder: Path) -> dict[str, Any]:
    """Compare a rank with one process, as the other module does; `without` some exchanges along time."""
    module = importlib.import_module(case["of"])
    run: Callable[[Case, Path], Case] = module.timeline if case["of"] == "timeline_cases" else module.gradients
    every = list(catalogue.CATALOGUE)
    left_out = case.get("without", ())
    catalogue.CATALOGUE[:] = [e for e in every if e.axis != "time" or e.option not in left_out]
    try:
        return run(case, folder)
    finally:
        catalogue.CATALOGUE[:] = every
