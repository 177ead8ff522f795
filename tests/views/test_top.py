"""`top` against one process: the choice, ties, candidates of all parts, and gradients that go back to their owners."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ranks import on_ranks
from trisect.comm.ledger import Ledger
from trisect.comm.mesh import Mesh
from trisect.comm.transport import Transport
from trisect.graph.adjacency import Adjacency
from trisect.graph.build import adjacency_from_edges
from trisect.partition.halo import part_graph_of
from trisect.partition.partition import Partition
from trisect.views.door import Door
from trisect.views.halo import Halo
from trisect.views.local import Local
from trisect.views.redistribute import RedistributeRows
from trisect.views.spatial import Spatial
from trisect.views.top import best
from trisect.views.view import View

CHANNELS = 5


class Net(nn.Module):
    """A weight of each step is made of the best rows of all parts, as in EvolveGCN-H; the loss reads every row."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k
        self.first = nn.Linear(CHANNELS, CHANNELS)
        self.scorer = nn.Parameter(torch.randn(CHANNELS))

    def forward(self, x: Tensor, g: View) -> Tensor:
        h = torch.tanh(g.dense(x, self.first.weight, self.first.bias))
        candidates = g.frames(g.top(h, (h @ self.scorer).detach(), self.k))
        with torch.no_grad():
            chosen = best(candidates @ self.scorer, min(self.k, candidates.shape[1]))
        rows = torch.stack([frame[which] for frame, which in zip(candidates, chosen, strict=True)])
        order = torch.arange(1, rows.shape[1] + 1, dtype=rows.dtype)[:, None]
        weight = (rows * torch.tanh(rows @ self.scorer)[..., None] * order).transpose(1, 2) @ rows
        return g.frames(h) @ weight


def problem(case: dict[str, Any]) -> tuple[list[Adjacency], Tensor, Tensor]:
    draw, vertices, steps = torch.Generator().manual_seed(3), sum(case["rows"]), case["steps"]
    matrices = [
        adjacency_from_edges(*torch.randint(0, vertices, (2, 60), generator=draw), None, vertices, dtype=torch.float64)
        for _ in range(steps)
    ]
    x = torch.randn(steps, vertices, CHANNELS, generator=draw, dtype=torch.float64)
    if case.get("ties"):
        x[:, 1::2] = x[:, :1]  # half of all rows are equal, and score alike
    loss = torch.randn(steps, vertices, CHANNELS, generator=draw, dtype=torch.float64)
    loss[:, : case["rows"][0]] = 0.0
    return matrices, x, loss


def found(view: View, x: Tensor, loss: Tensor, case: dict[str, Any]) -> dict[str, Tensor]:
    torch.manual_seed(1)
    net = Net(case["k"]).double()
    x = x.clone().requires_grad_()
    out = view.tie(net(x[0] if case["steps"] == 1 else x, view))
    (view.frames(out) * loss).sum().backward()
    return {"out": view.frames(out).detach(), "x": x.grad, **{n: p.grad for n, p in net.named_parameters()}}  # type: ignore[dict-item]


def rank(mesh: Mesh, case: dict[str, Any]) -> dict[str, Any]:
    rows, part, ledger = case["rows"], mesh.part_index, Ledger()
    matrices, x, loss = problem(case)
    bounds = [0, *accumulate(rows)]
    own, door = slice(bounds[part], bounds[part + 1]), Door(Transport(mesh, ledger))
    spatial: Spatial = RedistributeRows(matrices, rows, door)
    if case.get("halo"):
        partition = Partition(torch.arange(sum(rows)), tuple(bounds), len(rows))
        spatial = Halo([part_graph_of(matrix, partition, part) for matrix in matrices], door, part_rows=rows)
    if case.get("spoilt") and part == 1:
        x = x + 1e-6
    view = View(spatial, steps=range(case["steps"]), vertices=sum(rows))
    result = found(view, x[:, own], loss[:, own], case)
    for name, value in result.items():
        if name not in ("out", "x"):
            torch.distributed.all_reduce(value)
    return {**result, "sent": {entry.kind: entry.bytes for entry in ledger.entries()}}


def top_bytes(case: dict[str, Any]) -> int:
    """Return the bytes that leave all parts in one direction: each gives its candidates to all others."""
    rows = case["rows"]
    return sum(min(case["k"], own) for own in rows) * (len(rows) - 1) * case["steps"] * CHANNELS * 8


def differences(case: dict[str, Any]) -> dict[str, float]:
    rows, steps = case["rows"], case["steps"]
    matrices, x, loss = problem(case)
    want = found(View(Local(matrices, sum(rows)), steps=range(steps)), x, loss, case)
    ranks = on_ranks(__file__, "rank", f"vertex={len(rows)}", case)
    got = {name: ranks[0][name] for name in want}
    for name in ("out", "x"):
        got[name] = torch.cat([one[name] for one in ranks], 1)
    formula = 2 * top_bytes(case)  # forward and backward
    assert sum(one["sent"]["summary"] for one in ranks) == formula
    assert all(set(one["sent"]) == {"summary"} for one in ranks)
    return {
        name: ((got[name] - value).abs().max() / value.abs().max().clamp_min(1e-6)).item()
        for name, value in want.items()
    }


CASES = {
    "two": {"rows": [11, 19], "k": 6, "steps": 1},
    "three": {"rows": [17, 3, 12], "k": 6, "steps": 3},  # a part with fewer rows than are wanted
    "halo": {"rows": [3, 17, 12], "k": 4, "steps": 3, "halo": True},
    "ties": {"rows": [7, 20, 9], "k": 8, "steps": 3, "ties": True},
    "few-rows": {"rows": [2, 0, 1], "k": 8, "steps": 1},
}


@pytest.mark.parametrize("name", CASES)
def test_top_is_exact(name: str) -> None:
    """Outputs, every gradient and the bytes that leave equal those of one process and of the formula."""
    assert max(differences(CASES[name]).values()) < 1e-10


def test_a_spoilt_part_is_seen() -> None:
    """The comparison fails where one part reads something else."""
    assert max(differences({**CASES["two"], "spoilt": True}).values()) > 1e-10


def test_best_takes_ties_in_order() -> None:
    """The highest come first, equal ones in order of position, and what is no number before all."""
    scores = torch.tensor([[1.0, 3.0, 2.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    assert best(scores, 4).tolist() == [[1, 3, 4, 2], [0, 1, 2, 3]]
    assert best(scores, 0).shape == (2, 0)
    assert best(torch.tensor([[1.0, float("nan"), 2.0]]), 2).tolist() == [[1, 2]]
    assert best(torch.tensor([[float("nan"), 1.0, float("nan")]]), 2).tolist() == [[0, 2]]


def frozen(mesh: Mesh, case: dict[str, Any]) -> int:
    """Features without a gradient: candidates cross forward alone."""
    rows, ledger = case["rows"], Ledger()
    matrices, x, _ = problem(case)
    low = sum(rows[: mesh.part_index])
    view = View(RedistributeRows(matrices, rows, Door(Transport(mesh, ledger))), steps=range(case["steps"]))
    own = x[:, low : low + rows[mesh.part_index]]
    weight = torch.ones(CHANNELS, dtype=torch.float64, requires_grad=True)
    view.tie(view.top(own, own.sum(-1), case["k"]) * weight).sum().backward()
    return ledger.bytes


def test_features_get_no_gradient() -> None:
    """Candidates that are no result of training go nowhere in backward."""
    case = CASES["three"]
    formula = top_bytes(case)
    assert sum(on_ranks(__file__, "frozen", "vertex=3", case)) == formula
