"""A timeline under any cut by time, blocks, vertex and layer: the handlers that do a rank's actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from trisect.nn.base import Layer
from trisect.nn.dynamic import DynamicLayer
from trisect.noise import Noise
from trisect.runtime.exchange import Exchange
from trisect.runtime.executor import Handler
from trisect.runtime.timeline_part import TimelinePart
from trisect.schedule.action import Action, Kind
from trisect.schedule.timeline import TimelinePlan

Loss = Callable[[Sequence[Tensor] | Tensor, int], Tensor]
Readers = Callable[[int, Noise | None], Sequence[Sequence[Tensor]]]


class TimelineRank:
    """One rank's tensors, and what it does with them for each kind of action.

    Args:
        layers: of the whole model; those of other stages may lie on the meta device.
        head: of the last stage (see `DynamicModel`).
        bounds: stage s has the layers bounds[s] .. bounds[s+1]-1.
        part: this rank's rows and steps.
        plan: from `plan_of`.
        loss: loss(frames [steps, rows, channels], first step) of own steps and rows; their sum over runs and ways is
            the run's loss. With `readers` frames is a list, a tensor [rows + fetched, channels] a step.
        readers: readers(step, noise)[reader][owner] are the positions among the owner way's rows that the reader way
            wants of that step's output, int64, the same on all ways. They stand after the own rows, in the order of
            owners. Only asked where the plan `fetches`.
        extra: further parameters of the last stage (the task's decoder), reduced with the others.
    """

    def __init__(
        self,
        layers: Sequence[DynamicLayer],
        head: Layer | None,
        bounds: Sequence[int],
        part: TimelinePart,
        plan: TimelinePlan,
        exchange: Exchange,
        loss: Loss,
        *,
        dtype: torch.dtype = torch.float32,
        readers: Readers | None = None,
        extra: Sequence[Parameter] = (),
    ) -> None:
        raise NotImplementedError

    def begin(self, noise: Noise | None, actions: Sequence[Action], *, train: bool) -> None:
        """Begin an epoch of `timeline_schedule(layout, plan).ranks[rank]`."""
        raise NotImplementedError

    def handlers(self) -> dict[Kind, Handler]:
        """For the executor. (Steps belong to whoever holds the optimiser.)"""
        raise NotImplementedError

    def finish(self) -> Tensor:
        """End an epoch: all messages have left. Gives this rank's part of the loss."""
        raise NotImplementedError

    def outputs(self, steps: range, *, hidden: bool = False) -> Iterator[tuple[int, Tensor]]:
        """Exact outputs of this rank's own steps and rows, a run at a time: (first step, [steps, rows, channels]).

        The timeline is run from its first step on, since state is carried. All ranks must go through to the end; only
        those of the last stage yield anything.
        """
        raise NotImplementedError
