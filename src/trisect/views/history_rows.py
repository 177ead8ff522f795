"""What a stage's layers send to their readers: rows of this epoch, history, and later their gradients.

For each layer that is read there are at most two tensors of all columns. One is what readers see: history, over which
each chunk writes its fresh rows when its turn comes. Where history is not just what the last epoch left, but a mean
over epochs or fixed for some, a second tensor has it. When all chunks have gone forward, one of the two holds what is
history from then on, and the other nothing that anybody reads: gradients take its place. Between two epochs there is
history alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trisect.errors import CheckpointError
from trisect.ops.blend import replace_rows
from trisect.ops.memory import empty
from trisect.views.staleness import DriftMeter


class HistoryRows:
    """The rows of one stage that chunks read: those of the epoch, and those of an earlier one.

    Args:
        widths: of each slot's message.
        columns, dtype, device: of the tensors, [columns, width].
        apart: whether history is kept apart from the rows of the epoch.
        name: with which the names of its tensors in a checkpoint begin.
        drift: measures how far history was from the fresh rows, on some of the first `own_rows`; None: nobody asks.
    """

    def __init__(
        self,
        widths: Sequence[int],
        columns: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        apart: bool,
        drift: DriftMeter | None = None,
        own_rows: int = 0,
        name: str = "history",
    ) -> None:
        self._drift, self._own_rows, self.name = drift, own_rows, name
        self._widths, self._columns, self._device = list(widths), columns, device
        self.dtype, self._apart = dtype, apart
        none: list[Tensor | None] = [None] * len(widths)
        self._history, self._other, self._now = list(none), list(none), list(none)
        # the weight of what history was, where a mean is taken; whether the rows of this epoch become history
        self._blend = 0.0
        self._chunked = self._keeps = False

    def begin(self, *, chunked: bool, keep: float | None) -> None:
        """Begin a pass, chunk by chunk or over all rows at once.

        Args:
            keep: the rows become history, in which what it was before has this weight; None: they do not.
        """
        if chunked and self._drift is not None:
            self._drift.before(self.history(), self._own_rows)
        self._chunked = chunked
        self._keeps, self._blend = keep is not None, 0.0
        if not chunked and keep is None:
            self._now = [None] * len(self._widths)
        elif not chunked or not self._apart:
            self._now = self._history
        elif keep is not None and keep > 0.0 and all(rows is not None for rows in self._history):
            self._now, self._blend = self._history, keep
            self._other = [self._empty(k) if rows is None else rows for k, rows in enumerate(self._other)]
        else:
            self._other = [self._empty(k) if rows is None else rows for k, rows in enumerate(self._other)]
            for other, kept in zip(self._other, self._history, strict=True):
                if other is not None:
                    _ = other.zero_() if kept is None else other.copy_(kept)
            self._now = self._other

    def rows(self, slot: int) -> Tensor:
        """What readers of a slot see, [columns, width]."""
        rows = self._now[slot]
        if rows is None:
            rows = self._now[slot] = self._empty(slot)
            rows.zero_()
        return rows

    def kept(self, slot: int) -> Tensor:
        """History of a slot, [columns, width], between passes and in those that replace some of its rows in place."""
        rows = self._history[slot]
        if rows is None:
            rows = self._history[slot] = self._empty(slot)
            rows.zero_()
        return rows

    def end(self) -> None:
        """The pass is over, backward included: all but history is free for whatever comes before the next one."""
        none: list[Tensor | None] = [None] * len(self._widths)
        self._now, self._other = list(none), list(none)

    @property
    def blends(self) -> bool:
        """Whether rows are to be brought by `write`, since what they replace still counts."""
        return self._blend > 0.0

    def write(self, slot: int, low: int, high: int, rows: Tensor) -> None:
        """Fresh rows take the place of history."""
        seen = self.rows(slot)[low:high]
        other = self._other[slot]
        if self._blend > 0.0 and other is not None:
            replace_rows(seen, rows, other[low:high], 1.0 - self._blend)
        else:
            seen.copy_(rows)

    def turn(self) -> None:
        """All chunks have gone forward: from here on nothing is read, and history is complete."""
        if self._chunked and self._drift is not None:
            self._drift.after(self._now)
        if self._apart and self._keeps and (self._blend > 0.0 or self._now is self._other):
            self._history, self._other = self._other, self._history
            self._now = self._other

    def memory_for_gradients(self, slot: int) -> Tensor:
        """Memory for gradients of a slot's rows, once all chunks have gone forward, [columns, width]."""
        memory = self._other[slot]
        if memory is None:
            memory = self._other[slot] = self._empty(slot)
        return memory

    def history(self) -> dict[str, Tensor]:
        """All that a resumed run needs, by name."""
        return {f"{self.name}.{slot}": rows for slot, rows in enumerate(self._history) if rows is not None}

    def restore(self, named: Mapping[str, Tensor]) -> None:
        """Put back what `history` gave, as a resumed run does."""
        for name, rows in named.items():
            slot = int(name.partition(".")[2])
            wanted = (self._columns, self._widths[slot]) if slot < len(self._widths) else None
            if rows.shape != wanted:
                needs = "has none" if wanted is None else f"needs {list(wanted)}"
                raise CheckpointError(
                    f"The checkpoint has {name!r} of shape {list(rows.shape)}, and the stage {needs} (the graph was cut"
                    " in another way, or by another release); start a new run, or continue under another layout."
                )
            self._history[slot] = self._empty(slot).copy_(rows)

    def _empty(self, slot: int) -> Tensor:
        return empty((self._columns, self._widths[slot]), self.dtype, self._device)
