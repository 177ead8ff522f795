"""`Cell`: a stage on a chunk of rows or a block of steps, forward, again and backward."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from trisect.noise import Noise
from trisect.ops.backward import run_backward
from trisect.pipeline.packed import PackedActivations
from trisect.pipeline.sight import Chunk, Sight
from trisect.pipeline.stage import Ends, Stage, Values
from trisect.views.along import BlockEndedError
from trisect.views.leaves import leaves_of
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
        # of the rows that enter and leave
        self.shape = (len(steps), self.rows) if sight.plan.timeline else (self.rows,)
        self._inputs: dict[int, Values] = {}
        self._from_features = True
        # of a group that went forward with all that backward needs: where backward begins, the gradients that it begins
        # with besides those of what left, and those of what entered
        self._roots: dict[str, GradientEdge] | None = None
        self._seeds, self._found = Values(), Values()

    @property
    def size(self) -> int:
        """How many rows, of all steps, enter and leave."""
        return math.prod(self.shape)

    def enter(self, values: Values) -> None:
        """Begin with what the stage before sent, and not with the data's features."""
        self._inputs[0], self._from_features = values, False

    def _entering(self, group: int) -> Values:
        """Return what enters a group. Features are asked for each time, since they may lie in a file."""
        values = self._inputs.get(group)
        return {"x": self.sight.features(self.steps, self.chunk)} if values is None else values

    def _view(self, values: Values, group: int, last: tuple[int, int] | None = None) -> View:
        x = values["x"] if group == 0 and self._from_features else None
        more: dict[str, Any] = {"boarded": self._boarded, "last": last, "trains": self._trains}
        return self.sight.view(self.steps, self.chunk, self._noise, x=x, **more)

    def _plain(self, group: int, values: Values, last: tuple[int, int] | None = None) -> Values | None:
        """Run a group without gradients; return what leaves it, or None where the pass ended behind its states."""
        with torch.no_grad():
            try:
                return self.stage.run(group, values, self._view(values, group, last))
            except BlockEndedError:
                return None

    def plain(self, *, ends_behind_states: bool = False) -> Values | None:
        """Go forward and keep nothing; return what leaves, or None where the pass ended behind its states."""
        last = self.stage.last_recurrent if ends_behind_states else None
        if ends_behind_states and last is None:
            return None
        self.sight.enter(self.number, again=False)
        left: Values | None = self._entering(0)
        for group in range(len(self.stage.groups)):
            left = None if left is None else self._plain(group, left, last)
        return left

    def forward(self, *, again: bool = False) -> Values:
        """Go forward with all that backward needs, of all groups but the last with what enters them alone.

        Args:
            again: whether the cell went forward before, so that its states are known.
        """
        self.sight.enter(self.number, again=again)
        last = len(self.stage.groups) - 1
        for group in range(last):
            left = self._plain(group, self._entering(group))
            if left is not None:
                self._inputs[group + 1] = left
        return self._record(last)

    def _record(self, group: int) -> Values:
        """Run a group with gradients on; the loss of what leaves the last one is all that leaves it."""
        values = self._entering(group)
        self._inputs.pop(group, None)  # autograd holds what backward needs
        hooks = None if self._packed is None else self._packed.hooks(self.rows)
        saving: AbstractContextManager[object] = nullcontext() if hooks is None else hooks
        trained = sorted(values) if not self._from_features or self.stage.trains_before(group) else []
        with torch.enable_grad(), saving:
            view = self._view(values, group)
            entered = {**values, **leaves_of({name: values[name] for name in trained}, self._found)}
            left = self.stage.run(group, entered, view)
            if self._ends is not None and group == len(self.stage.groups) - 1:
                left = {"loss": self._ends(view, left["x"])}
                self._seeds["loss"] = torch.ones_like(left["loss"])
        self._roots = {name: get_gradient_edge(value) for name, value in left.items() if value.requires_grad}
        if view.token is not None:
            self._roots["token"], self._seeds["token"] = get_gradient_edge(view.token), torch.zeros(())
        self._forget()
        return left

    def backward(self, gradients: Values) -> Values:
        """Go back from the gradients of what left; return those of what entered."""
        for group in reversed(range(len(self.stage.groups))):
            if self._roots is None:
                self.sight.enter(self.number, again=True)
                self._record(group)
            seeds = {**gradients, **self._seeds}
            roots = [(root, seeds[name]) for name, root in (self._roots or {}).items() if name in seeds]
            if roots:
                run_backward(roots)
            gradients, self._roots, self._seeds, self._found = self._found, None, Values(), Values()
            del roots, seeds
            self._forget()
        return gradients

    def _forget(self) -> None:
        if self._packed is not None:
            self._packed.forget()
