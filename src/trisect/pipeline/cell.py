"""`Cell`: a stage on a chunk of rows or a block of steps, forward, again and backward."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from trisect.noise import Noise
from trisect.pipeline.packed import PackedActivations
from trisect.pipeline.sight import Chunk, Sight
from trisect.pipeline.stage import Ends, Graph, Stage, Values, record, run_plain
from trisect.views.view import View


class Cell:
    """A cell and what is kept of it until its backward.

    Args:
        number: of the chunk or block.
        steps: own steps; `chunk` of rows, or several as a batch, None: all.
        boarded: whether rows are read from boards.
        ends: makes a loss of what leaves the stage; None: the stage is not the last, or nothing is trained.
        packed: packs what autograd saves.
        trains: see `Sight.view`.
    """

    def __init__(
        self,
        stage: Stage,
        sight: Sight,
        number: int,
        steps: range,
        chunk: Chunk,
        noise: Noise | None,
        *,
        boarded: bool = False,
        ends: Ends | None = None,
        packed: PackedActivations | None = None,
        trains: bool | None = None,
    ) -> None:
        self.stage, self.sight, self.number, self.steps, self.chunk = stage, sight, number, steps, chunk
        self._noise, self._boarded, self._ends, self._packed = noise, boarded, ends, packed
        self._trains = trains
        self.rows = sight.count(chunk)
        self._inputs: dict[int, Values] = {}
        self._from_features = True
        self._graph: Graph | None = None

    def enter(self, values: Values | None) -> None:
        """Begin with what the stage before sent; None: with the data's features."""
        if values is not None:
            self._inputs[0], self._from_features = values, False

    def _entering(self, group: int) -> Values:
        """Return what enters a group. Features are asked for each time, since they may lie in a file."""
        values = self._inputs.get(group)
        return {"x": self.sight.features(self.steps, self.chunk)} if values is None else values

    def _view(self, values: Values, group: int, last: Hashable = None) -> View:
        x = values["x"] if group == 0 and self._from_features else None
        more: dict[str, Any] = {"boarded": self._boarded, "last": last, "trains": self._trains}
        return self.sight.view(self.steps, self.chunk, self._noise, x=x, **more)

    def plain(self, *, ends_behind_states: bool = False) -> Values | None:
        """Go forward and keep nothing; return what leaves, or None where the pass ended behind its states."""
        last = self.stage.last_recurrent
        if ends_behind_states and last is None:
            return None
        self.sight.enter(self.number, again=False)
        left = self._entering(0)
        for group in range(len(self.stage.groups)):
            with torch.no_grad():
                view = self._view(left, group, last if ends_behind_states else None)
            made = run_plain(self.stage, group, left, view)
            if made is None:
                return None
            left = made
        return left

    def forward(self, *, again: bool = False) -> Values:
        """Go forward with all that backward needs, of all groups but the last with what enters them alone.

        Args:
            again: whether the cell went forward before, so that its states are known.
        """
        self.sight.enter(self.number, again=again)
        last = len(self.stage.groups) - 1
        for group in range(last):
            values = self._entering(group)
            with torch.no_grad():
                view = self._view(values, group)
            left = run_plain(self.stage, group, values, view)
            if left is not None:
                self._inputs[group + 1] = left
        return self._record(last)

    def _record(self, group: int) -> Values:
        values = self._entering(group)
        self._inputs.pop(group, None)  # autograd holds what backward needs
        ends = self._ends if group == len(self.stage.groups) - 1 else None
        hooks = None if self._packed is None else self._packed.hooks(self.rows)
        saving: AbstractContextManager[object] = nullcontext() if hooks is None else hooks
        with torch.enable_grad(), saving:
            view = self._view(values, group)
            trained = set() if group == 0 and self._from_features else set(values)
            left, self._graph = record(self.stage, group, values, view, trained, ends)
        self._forget()
        return left

    def backward(self, gradients: Values) -> Values:
        """Go back from the gradients of what left; return those of what entered."""
        for group in reversed(range(len(self.stage.groups))):
            graph, self._graph = self._graph, None
            if graph is None:
                self.sight.enter(self.number, again=True)
                self._record(group)
                graph, self._graph = self._graph, None
            if graph is not None:
                gradients = graph.backward(gradients)
            self._forget()
        return gradients

    def _forget(self) -> None:
        if self._packed is not None:
            self._packed.forget()
