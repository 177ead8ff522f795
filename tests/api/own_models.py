"""What a user brings: modules, losses and loops, for ranks that `trisect.launch` starts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import trisect
from trisect.nn import GCNLayer, LinearLayer


class BatchNorm(nn.Module):
    """Ten lines: the sum over all rows is a verb."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, g: Any) -> Tensor:
        mean = g.sum(x) / g.total_rows
        variance = g.sum((x - mean) ** 2) / g.total_rows
        return (x - mean) / (variance + 1e-5).sqrt() * self.weight + self.bias


class Net(nn.Module):
    """Sums, attention by hand, batch norm, dropout and jumping knowledge."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 6), BatchNorm(6)
        self.key, self.value, self.out = nn.Linear(6, 1), nn.Linear(6, 6), nn.Linear(12, 3)

    def forward(self, x: Tensor, g: Any) -> Tensor:
        h = self.norm(torch.relu(g.aggregate(self.first(x))), g)
        z = g.gather(torch.cat([self.key(h), self.value(h)], -1), then=weighed)
        return self.out(g.dropout(torch.cat([h, z], -1), 0.3))


def weighed(near: Tensor, own: Tensor, at: Any) -> Tensor:
    row, column = at.block.coordinates()
    weight = near[column, :1].exp()
    total = torch.zeros(at.block.rows, 1, dtype=near.dtype).index_add(0, row, weight)
    sums = torch.zeros(at.block.rows, near.shape[1] - 1, dtype=near.dtype).index_add(0, row, weight * near[column, 1:])
    return sums / total


def data() -> trisect.Graph:
    return trisect.Graph.generate("community", vertices=120, features=8, classes=3)


def loss(out: Tensor, rows: Any) -> Tensor:
    return functional.cross_entropy(out[rows.train], rows.y[rows.train], reduction="sum") / rows.total("train")


def count(out: Tensor, rows: Any) -> dict[str, float]:
    right = out.argmax(1) == rows.y
    return {"right": float(right[rows.test].sum()), "all": float(rows.test.sum())}


def layers() -> list[nn.Module]:
    torch.manual_seed(3)
    return [
        GCNLayer(8, 12, activation="relu", dropout=0.3),
        LinearLayer(12, 12, activation="relu"),
        GCNLayer(12, 6, activation="relu"),
        GCNLayer(6, 3),
    ]


def train(layout: str, own: bool, spoilt: bool = False) -> dict[str, Any]:
    """Four steps of a loop with an optimizer, a scheduler, clipping and accumulation."""
    torch.manual_seed(0)
    graph = data()
    model: Any = Net() if own else layers()
    part = trisect.parallelize(model, graph, layout, precision="float64")
    if spoilt and part.rank == 1:
        for parameter in part.parameters():
            parameter.data += 1e-3
    optimizer = torch.optim.AdamW(part.parameters(), lr=0.05, eps=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    losses, norms = [], []
    for _ in range(4):
        losses.append(part.step(loss))
        losses.append(part.step(lambda out, rows: 0.5 * loss(out, rows)))  # added to the gradients of the first
        norms.append(part.clip_grad_norm_(0.3))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    ids, outputs = part.vertices, part.predict()
    called: list[Tensor] = []
    if "layer" not in layout:
        part.step(loss)
        loss(part(part.x), part.rows).backward()  # type: ignore[no-untyped-call]
        called = [p.grad for p in part.parameters() if p.grad is not None]
    return {
        "loss": losses,
        "norms": norms,
        "state": part.state_dict(),
        "measured": part.evaluate(count),
        "called": called,
        "own": [ids, outputs] if outputs is not None else [ids],
    }


def fails(layout: str) -> None:
    part = trisect.parallelize(layers(), data(), layout)
    part.step(lambda out, rows: out)


def returns_a_module(layout: str) -> Any:
    return Net()
