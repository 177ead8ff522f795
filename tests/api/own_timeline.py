"""A module of the user's own on a timeline, with torch's recurrent modules, for ranks that `trisect.launch` starts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import trisect

CELLS = {"lstm": lambda: nn.LSTM(6, 5), "gru": lambda: nn.GRU(6, 5), "two": lambda: nn.LSTM(6, 5, num_layers=2)}


class Net(nn.Module):
    """Two convolutions, one of them on what a recurrent module gives: neither is declared anywhere."""

    def __init__(self, cell: str) -> None:
        super().__init__()
        self.first, self.cell, self.gate = nn.Linear(4, 6), CELLS[cell](), nn.Linear(5, 5)
        self.last, self.out = nn.GRU(5, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, g: Any) -> Tensor:
        h = g.recur(self.cell, torch.relu(g.aggregate(self.first(x))))
        return self.out(g.recur(self.last, torch.tanh(g.aggregate(h)) * torch.sigmoid(self.gate(h))))


class Dense:
    """The same verbs in plain torch, over dense matrices [steps, rows, rows]."""

    def __init__(self, matrices: Tensor) -> None:
        self.matrices = matrices

    def aggregate(self, x: Tensor) -> Tensor:
        return self.matrices @ x

    def recur(self, module: nn.Module, frames: Tensor) -> Tensor:
        out: Tensor = module(frames)[0]
        return out


def data() -> trisect.Timeline:
    return trisect.Timeline.generate("evolving", vertices=40, steps=9, features=4, communities=2)


def model(cell: str) -> Net:
    torch.manual_seed(4)
    return Net(cell).double()


def loss(out: Tensor, rows: Any) -> Tensor:
    """Early steps count by the mask of the training rows, later ones twice."""
    each = functional.cross_entropy(out.flatten(0, 1), rows.y.flatten(), reduction="none").view(out.shape[:2])
    return (each * torch.where(rows.train, 1.0, 2.0)).sum() / rows.total("train")


def plain(cell: str) -> tuple[float, dict[str, Tensor]]:
    """Return loss and gradients of plain torch."""
    timeline, net = data(), model(cell)
    matrices = [timeline.snapshot(k, "symmetric", self_loops=True, dtype=torch.float64) for k in range(timeline.steps)]
    x = timeline.x
    assert x is not None
    x = x.double().expand(timeline.steps, *x.shape[-2:])
    part = trisect.parallelize(model(cell), timeline, precision="float64", order="none")
    value = loss(net(x, Dense(torch.stack([matrix.dense() for matrix in matrices]))), part.rows)
    value.backward()  # type: ignore[no-untyped-call]
    return value.item(), {name: p.grad for name, p in net.named_parameters() if p.grad is not None}


def gradients(layout: str, cell: str, spoilt: bool = False) -> tuple[float, dict[str, Tensor]]:
    """Return the loss and the gradients of a step under a layout."""
    part = trisect.parallelize(model(cell), data(), layout, precision="float64", order="none")
    if spoilt and part.rank == 1:
        next(part.parameters()).data += 1e-3
    value = part.step(loss)
    return value, {name: p.grad for name, p in part.named_parameters() if p.grad is not None}
