"""Sums by columns against a view of one process: every gradient, every ending, uneven parts, few columns."""

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
from trisect.noise import Noise
from trisect.views.door import Door
from trisect.views.local import Local
from trisect.views.redistribute import RedistributeRows
from trisect.views.view import View


class Net(nn.Module):
    """Products before and behind the sum, plain sums, and all that follows a sum."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.first, self.second, self.third = nn.Linear(6, 7), nn.Linear(7, 8), nn.Linear(8, 2)
        self.wider, self.root = nn.Linear(2, 6), nn.Linear(2, 6, bias=False)
        self.mix, self.leaky, self.out = nn.Linear(6, 6, bias=False), nn.Linear(6, 1), nn.Linear(1, 3)

    def forward(self, x: Tensor, g: View) -> Tensor:
        h = g.aggregate(x, self.first.weight, bias=self.first.bias, relu=True, p=self.p)  # 6 channels cross
        h = g.aggregate(h, self.second.weight, bias=self.second.bias, relu=True)  # 7
        y = g.aggregate(h, self.third.weight, bias=self.third.bias)  # 2: fewer than parts
        y = y - 0.5 * g.sum(y) / g.total_rows
        z = g.aggregate(y, self.wider.weight, root=self.root.weight, bias=self.wider.bias, relu=True)  # 2
        z = g.aggregate(z, self.mix.weight, add=z, alpha=0.3, theta=0.6, relu=True, p=self.p)  # 6
        z = z + g.aggregate(z)  # 6
        z = z + g.aggregate(z, add=h[..., :6], alpha=0.4)  # 6
        z = g.aggregate(z, self.leaky.weight, add=z[..., 2:3], bias=self.leaky.bias, slope=0.1)  # 1
        return g.aggregate(z, self.out.weight, bias=self.out.bias)  # 1


CROSS = (6, 7, 2, 2, 6, 6, 6, 1, 1)


def problem(rows: list[int], steps: int, symmetric: bool) -> tuple[list[Adjacency], Tensor, Tensor]:
    draw, vertices = torch.Generator().manual_seed(3), sum(rows)
    matrices = []
    for _ in range(steps):
        source, target = torch.randint(0, vertices, (2, 4 * vertices), generator=draw)
        weight = torch.rand(source.shape, generator=draw, dtype=torch.float64)
        if symmetric:
            source, target, weight = torch.cat([source, target]), torch.cat([target, source]), torch.cat([weight] * 2)
        matrices.append(adjacency_from_edges(source, target, weight / 4, vertices, dtype=torch.float64))
    x = torch.randn(steps, vertices, 6, generator=draw, dtype=torch.float64)
    loss = torch.randn(steps, vertices, 3, generator=draw, dtype=torch.float64)
    loss[:, : rows[0]] = 0.0  # a part without a loss
    return matrices, x, loss


def found(net: Net, view: View, x: Tensor, loss: Tensor, case: dict[str, Any]) -> dict[str, Tensor]:
    if case.get("fixed"):
        x = x[0].clone().requires_grad_()
        frames = x.expand(case["steps"], -1, -1)
    else:
        x = x.clone().requires_grad_()
        frames = x[0] if case["steps"] == 1 else x
    out = view.tie(net(frames, view))
    (view.frames(out) * loss).sum().backward()
    assert x.grad is not None
    grad = x.grad if x.dim() == 3 else x.grad[None]
    return {"out": view.frames(out).detach(), "x": grad, **{n: p.grad for n, p in net.named_parameters()}}  # type: ignore[dict-item]


def make_net(p: float) -> Net:
    torch.manual_seed(1)
    net = Net(p).double()
    for value in net.parameters():
        nn.init.normal_(value, std=0.6)
    return net


def rank(mesh: Mesh, case: dict[str, Any]) -> dict[str, Any]:
    rows, part, ledger = case["rows"], mesh.part_index, Ledger()
    matrices, x, loss = problem(rows, case["steps"], case["symmetric"])
    bounds = [0, *accumulate(rows)]
    own = slice(bounds[part], bounds[part + 1])
    spatial = RedistributeRows(matrices, rows, Door(Transport(mesh, ledger)))
    if case.get("spoilt") and part == 1:
        x = x + 1e-6
    net, noise = make_net(case["p"]), Noise(5, 1, vertices=torch.arange(own.start, own.stop))
    view = View(spatial, steps=range(case["steps"]), vertices=sum(rows), noise=noise)
    result = found(net, view, x[:, own], loss[:, own], case)
    sent = {entry.kind: entry.bytes for entry in ledger.entries()}
    for name, value in result.items():
        if name not in ("out", "x"):
            torch.distributed.all_reduce(value)
    return {**result, "sent": sent["redistribute"]}


def differences(case: dict[str, Any]) -> dict[str, float]:
    parts = len(case["rows"])
    matrices, x, loss = problem(case["rows"], case["steps"], case["symmetric"])
    view = View(Local(matrices, sum(case["rows"])), steps=range(case["steps"]), noise=Noise(5, 1))
    want = found(make_net(case["p"]), view, x, loss, case)
    ranks = on_ranks(__file__, "rank", f"vertex={parts}", case)
    got = {name: ranks[0][name] for name in want}
    for name in ("out", "x"):
        got[name] = torch.cat([one[name] for one in ranks], 1)
    formula = sum(
        RedistributeRows.bytes(case["rows"], width, case["steps"], "float32", torch.float64) for width in CROSS
    )
    assert sum(one["sent"] for one in ranks) == 2 * formula  # forward and backward
    assert {name for name, value in want.items() if not value.abs().max() > 1e-3} == set()
    return {
        name: ((got[name] - value).abs().max() / value.abs().max().clamp_min(1e-6)).item()
        for name, value in want.items()
    }


CASES = {
    "two": {"rows": [11, 29], "steps": 1, "symmetric": True, "p": 0.5},
    "three": {"rows": [17, 5, 22], "steps": 1, "symmetric": False, "p": 0.5},
    "without-noise": {"rows": [17, 5, 22], "steps": 1, "symmetric": True, "p": 0.0},
    "an-empty-part": {"rows": [20, 0, 13], "steps": 1, "symmetric": False, "p": 0.0},
    "large": {"rows": [9_000, 4_001], "steps": 1, "symmetric": False, "p": 0.5},
    "timeline-two": {"rows": [11, 29], "steps": 3, "symmetric": False, "p": 0.0},
    "timeline-three": {"rows": [17, 5, 22], "steps": 3, "symmetric": True, "p": 0.5},
    "timeline-of-equal-frames": {"rows": [17, 5, 22], "steps": 3, "symmetric": False, "p": 0.5, "fixed": True},
}


@pytest.mark.parametrize("name", CASES)
def test_redistributed_rows_are_exact(name: str) -> None:
    """Outputs, every gradient and the bytes that leave equal those of one process and of the formula."""
    assert max(differences(CASES[name]).values()) < 1e-10


def test_a_spoilt_part_is_seen() -> None:
    """The comparison fails where one part reads something else."""
    assert max(differences({**CASES["three"], "spoilt": True}).values()) > 1e-10


def network(mesh: Mesh, wire: str, steps: int) -> tuple[list[Tensor], int]:
    rows, ledger = [7, 2, 12], Ledger()
    matrices, x, _ = problem(rows, steps, symmetric=False)
    bounds = [0, *accumulate(rows)]
    own = x[:, bounds[mesh.part_index] : bounds[mesh.part_index + 1], :2].float().requires_grad_()
    view = View(
        RedistributeRows(matrices, rows, Door(Transport(mesh, ledger, wire))),  # type: ignore[arg-type]
        steps=range(steps),
        vertices=sum(rows),
    )
    out = view.aggregate(own)
    view.tie(out).sum().backward()
    assert own.grad is not None
    return [out.detach(), own.grad], ledger.bytes


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(("wire", "error"), [("float32", 1e-5), ("bfloat16", 3e-2), ("int8", 3e-2)])
def test_other_transport_and_wires(wire: str, error: float, steps: int) -> None:
    """Through the network and in shorter forms, columns of which one part has none arrive, at the formula's bytes."""
    matrices, x, _ = problem([7, 2, 12], steps, symmetric=False)
    x = x[..., :2].clone().requires_grad_()
    out = View(Local(matrices, 21), steps=range(steps)).aggregate(x)
    out.sum().backward()
    ranks = on_ranks(__file__, "network", "vertex=3,transport=network", wire, steps)
    for number, want in enumerate((out.detach(), x.grad)):
        assert want is not None
        got = torch.cat([one[0][number] for one in ranks], 1)
        assert ((got - want).abs().max() / want.abs().max()).item() < error
    formula = RedistributeRows.bytes([7, 2, 12], 2, steps, wire, torch.float32)  # type: ignore[arg-type]
    assert sum(one[1] for one in ranks) == 2 * formula


def test_rows_of_neighbours_are_refused() -> None:
    """A layer that gathers is refused by layouts; one that comes through is no silent error."""
    matrices, x, _ = problem([8], 1, symmetric=False)

    class Alone:
        class mesh:  # noqa: N801
            part_index = 0

    spatial = RedistributeRows(matrices, [8], Alone)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="internal error"):
        spatial.gather("call", x)
    with pytest.raises(RuntimeError, match="internal error"):
        _ = spatial.blocks
