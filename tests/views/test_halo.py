"""Views cut by vertex against a view of one process: every gradient, on sizes that reach every path."""

from __future__ import annotations

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
from trisect.noise import Noise
from trisect.partition.halo import part_graph_of
from trisect.partition.partition import Partition
from trisect.views import halo
from trisect.views.door import Door
from trisect.views.local import Local
from trisect.views.view import View


class Net(nn.Module):
    """Every spatial verb, with residuals and a layer whose rows have no loss."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 12), nn.Linear(12, 8)
        self.root, self.mix = nn.Linear(8, 12, bias=False), nn.Linear(8, 8, bias=False)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor, g: View) -> Tensor:
        g.enter(0)
        h = g.aggregate(x, self.first.weight, bias=self.first.bias, relu=True, p=self.p)
        g.enter(1)
        y = g.aggregate(h, self.second.weight, root=self.root.weight, bias=self.second.bias, relu=True, p=self.p)
        mean = g.sum(y) / g.total_rows
        y = y - mean
        g.enter(2)
        z = g.aggregate(y, self.third.weight, bias=self.third.bias, relu=True)
        z = g.aggregate(z, self.mix.weight, add=h, alpha=0.3, theta=0.6, p=self.p)
        near = g.gather(z, then=lambda near, own, at: block_mean(near, at.block) + own)
        return g.dense(g.dropout(near, self.p) + g.aggregate(h), self.out.weight, self.out.bias)


def block_mean(near: Tensor, block: Adjacency) -> Tensor:
    row, column = block.coordinates()
    return torch.zeros(block.rows, near.shape[1], dtype=near.dtype).index_add(0, row, near[column])


def problem(vertices: int, steps: int, symmetric: bool) -> tuple[list[Adjacency], Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    matrices = []
    for _ in range(steps):
        # mostly near one another, so that parts have interior rows
        source = torch.randint(0, vertices, (4 * vertices,), generator=draw)
        target = (source + torch.randint(1, 9, source.shape, generator=draw)) % vertices
        weight = torch.rand(source.shape, generator=draw, dtype=torch.float64)
        if symmetric:
            source, target, weight = torch.cat([source, target]), torch.cat([target, source]), torch.cat([weight] * 2)
        matrices.append(adjacency_from_edges(source, target, weight, vertices, dtype=torch.float64))
    x = torch.randn(steps, vertices, 6, generator=draw, dtype=torch.float64)
    loss = torch.randn(steps, vertices, 3, generator=draw, dtype=torch.float64)
    loss[:, : vertices // 2] = 0.0
    return matrices, x, loss


def found(net: Net, view: View, x: Tensor, loss: Tensor, static: bool) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    out = view.tie(net(x[0] if static else x, view))
    (view.frames(out) * loss).sum().backward()
    return {"out": view.frames(out).detach(), "x": x.grad, **{n: p.grad for n, p in net.named_parameters()}}  # type: ignore[dict-item]


def make_net(p: float) -> Net:
    torch.manual_seed(1)
    return Net(p).double()


def rank(mesh: Mesh, case: dict[str, Any]) -> dict[str, Tensor]:
    halo.OVERLAP_ROWS = case["overlap"]
    matrices, x, loss = problem(case["vertices"], case["steps"], case["symmetric"])
    parts, part = mesh.layout.vertex, mesh.part_index
    partition = Partition.equal(case["vertices"], parts)
    graphs = [part_graph_of(matrix, partition, part) for matrix in matrices]
    low, high = partition.part(part)
    spatial = halo.Halo(graphs, Door(Transport(mesh, Ledger())), graphs[0].interior()[0])
    net, steps = make_net(case["p"]), range(case["steps"])
    if case.get("spoilt") and part == 1:
        x = x + 1e-6
    view = View(
        spatial,
        steps=steps,
        vertices=case["vertices"],
        noise=Noise(5, 1, vertices=torch.arange(low, high)),
    )
    result = found(net, view, x[:, low:high], loss[:, low:high], case["steps"] == 1)
    sums = {name: mesh_total(value) for name, value in result.items() if name not in ("out", "x")}
    return {**sums, "out": result["out"], "x": result["x"]}


def mesh_total(value: Tensor) -> Tensor:
    total = value.clone()
    torch.distributed.all_reduce(total)
    return total


def differences(case: dict[str, Any], parts: int) -> dict[str, float]:
    matrices, x, loss = problem(case["vertices"], case["steps"], case["symmetric"])
    net = make_net(case["p"])
    view = View(Local(matrices, case["vertices"]), steps=range(case["steps"]), noise=Noise(5, 1))
    want = found(net, view, x, loss, case["steps"] == 1)
    ranks = on_ranks(__file__, "rank", f"vertex={parts}", case)
    got = {name: ranks[0][name] for name in want}
    for name in ("out", "x"):
        got[name] = torch.cat([one[name] for one in ranks], 1)
    return {
        name: ((got[name] - value).abs().max() / value.abs().max().clamp_min(1e-6)).item()
        for name, value in want.items()
    }


CASES = {
    "small": {"vertices": 40, "steps": 1, "symmetric": True, "p": 0.0, "overlap": 2048},
    "directed": {"vertices": 40, "steps": 1, "symmetric": False, "p": 0.5, "overlap": 2048},
    "overlap": {"vertices": 900, "steps": 1, "symmetric": True, "p": 0.5, "overlap": 64},
    "overlap-directed": {"vertices": 900, "steps": 1, "symmetric": False, "p": 0.0, "overlap": 64},
    "large": {"vertices": 12_000, "steps": 1, "symmetric": True, "p": 0.5, "overlap": 2048},
    "timeline": {"vertices": 60, "steps": 3, "symmetric": True, "p": 0.5, "overlap": 2048},
    "timeline-directed": {"vertices": 60, "steps": 3, "symmetric": False, "p": 0.0, "overlap": 2048},
}


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_halo_is_exact(name: str, parts: int) -> None:
    """Outputs and every gradient equal those of one process."""
    assert max(differences(CASES[name], parts).values()) < 1e-10


def test_a_spoilt_part_is_seen() -> None:
    """The comparison fails where one part reads something else."""
    assert max(differences({**CASES["small"], "spoilt": True}, 2).values()) > 1e-10
