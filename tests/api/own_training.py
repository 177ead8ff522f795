"""What a user brings to `fit`: a loss, an optimizer, a scheduler, metrics and callbacks, handed to ranks by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def focal(out: Tensor, y: Tensor) -> Tensor:
    log_p = functional.log_softmax(out, -1).gather(1, y[:, None])[:, 0]
    return -((1 - log_p.exp()) ** 2) * log_p


def mean_loss(out: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(out, y)


def beside_others(out: Tensor, y: Tensor) -> Tensor:
    values = functional.cross_entropy(out, y, reduction="none")
    return values / values.sum()


def adamw(parameters: Any) -> torch.optim.Optimizer:
    """Two groups, as users make them; eps keeps rounding from being told as a direction."""
    wide = [p for p in parameters if p.dim() > 1]
    narrow = [p for p in parameters if p.dim() <= 1]
    groups = [{"params": wide, "weight_decay": 0.1}, {"params": narrow}]
    return torch.optim.AdamW(groups, lr=0.02, weight_decay=0.0, eps=1e-3)


def one_cycle(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.OneCycleLR:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12)


FOREIGN = torch.nn.Parameter(torch.zeros(3))


def over_foreign(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([FOREIGN], lr=0.1)


def foreign_on_a_rank(parameters: Any) -> torch.optim.Optimizer:
    """Sound where it is looked at before ranks start, and on rank 0."""
    own = [FOREIGN] if os.environ.get("RANK") == "1" else parameters
    return torch.optim.SGD(own, lr=0.1)


def margin(out: Tensor, y: Tensor) -> Tensor:
    """No sum over rows: the median of all rows, by which score the right class is ahead."""
    best = out.gather(1, y[:, None])[:, 0]
    return (best - out.mean(1)).median()


def fails(out: Tensor, y: Tensor) -> float:
    raise ValueError("no such thing")


class Log:
    """Writes what it is told into a file of its rank, and has a state."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0

    def _write(self, name: str, state: Any) -> None:
        self.count += 1
        with open(self.folder / f"rank-{state.rank}.txt", "a") as file:
            file.write(f"{name} {state.epoch} {self.count} {sorted(state.metrics)} {state.lr:.6f}\n")

    def on_epoch_end(self, state: Any) -> None:
        self._write("epoch", state)

    def on_evaluate(self, state: Any) -> None:
        self._write("evaluate", state)

    def on_checkpoint(self, state: Any) -> None:
        self._write("checkpoint", state)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "pair": (1, float("inf"))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["pair"] == (1, float("inf"))
        self.count = state["count"]


class StopsAt:
    """The last rank alone asks to stop."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_epoch_end(self, state: Any) -> None:
        if state.epoch == self.epoch and state.rank == state.world - 1:
            state.stop()


class Raises:
    """Raises on the last rank, where the file is there."""

    def __init__(self, file: Path, epoch: int) -> None:
        self.file, self.epoch = file, epoch

    def on_evaluate(self, state: Any) -> None:
        if state.epoch == self.epoch and state.rank == state.world - 1 and self.file.exists():
            raise ValueError("told to")
