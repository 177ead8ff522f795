"""Two exchanges that the library does not have, registered as it registers its own, and cases that train with them.

Each is one class, which says what crosses and moves it in a view. Importing this module changes the catalogues of the
process; tests import it in ranks alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from run_cases import Case
from torch import Tensor

from trisect.comm.rows import Shape
from trisect.graph.adjacency import Adjacency
from trisect.ops.spmm.sums import aggregate_into
from trisect.pipeline import sight
from trisect.schedule.action import Action
from trisect.shards.shard import Shard
from trisect.views import catalogue, recur
from trisect.views.door import Door
from trisect.views.ending import Ending
from trisect.views.exchange import Crossing, Place, Work, crossing
from trisect.views.plan import Plan
from trisect.views.spatial import Spatial
from trisect.views.stay import Stay
from trisect.views.total import sum_over_parts
from trisect.views.trace import Call, LayerTrace
from trisect.views.turn import Turn


class GatherSteps(Stay):
    """Every run gets the frames of all others, goes over all steps of a block, and keeps the output of its own.

    Gradients of frames go back to the run that made them, which adds them up. No state crosses.
    """

    name: ClassVar[str] = "gather steps"
    letter: ClassVar[str] = "z"
    option: ClassVar[str] = "gather"

    @classmethod
    def refusal(cls, layer: LayerTrace) -> str | None:
        several = layer.recurrence is not None and len(layer.recurrence.widths) > 1
        return "it reads more than one frame a step" if layer.state == "weight" or several else None

    @classmethod
    def expand(cls, at: Place, call: Call, *, back: bool) -> Iterator[Crossing | Work]:
        work = [Work(at.layer, "recur", at.plan.layout.time)]
        yield from (*work, *crossing(call.width)) if back else (*crossing(call.width), *work)

    @classmethod
    def bytes_of(cls, at: Place, action: Action, fetched: Sequence[int]) -> tuple[str, float]:
        rows = len(at.plan.steps(at.block)) * at.plan.rows[at.part] * (at.plan.layout.time - 1)
        return "gather", at.plan.wire_bytes(rows, action.width)

    def forward(self, turn: Turn) -> Tensor:
        steps, (frames,) = turn.cut.steps(turn.block), turn.frames
        joined = turn.zeros(len(steps), turn.rows, turn.widths[0])
        targets, own = self._runs(turn, joined), frames.flatten(0, 1)
        outgoing = [own[:0] if run == turn.run else own for run in range(len(targets))]
        self._swap(turn, outgoing, [target.flatten(0, 1) for target in targets], back=False)
        targets[turn.run].copy_(frames)
        out = self.states.forward(turn, [joined], steps.start, hands_on=not turn.is_last)
        return self._runs(turn, out)[turn.run].clone()

    def backward(self, turn: Turn, d_out: Tensor) -> Sequence[Tensor | None]:
        padded = turn.zeros(len(turn.cut.steps(turn.block)), turn.rows, turn.module.out_channels)
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


class InHalves(Spatial):
    """A halo that crosses in two messages, each with half of the columns, written as plainly as it can be."""

    name: ClassVar[str] = "halo in halves"
    letter: ClassVar[str] = "q"
    option: ClassVar[str] = "halves"
    moves = True
    door: Door

    @classmethod
    def expand(cls, at: Place, call: Call, *, back: bool) -> Iterator[Crossing | Work]:
        behind = [Work(at.layer, "behind", at.share)]
        both = [*crossing(call.width // 2), *crossing(call.width - call.width // 2)]
        yield from (*behind, *(both if at.trained(call) else ())) if back else (*both, *behind)

    @classmethod
    def bytes_of(cls, at: Place, action: Action, fetched: Sequence[int]) -> tuple[str, float]:
        rows = sum(at.plan.remote[step] for step in at.steps)
        return "halo-gradients" if action.back else "halo", at.plan.wire_bytes(rows, action.width)

    def __init__(self, plan: Plan, shard: Shard, steps: range, door: Door) -> None:
        self.door, self.part_rows, self.rows, self.steps = door, plan.rows, shard.rows, len(steps)
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
                out[step],
                columns,
                own,
                alpha=alpha,
                beta=beta,
                bias=bias,
                relu=ending.plain_relu,
                slope=ending.slope,
                p=ending.p,
                **more,
            )

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


catalogue.CATALOGUE.append(GatherSteps)
recur.EXCHANGES["gather"] = GatherSteps
catalogue.CATALOGUE.append(InHalves)
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
