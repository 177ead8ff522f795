"""How stale an epoch over chunks was: which reads were historical, and how far history was from the fresh rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trisect.layout.steps import Batch
from trisect.partition.halo import PartGraph

SAMPLE = 256


def historical_reads(graph: PartGraph, order: Sequence[int]) -> tuple[int, int]:
    """Of the part's edges, how many read a row of a chunk that comes later in the order, and how many there are."""
    turns = torch.empty(len(order), dtype=torch.int64)
    turns[list(order)] = torch.arange(len(order))
    when, read = _turns(graph, turns)
    return int((read > when).sum()), when.numel()


def outside_reads(graph: PartGraph, batches: Sequence[Batch]) -> tuple[int, int]:
    """Of the part's edges, how many read a row of another batch, and how many there are."""
    turns = torch.empty(sum(len(batch.chunks) for batch in batches), dtype=torch.int64)
    for batch in batches:
        turns[list(batch.chunks)] = batch.number
    when, read = _turns(graph, turns)
    return int((read != when).sum()), when.numel()


def _turns(graph: PartGraph, turn_of: Tensor) -> tuple[Tensor, Tensor]:
    """Return of each edge the turns of the rows that read and are read, from the turn of each chunk."""
    row, column = graph.adjacency.coordinates()
    chunks = len(graph.chunk_rows) - 1
    if len(turn_of) != chunks:
        return row.new_zeros(row.numel()), row.new_zeros(row.numel())
    owner = torch.empty(graph.adjacency.columns, dtype=torch.int64)
    for chunk in range(chunks):
        owner[graph.chunk_rows[chunk] : graph.chunk_rows[chunk + 1]] = chunk
        for bounds in graph.receive:
            low, high = bounds[chunk]
            owner[graph.rows + low : graph.rows + high] = chunk
    when = turn_of[owner].to(row.device)
    return when[row], when[column]


class DriftMeter:
    """Relative distance of historical rows to the fresh ones that replaced them, on a sample of rows.

    Attributes:
        total: the sum over layers of ‖history - fresh‖ / ‖fresh‖.
        layers: how many these are.

    Rows hold what neighbours read, dropout included, so that with dropout the drift is well above 0 even where
    parameters stand still.
    """

    def __init__(self) -> None:
        self.total, self.layers = 0.0, 0
        self._rows = torch.zeros(0, dtype=torch.int64)
        self._before: dict[int, Tensor] = {}

    def before(self, history: Mapping[str, Tensor], rows: int) -> None:
        """Remember what an epoch is going to read: tensors by name.NUMBER."""
        step = max(1, rows // SAMPLE)
        device = next((tensor.device for tensor in history.values()), None)
        self._rows = torch.arange(0, rows, step, device=device)
        self._before = {int(name.partition(".")[2]): self._sample(tensor) for name, tensor in history.items()}

    def after(self, fresh: Mapping[int, Tensor]) -> None:
        """Compare with what the epoch made, by NUMBER."""
        self.total, self.layers = 0.0, len(self._before)
        for number, old in self._before.items():
            rows = fresh.get(number)
            if rows is not None:
                new = self._sample(rows)
                self.total += float((new - old).norm() / new.norm().clamp_min(1e-12))
        self._before = {}

    def _sample(self, tensor: Tensor) -> Tensor:
        return tensor.index_select(0, self._rows).float()
