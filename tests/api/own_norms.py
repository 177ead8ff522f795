"""Models with batch norm in a loop of the user's own; each function runs on every rank."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import trisect
from trisect.nn import LSTM, BatchNorm, DynamicModel, GCNLayer, LinearLayer, Model, SpatialTemporal


class LocalNorm(nn.Module):
    """The negative control: the statistics of the own rows alone."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x: Tensor, g: trisect.View) -> Tensor:
        """Return x normalised, [..., rows, channels]."""
        g.sum(x)  # a verb, so that ranks ask alike
        return self.norm(x.flatten(0, -2)).view(x.shape)


class Net(nn.Module):
    """Two norms, one of them used twice in a pass."""

    def __init__(self, *, wrong: bool) -> None:
        super().__init__()
        make = LocalNorm if wrong else BatchNorm
        self.first, self.second, self.out = nn.Linear(6, 10), nn.Linear(10, 10), nn.Linear(10, 3)
        self.one, self.two = make(10), make(10)

    def forward(self, x: Tensor, g: trisect.View) -> Tensor:
        """Return logits [..., rows, 3]."""
        h = torch.relu(self.one(g.aggregate(self.first(x)), g))
        h = g.dropout(h, 0.2) + self.two(g.aggregate(self.second(h)), g)
        return self.out(self.two(torch.relu(h), g))


class Dynamic(nn.Module):
    """Norms before and behind a recurrent module: a first pass over a block ends between them."""

    def __init__(self, *, wrong: bool) -> None:
        super().__init__()
        make = LocalNorm if wrong else BatchNorm
        self.first, self.lstm, self.out = nn.Linear(4, 8), nn.LSTM(8, 8), nn.Linear(8, 3)
        self.one, self.two = make(8), make(8)

    def forward(self, x: Tensor, g: trisect.View) -> Tensor:
        """Return logits [steps, rows, 3]."""
        h = torch.relu(self.one(g.aggregate(self.first(x)), g))
        return self.out(self.two(g.recur(self.lstm, h), g))


def model_of(kind: str) -> Any:
    """Make a module of the user's own, or a list of layers that can be cut by layer."""
    torch.manual_seed(2)
    wrong = kind.endswith("wrong")
    if kind.startswith("graph"):
        if not kind.endswith("layers"):
            return Net(wrong=wrong)
        layers: list[Any] = [GCNLayer(6, 10), BatchNorm(10), GCNLayer(10, 10), BatchNorm(10), LinearLayer(10, 3)]
        return Model(layers)
    if not kind.endswith("layers"):
        return Dynamic(wrong=wrong)
    cells = [
        SpatialTemporal(GCNLayer(4, 8), LSTM(8, 8)),
        BatchNorm(8),
        SpatialTemporal(GCNLayer(8, 8), LSTM(8, 8)),
    ]
    return DynamicModel([*cells, BatchNorm(8)], LinearLayer(8, 3))


def data(kind: str) -> Any:
    """A graph, or a timeline."""
    if kind.startswith("graph"):
        return trisect.Graph.generate("community", vertices=90, features=6, classes=3, seed=3)
    return trisect.Timeline.generate("evolving", vertices=40, steps=7, features=4, communities=3, seed=3)


def loss(out: Tensor, rows: Any) -> Tensor:
    """Cross-entropy of the training rows."""
    wrong = functional.cross_entropy(out[rows.train], rows.y[rows.train], reduction="sum")
    return wrong / rows.total("train")


def train(layout: str, kind: str, steps: int = 3) -> dict[str, Any]:
    """Train; return losses, gradients of the last step, the whole state, and what evaluation gives."""
    part = trisect.parallelize(model_of(kind), data(kind), layout, precision="float64")
    optimizer = torch.optim.SGD(part.parameters(), 0.1)
    found: dict[str, Any] = {"loss": []}
    for _ in range(steps):
        optimizer.zero_grad()
        found["loss"].append(part.step(loss))
        part.evaluate(counted)  # evaluation in between leaves running statistics alone
        optimizer.step()
    found["norm"] = part.clip_grad_norm_(1.0)
    found["state"] = part.state_dict()
    found["measured"] = part.evaluate(counted)
    return found


def called(layout: str, kind: str) -> dict[str, Any]:
    """Call the part plainly; return the gradients and the state."""
    part = trisect.parallelize(model_of(kind), data(kind), layout, precision="float64")
    for _ in range(2):
        loss(part(part.x), part.rows).backward()  # type: ignore[no-untyped-call]
    gradients = {name: p.grad for name, p in part.named_parameters()}
    return {"state": part.state_dict(), "gradients": gradients}


def counted(out: Tensor, rows: Any) -> dict[str, float]:
    """Numbers that add up over rows."""
    return {"squares": float(out.square().sum()), "right": float((out.argmax(-1) == rows.y).sum())}
