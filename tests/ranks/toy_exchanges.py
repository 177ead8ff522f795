"""Two exchanges that the library does not have, registered as it registers its own, and cases that train with them.

Each is a class that plans what crosses, and one that moves it in a view. Importing this module changes the catalogues
of the process; tests import it in ranks alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from run_cases import Case
from torch import Tensor

from trisect.comm.rows import Shape
from trisect.exchanges import catalogue
from trisect.exchanges.base import Exchange, crossings
from trisect.exchanges.facts import Facts, LayerFacts
from trisect.exchanges.halo import Halo
from trisect.exchanges.rank_block import RankBlock
from trisect.graph.adjacency import Adjacency
from trisect.nn.halves import HalfKind
from trisect.ops.spmm.sums import aggregate_into
from trisect.pipeline import sight
from trisect.schedule.action import Action
from trisect.shards.shard import Shard
from trisect.views import recur
from trisect.views.door import Door
from trisect.views.ending import Ending
from trisect.views.spatial import Spatial
from trisect.views.stay import Stay
from trisect.views.total import sum_over_parts
from trisect.views.turn import Turn


class GatherSteps(Exchange):
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


class GatheredSteps(Stay):
    """The same in a view: a rank goes over all steps of a block, and its state stays where it is."""

    name = "gather steps"

    def forward(self, turn: Turn) -> Tensor:
        steps, (frames,) = turn.cut.steps(turn.block), turn.frames
        joined = turn.zeros(len(steps), turn.rows, turn.widths[0])
        targets, own = self._runs(turn, joined), frames.flatten(0, 1)
        outgoing = [own[:0] if run == turn.run else own for run in range(len(targets))]
        self._swap(turn, outgoing, [target.flatten(0, 1) for target in targets], back=False)
        targets[turn.run].copy_(frames)
        out = self.states.forward(turn, [joined], steps.start, hands_on=not turn.is_last)
        return self._runs(turn, out)[turn.run].clone()

    def backward(self, turn: Turn, d_out: Tensor | None) -> Sequence[Tensor | None]:
        padded = turn.zeros(len(turn.cut.steps(turn.block)), turn.rows, turn.module.out_channels)
        if d_out is not None:
            self._runs(turn, padded)[turn.run].copy_(d_out)
        (gradient,) = self.states.backward(turn, padded)
        if gradient is None:
            gradient = turn.zeros(len(padded), turn.rows, turn.widths[0])
        pieces = self._runs(turn, gradient)
        own, rows = pieces[turn.run], len(turn.steps) * turn.rows
        outgoing = [piece.flatten(0, 1)[: 0 if run == turn.run else None] for run, piece in enumerate(pieces)]
        shapes = [Shape(0 if run == turn.run else rows, turn.widths[0], turn.dtype) for run in range(len(pieces))]
        received = self._swap(turn, outgoing, shapes, back=True)
        return [sum((r.view(own.shape) for run, r in enumerate(received) if run != turn.run), own)]

    def _swap(self, turn: Turn, outgoing: Any, room: Any, *, back: bool) -> Sequence[Tensor]:
        door = self._door
        with door.event("post", self.name, turn.call, back=back):
            swap = door.transport.begin_swap(outgoing, room, "gather", door.key("gather", turn.call), axis="time")
        with door.event("wait", self.name, turn.call, back=back):
            return swap.wait()

    @staticmethod
    def _runs(turn: Turn, every: Tensor) -> list[Tensor]:
        """Give the steps of each run, of all steps of the block."""
        first = turn.cut.steps(turn.block).start
        return [every[run.start - first : run.stop - first] for run in turn.cut.runs[turn.block]]


class HaloInHalves(Halo):
    """A halo that crosses in two messages, each with half of the columns."""

    name: ClassVar[str] = "halo in halves"
    letter: ClassVar[str] = "q"
    option: ClassVar[str] = "halves"
    hides: ClassVar[bool] = False


class InHalves(Spatial):
    """The same in a view, written as plainly as it can be."""

    moves = True
    door: Door

    def __init__(self, facts: Facts, shard: Shard, steps: range, door: Door) -> None:
        self.door, self.part_rows, self.rows, self.steps = door, facts.rows, shard.rows, len(steps)
        self._graphs = [shard.part_graph(step) for step in steps]
        self._ids = [shard.column_ids(step) for step in steps]
        self._sends = [[torch.cat(lists) for lists in graph.send] for graph in self._graphs]
        self._halo = [[slice(owner[0][0], owner[-1][1]) for owner in graph.receive] for graph in self._graphs]

    @property
    def blocks(self) -> Sequence[Adjacency]:
        return [graph.adjacency for graph in self._graphs]

    def column_ids(self, step: int) -> Tensor | None:
        return self._ids[step]

    def sum(
        self,
        call: Hashable,
        x: Tensor,
        out: Tensor,
        *,
        alpha: float = 1.0,
        add: Tensor | None = None,
        beta: float = 1.0,
        bias: Tensor | None = None,
        ending: Ending = Ending.NONE,
        trained: bool = False,
    ) -> Any:
        for step, columns in enumerate(self.gather(call, x)):
            more = {"add": None if add is None else add[step], "noise": ending.noise(step)}
            own = self.blocks[step]
            aggregate_into(
                out[step], columns, own, alpha=alpha, beta=beta, bias=bias, relu=ending.plain_relu, p=ending.p, **more
            )
        ending.leak(out)

    def sum_gradient(self, call: Hashable, gradient: Tensor, trail: Any, *, alpha: float = 1.0) -> Tensor:
        columns = []
        for step, block in enumerate(self.blocks):
            columns.append(gradient.new_empty(block.columns, gradient.shape[2]))
            aggregate_into(columns[-1], gradient[step], block.transpose(), alpha=alpha)
        return self.gather_gradient(call, columns)

    def gather(self, call: Hashable, x: Tensor) -> list[Tensor]:
        columns = []
        for step, (sends, halo) in enumerate(zip(self._sends, self._halo, strict=True)):
            outgoing, counts = [x[step][rows] for rows in sends], [owned.stop - owned.start for owned in halo]
            columns.append(torch.cat([x[step], *self._swap(call, outgoing, counts, "halo")]))
        return columns

    def gather_gradient(self, call: Hashable, gradients: Sequence[Tensor]) -> Tensor:
        every = []
        for columns, sends, halo in zip(gradients, self._sends, self._halo, strict=True):
            own = columns[: self.rows].clone()
            outgoing = [columns[self.rows :][owned] for owned in halo]
            received = self._swap(call, outgoing, [rows.numel() for rows in sends], "halo-gradients")
            for rows, found in zip(sends, received, strict=True):
                own.index_add_(0, rows, found)
            every.append(own)
        return torch.stack(every)

    def total(self, call: Hashable, sums: Tensor) -> Tensor:
        return sum_over_parts(self.door, call, sums, back=False)

    def total_gradient(self, call: Hashable, gradient: Tensor) -> Tensor:
        return sum_over_parts(self.door, call, gradient, back=True)

    def _swap(self, call: Hashable, rows: Sequence[Tensor], counts: Sequence[int], kind: str) -> list[Tensor]:
        door, width, swaps = self.door, rows[0].shape[1], []
        for low, high in ((0, width // 2), (width // 2, width)):
            half = [piece[:, low:high].contiguous() for piece in rows]
            shapes = [Shape(count, high - low, piece.dtype) for count, piece in zip(counts, rows, strict=True)]
            swaps.append(door.transport.begin_swap(half, shapes, kind, door.key(f"{kind} from {low}", call)))
        return [torch.cat(halves, 1) for halves in zip(*(list(swap.wait()) for swap in swaps), strict=True)]


catalogue.register(GatherSteps())
recur.EXCHANGES["gather"] = GatheredSteps
catalogue.register(HaloInHalves())
sight.SPATIAL["halves"] = InHalves


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
