"""What a user brings: modules, losses and loops, for ranks that `trisect.launch` starts."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import trisect
from trisect.nn import GCNLayer, Layer, LinearLayer


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


def tied(apart: bool) -> list[nn.Module]:
    """Four layers of which two have the same weight: the first and the last but one, or the last two."""
    torch.manual_seed(4)
    made = [
        GCNLayer(8, 8, activation="relu"),
        GCNLayer(8, 8, activation="relu", dropout=0.3),
        LinearLayer(8, 8, activation="relu"),
        GCNLayer(8, 8),
    ]
    made[3].weight = made[0 if apart else 2].weight  # type: ignore[assignment]
    return made


def train_tied(layout: str, apart: bool) -> dict[str, Any]:
    """Steps with clipping; a tied parameter has one gradient, one norm and one step."""
    part = trisect.parallelize(tied(apart), data(), layout, precision="float64")
    optimizer = torch.optim.SGD(part.parameters(), lr=0.5, momentum=0.9)
    losses, norms = [], []
    for _ in range(3):
        losses.append(part.step(loss))
        norms.append(part.clip_grad_norm_(0.1))
        optimizer.step()
        optimizer.zero_grad()
    called: list[Tensor] = []
    if "layer" not in layout:
        loss(part(part.x), part.rows).backward()  # type: ignore[no-untyped-call]
        called = [p.grad for p in part.parameters() if p.grad is not None]
    names = [name for name, _ in part.named_parameters()]
    return {"loss": losses, "norms": norms, "state": part.state_dict(), "called": called, "names": names}


def train_penalised(layout: str, timeline: bool, divided: bool, weight: float = 0.7, turns: int = 1) -> dict[str, Any]:
    """The loss and all gradients with a penalty on the parameters of the last layer, which every call computes."""
    graph: Any = trisect.Timeline.generate("evolving", vertices=30, steps=5) if timeline else data()
    width = graph.x.shape[-1]
    model: Any = trisect.nn.build("cd-gcn", width, 3, hidden=4, layers=2, seed=1) if timeline else layers()
    part = trisect.parallelize(model, graph, layout, precision="float64")
    part.model.eval()
    prefixes = ("head.", "layers.1.") if timeline else ("layers.3.",)
    last = [p for name, p in part.named_parameters() if name.startswith(prefixes)]
    called: list[int] = []

    def penalised(out: Tensor, rows: Any) -> Tensor:
        called.append(rows.calls)
        penalty = weight * torch.stack([p.square().sum() for p in last]).sum()
        value = out.square().sum() / 100 if timeline else loss(out, rows)
        return value + penalty / (rows.calls if divided else 1)

    value = 0.0
    for _ in range(turns):
        for parameter in part.parameters():
            parameter.grad = None
        value = part.step(penalised)
    before = part.state_dict()
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    return {"loss": value, "gradients": part.state_dict(), "parameters": before, "calls": called}


class Moody(nn.Module):
    """Asks something else on rank 1: always, or of more rows than a trace has."""

    always = False

    def forward(self, x: Tensor, g: Any) -> Tensor:
        other = os.environ.get("RANK") == "1" and (self.always or x.shape[0] > 20)
        x = 2.0 * x  # no longer the features, whose sums are kept and cross no rank
        return x + g.sum(x) if other else g.aggregate(x)


class MoodyLayer(Layer):
    """The same as a layer of a list."""

    in_channels = out_channels = 12

    def forward(self, x: Tensor, g: Any) -> Tensor:
        moody: Tensor = Moody().forward(x, g)
        return moody


def moody(layout: str, own: bool, always: bool = False) -> None:
    made, Moody.always = layers(), always
    model: Any = Moody() if own else [made[0], MoodyLayer(), *made[1:]]
    part = trisect.parallelize(model, data(), layout)
    for _ in range(3):
        part.step(loss if not own else lambda out, rows: out.sum() / 100)
