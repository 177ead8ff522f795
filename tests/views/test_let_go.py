"""What a cell holds between forward and backward: what crossed is let go by whoever is the last to read it.

Counted by the pool that large tensors come from; exchanges that hold on to rows are the negative control.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from ranks import on_ranks
from trisect.comm.ledger import Ledger
from trisect.comm.mesh import Mesh
from trisect.comm.transport import Transport
from trisect.graph.build import adjacency_from_edges
from trisect.nn.temporal.mproduct import MProduct
from trisect.ops import memory
from trisect.ops.memory import empty
from trisect.views import recur
from trisect.views.door import Door
from trisect.views.local import Local
from trisect.views.recur import Recurrences
from trisect.views.redistribute import RedistributeRows
from trisect.views.redistribute_steps import RedistributeSteps
from trisect.views.timecut import TimeCut
from trisect.views.view import View

ROWS, WIDTH, SUMS, STEPS = 4096, 64, 3, 4
FRAME = ROWS * WIDTH * 8  # bytes of the rows of one part at one step, a huge page


class KeepsColumns(RedistributeRows):
    """Rows redistributed by columns, whose sums by columns nobody lets go."""

    kept: list[Tensor]

    def _to_rows(self, call: Any, sums: Tensor, out: Tensor, *, back: bool) -> None:
        self.kept.append(sums)
        super()._to_rows(call, sums, out, back=back)


class KeepsSteps(RedistributeSteps):
    """Steps redistributed by rows, whose outputs by rows nobody lets go."""

    kept: ClassVar[list[Tensor]] = []

    def _by_steps(self, turn: Any, tensors: Sequence[Tensor], *, back: bool) -> Sequence[Tensor]:
        self.kept += tensors
        return super()._by_steps(turn, tensors, back=back)


def held_by_sums(mesh: Mesh, keeps: bool) -> tuple[int, int]:
    """Return what three sums hold before their backward and behind it, in parts of a frame."""
    draw = torch.Generator().manual_seed(mesh.part_index)
    source, target = torch.randint(0, 2 * ROWS, (2, 3 * ROWS), generator=torch.Generator().manual_seed(3))
    matrix = adjacency_from_edges(source, target, None, 2 * ROWS, dtype=torch.float64)
    spatial = (KeepsColumns if keeps else RedistributeRows)(
        [matrix], [ROWS, ROWS], Door(Transport(mesh, Ledger()), torch.float64)
    )
    if isinstance(spatial, KeepsColumns):
        spatial.kept = []
    x = torch.randn(ROWS, WIDTH, generator=draw, dtype=torch.float64).requires_grad_()
    before = memory.stats().used_bytes
    out, view = x, View(spatial, vertices=2 * ROWS)
    for _ in range(SUMS):
        out = view.aggregate(out, relu=True)
    held = memory.stats().used_bytes - before
    loss = view.tie(out).sum()
    del out, view
    loss.backward()  # type: ignore[no-untyped-call]
    del loss
    x.grad = None
    return held // FRAME, (memory.stats().used_bytes - before) // FRAME


@pytest.mark.parametrize("keeps", [False, True])
def test_rows_that_turn_into_columns_are_let_go(keeps: bool) -> None:
    for held, left in on_ranks(__file__, "held_by_sums", "vertex=2", keeps):
        # each sum keeps its own result alone, by which its relu goes back; sums by columns are as large
        assert held == SUMS * (1 + keeps)
        # of backward, too, which has sums by columns of its own
        assert left == SUMS * 2 * keeps


def held_by_steps(mesh: Mesh, keeps: bool) -> tuple[int, int]:
    """Return what a recurrent module holds before its backward and behind it, in parts of a frame."""
    recur.EXCHANGES["redistribute"] = KeepsSteps if keeps else RedistributeSteps
    door = Door(Transport(mesh, Ledger()), torch.float64)
    runs = ((range(STEPS // 2), range(STEPS // 2, STEPS)),)
    along, module = Recurrences(door, lambda call: "redistribute"), MProduct(WIDTH, window=2)
    along.begin(TimeCut(runs, mesh.run_index), keeps=True)
    along.enter(0)
    before = memory.stats().used_bytes
    frames = empty((STEPS // 2, ROWS, WIDTH), torch.float64, torch.device("cpu")).fill_(0.5).requires_grad_()
    out = View(Local([], ROWS), along, steps=runs[0][mesh.run_index]).recur(module, frames * 2.0)
    held = memory.stats().used_bytes - before
    out.sum().backward()  # type: ignore[no-untyped-call]
    del out, frames
    along.end()
    return held // FRAME, (memory.stats().used_bytes - before) // FRAME


@pytest.mark.parametrize("keeps", [False, True])
def test_rows_that_are_dealt_to_runs_are_let_go(keeps: bool) -> None:
    found = on_ranks(__file__, "held_by_steps", "time=2", keeps)
    for held, left in found:
        # the module's frames and its result, both of the own steps; with all steps of the own rows, as large again
        assert (held > 2 * STEPS // 2) == keeps, found
        assert (left > 0) == keeps, found
