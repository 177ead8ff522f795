"""The end of the last stage: the head over the own run, the loss, and rows of other ways that the loss reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trisect.nn.base import Context, Layer
from trisect.noise import Noise
from trisect.runtime.exchange import Exchange
from trisect.runtime.timeline_part import StepHalo
from trisect.runtime.timeline_rows import RowExchange
from trisect.runtime.timeline_visit import Visit, go_back, known

Loss = Callable[[Sequence[Tensor] | Tensor, int], Tensor]
Readers = Callable[[int, Noise | None], Sequence[Sequence[Tensor]]]


class OutputWork:
    """Head and loss of one block at a time.

    Args:
        head: over each step's rows; None: the last layer's output.
        loss, readers: see `TimelineRank`.
        rows: own rows.
    """

    def __init__(self, head: Layer | None, loss: Loss, readers: Readers | None, exchange: Exchange, rows: int) -> None:
        self.head, self.loss, self.readers, self.exchange, self.rows = head, loss, readers, exchange, rows
        self.drop()

    def drop(self) -> None:
        """Forget the block."""
        self.result: Tensor | None = None
        self._leaf: Tensor | None = None
        self._value: Tensor | None = None
        self._fetched: list[Tensor] = []
        self._fetch: RowExchange | None = None
        self._d_result: Tensor | None = None

    def forward(self, visit: Visit, frames: Tensor, *, hidden: bool = False) -> None:
        """The head over all own steps, [steps, rows, ·] → `result` [steps, rows, channels]; not if `hidden`."""
        self._leaf = frames.detach().requires_grad_(visit.grad)
        self.result = self._leaf
        if self.head is not None and not hidden:
            steps, rows, channels = frames.shape
            found: Tensor = self.head(self._leaf.reshape(steps * rows, channels), None, Context())
            self.result = found.view(steps, rows, -1)

    def fetch(self, visit: Visit, key: int) -> None:
        """Output rows of other ways that the loss reads."""
        if self.readers is None:
            raise RuntimeError("the plan fetches rows of other ways, but nobody says which")
        own, halos = self.exchange.mesh.way, []
        for step in visit.run:
            wanted = self.readers(step, visit.noise)
            send = tuple(wanted[reader][own] for reader in range(len(wanted)))
            halos.append(StepHalo(send, tuple(rows.numel() for rows in wanted[own])))
        self._fetch = RowExchange(self.exchange, halos, self.rows, "fetch")
        found = self._fetch.forward(known(self.result).detach(), key)
        self._fetched = [rows.requires_grad_(visit.grad) for rows in found]

    def lose(self, visit: Visit) -> None:
        """The loss of the own run."""
        self._value = self.loss(self._fetched or known(self.result), visit.run.start)

    def loss_back(self) -> Tensor:
        """Back through the loss; gives its value."""
        value, self._value = known(self._value), None
        if value.requires_grad:
            value.backward()  # type: ignore[no-untyped-call]
        return value.detach()

    def return_rows(self, key: int) -> None:
        """The gradients of rows of other ways go back to them."""
        gradients = [torch.zeros_like(rows) if rows.grad is None else rows.grad for rows in self._fetched]
        self._d_result = known(self._fetch).backward(gradients, key)

    def back(self) -> Tensor:
        """Back through the head; gives the gradient of its frames, and the block is forgotten."""
        go_back(self.result, self._d_result)
        leaf = known(self._leaf)
        found = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        self.drop()
        return found
