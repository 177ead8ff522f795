"""One layer of a stage over the own run of a block: its halves, forward and backward.

Between two halves something may cross ranks, so gradients stop there: each half begins with leaves and ends with roots,
and its backward is told the gradients of the roots. One block's tensors are held at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from trisect.nn.base import Context
from trisect.nn.dynamic import DynamicLayer, SpatialTemporal
from trisect.ops.memory import empty
from trisect.runtime.exchange import Exchange
from trisect.runtime.timeline_part import TimelinePart
from trisect.runtime.timeline_rows import Redistribution, RowExchange
from trisect.runtime.timeline_state import Recurrence
from trisect.runtime.timeline_visit import Visit, go_back, known
from trisect.schedule.timeline import TimelinePlan


class LayerWork(ABC):
    """A layer of spatial and temporal half.

    Args:
        number: of the layer in the model.
        reads: whether rows of other ways are read.
    """

    def __init__(
        self,
        layer: DynamicLayer,
        number: int,
        plan: TimelinePlan,
        part: TimelinePart,
        exchange: Exchange,
        dtype: torch.dtype,
        *,
        reads: bool,
    ) -> None:
        self.layer, self.number, self.part, self.exchange, self.reads = layer, number, part, exchange, reads
        self.dtype, self.device = dtype, exchange.mesh.device
        self.recurrence = Recurrence(layer, dtype, self.device)
        self.along = plan.layers[number].along
        chunks = plan.chunks_of(number)
        self.bounds = [part.rows * c // chunks for c in range(chunks + 1)]
        self.visit: Visit | None = None
        self.drop()

    def drop(self) -> None:
        """Forget the block."""
        self.visit = None
        self.x: Tensor | None = None
        self.message: Tensor | None = None
        self.columns: list[Tensor] = []
        self.y: Tensor | None = None
        self.out: Tensor | None = None
        self.d_message: Tensor | None = None
        self.d_y: Tensor | None = None
        self.d_out: Tensor | None = None
        self._rows: RowExchange | None = None

    def clear(self, *, keeps: bool) -> None:
        """Forget everything: an epoch begins."""
        self.drop()
        self.recurrence.clear()
        self.recurrence.keeps = keeps

    def begin(self, visit: Visit, x: Tensor) -> None:
        """Enter a block with the layer's input, [steps, rows, in_channels] or [rows, in_channels] for all steps."""
        self.drop()
        self.visit = visit
        self.x = x.detach().requires_grad_(visit.grad and self.number > 0)

    @property
    def at(self) -> Visit:
        """The block that is worked on."""
        return known(self.visit)

    @property
    def input(self) -> Tensor:
        """The input, as a leaf."""
        return known(self.x)

    def frames(self) -> Tensor:
        """The input as [steps, rows, in_channels], without a copy."""
        x = self.input
        return x if x.dim() == 3 else x.expand(len(self.at.run), *x.shape)

    def rows_of(self, chunk: int) -> slice:
        """The own rows of a vertex chunk."""
        return slice(self.bounds[chunk], self.bounds[chunk + 1])

    @abstractmethod
    def prepare(self) -> None:
        """What rows of other ways read."""

    @abstractmethod
    def spatial(self) -> None:
        """The spatial half of the own steps."""

    @abstractmethod
    def spatial_back(self) -> None:
        """Back through it."""

    @abstractmethod
    def temporal(self, chunk: int) -> None:
        """The temporal half, of a vertex chunk."""

    @abstractmethod
    def temporal_back(self, chunk: int) -> None:
        """Back through it."""

    def share_rows(self) -> None:
        """Let it cross; the leaves of the spatial half are then here."""
        visit = self.at
        self._rows = RowExchange(self.exchange, visit.halos, self.part.rows, "halo")
        found = self._rows.forward(known(self.message).detach(), visit.key("halo", self.number))
        self.columns = [columns.requires_grad_(visit.grad) for columns in found]

    def return_rows(self) -> None:
        """The gradients of rows of other ways go back to them."""
        gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in self.columns]
        self.columns = []
        self.d_message = known(self._rows).backward(gradients, self.at.key("halo-gradients", self.number))

    def prepare_back(self) -> None:
        """Through `prepare`."""
        go_back(self.message, self.d_message)
        self.message = self.d_message = None

    def aggregated(self) -> Tensor | None:
        """Â·x where it is kept."""
        visit = self.at
        if self.number > 0 or not visit.plan.aggregated:
            return None
        return known(self.part.aggregated(visit.run))

    def take_gradient(self) -> Tensor | None:
        """The gradient of the input; the block is forgotten."""
        found = None if self.x is None else self.x.grad
        self.drop()
        return found


class SpatialTemporalWork(LayerWork):
    """A spatial layer in each snapshot, then the recurrent part along time."""

    layer: SpatialTemporal

    def drop(self) -> None:
        """Forget the block."""
        super().drop()
        self.d_window: Tensor | None = None
        self._spread: list[Tensor] = []
        self._d_x: Tensor | None = None
        self._share: Redistribution | None = None
        self._share_out: Tensor | None = None
        self._d_share: Tensor | None = None

    def clear(self, *, keeps: bool) -> None:
        """Forget everything: an epoch begins."""
        super().clear(keeps=keeps)
        self._past: dict[int, Tensor] = {}
        self._owed: dict[int, Tensor] = {}

    @property
    def _beside(self) -> bool:
        """Whether the temporal part reads the input as a frame of its own."""
        return self.layer.concat and self.along != "halo"

    def prepare(self) -> None:
        """Of all own steps at once where nothing is drawn."""
        x, spatial, visit = self.input, self.layer.spatial, self.at
        if spatial.draws_before and visit.noise is not None:
            pairs = zip(self.frames().unbind(), visit.contexts(self.number), strict=True)
            self.message = torch.stack([spatial.prepare(frame, context) for frame, context in pairs])
        else:
            rows = spatial.prepare(x if x.dim() == 2 else x.flatten(0, 1), Context())
            steps = len(visit.run)
            self.message = rows.expand(steps, *rows.shape) if x.dim() == 2 else rows.view(steps, x.shape[1], -1)

    def spatial(self) -> None:
        """The convolution of each own step."""
        x, visit, spatial = self.input, self.at, self.layer.spatial
        if self.reads:
            contexts = visit.contexts(self.number, columns=True)
            frames = [x] * len(contexts) if x.dim() == 2 else x.unbind()
            pieces = [
                spatial.combine(self.columns[t], frames[t], visit.snapshots[t], context)
                for t, context in enumerate(contexts)
            ]
            y = torch.stack(pieces)
        else:
            aggregated = self.aggregated()
            snapshots = visit.snapshots if aggregated is None else []
            y = spatial.over_steps(x, snapshots, visit.contexts(self.number), aggregated)
        # a window's frames are one tensor, since that is what other ranks read of it
        self.y = torch.cat([y, self.frames()], 2) if self.layer.concat and self.along == "halo" else y

    def spatial_back(self) -> None:
        """From the gradient of the convolved frames to those of the input and of what was read."""
        if self.along == "halo":
            self._collect_owed()
        if self._d_x is not None:
            self.input.grad = self._d_x
        go_back(self.y, self.d_y)
        self.y = self.d_y = self._d_x = None

    def temporal(self, chunk: int) -> None:
        """The recurrent part of a chunk of the own rows, or of all steps of a share of them."""
        visit, needs = self.at, [True] + ([self.number > 0] if self._beside else [])
        if self.along == "redistribute":
            share = known(self._share).share
            first = visit.plan.steps(visit.block).start
            rows = share.stop - share.start
            self._share_out = self.recurrence.forward(visit.block, 0, self._spread, needs, rows, first)
            self._spread = []
            return
        frames = [known(self.y)] + ([self.frames()] if self._beside else [])
        rows_of, first = self.rows_of(chunk), visit.run.start
        if len(self.bounds) == 2:
            self.out = self.recurrence.forward(visit.block, 0, frames, needs, self.part.rows, first)
            return
        part = [frame.detach()[:, rows_of] for frame in frames]
        if self.out is None:
            self.out = self._empty(self.layer.out_channels)
        rows, place = rows_of.stop - rows_of.start, self.out[:, rows_of]
        self.recurrence.forward(visit.block, chunk, part, needs, rows, first, place)

    def _empty(self, channels: int) -> Tensor:
        """Room for all own steps and rows, [steps, rows, channels]."""
        return empty((len(self.at.run), self.part.rows, channels), self.dtype, self.device)

    def temporal_back(self, chunk: int) -> None:
        """Back through it."""
        visit = self.at
        if self.along == "redistribute":
            self._spread = [g for g in self.recurrence.backward(visit.block, 0, self._d_share) if g is not None]
            self._d_share = None
            return
        d_out = known(self.d_out)
        if len(self.bounds) == 2:
            gradients = self.recurrence.backward(visit.block, 0, d_out)
            self.d_y, self._d_x = gradients[0], gradients[1] if self._beside else None
            if self.along == "halo":
                self.d_window = self._window_gradients()
            return
        rows = self.rows_of(chunk)
        if self.d_y is None:
            self.d_y = self._empty(self.layer.spatial.out_channels)
        places: list[Tensor | None] = [self.d_y[:, rows]]
        if self._beside:
            if self._d_x is None and self.number > 0:
                self._d_x = self._empty(self.layer.in_channels)
            places.append(None if self._d_x is None else self._d_x[:, rows])
        self.recurrence.backward(visit.block, chunk, d_out[:, rows], places)

    # Redistribution: to a share of the rows, and back

    def _redistribution(self) -> Redistribution:
        if self._share is None:
            self._share = Redistribution(self.exchange, self.at.plan.runs[self.at.block], self.part.rows)
        return self._share

    def _features_stay(self) -> bool:
        """Whether the second frame is known to everyone: features that are the same in all steps."""
        return self.number == 0 and self.at.plan.fixed

    def to_share(self) -> None:
        """The convolved frames, and the input where the recurrent part reads it, to all steps of the own share."""
        visit, share = self.at, self._redistribution()
        temporal, wide = self.layer.temporal, self.layer.spatial.out_channels
        moves = self._beside and not self._features_stay()
        width = temporal.in_channels if moves else wide
        if visit.run:
            frames = [known(self.y).detach()] + ([self.frames().detach()] if moves else [])
        else:
            frames = [torch.empty(0, self.part.rows, width, dtype=self.dtype, device=self.device)]
        whole = share.by_rows(frames, visit.key("spread", self.number))
        self._spread = [whole[:, :, :wide]] + ([whole[:, :, wide:]] if moves else [])
        if self._beside and not moves:
            x = self.input[share.share]
            self._spread.append(x.expand(whole.shape[0], *x.shape))

    def from_share(self) -> None:
        """The output back to the own steps of all rows."""
        share = self._redistribution()
        self.out = share.by_steps(known(self._share_out), self.at.key("gather", self.number))
        self._share_out = None

    def gradient_to_share(self) -> None:
        """The gradient of the output to all steps of the own share."""
        d_out = self.d_out
        if d_out is None:
            d_out = torch.empty(0, self.part.rows, self.layer.out_channels, dtype=self.dtype, device=self.device)
        self._d_share = self._redistribution().by_rows([d_out], self.at.key("spread-gradients", self.number))

    def gradient_from_share(self) -> None:
        """The gradients of the frames back to the own steps of all rows."""
        found = self._spread[0] if len(self._spread) == 1 else torch.cat(self._spread, 2)
        whole = self._redistribution().by_steps(found, self.at.key("gather-gradients", self.number))
        wide, more = self.layer.spatial.out_channels, len(self._spread) > 1
        self._spread = []
        if self.at.run:
            self.d_y = whole[:, :, :wide].contiguous()
            self._d_x = whole[:, :, wide:].contiguous() if more else None

    # Frames of a window, read by the runs after this one

    def frames_for(self, steps: Sequence[int]) -> Tensor:
        """Own frames that another moment reads: [steps · rows, channels]."""
        return torch.cat([self._frame(step) for step in steps])

    def _frame(self, step: int) -> Tensor:
        run = self.at.run
        return known(self.y).detach()[step - run.start] if step in run else self._past[step]

    def window(self, given: Sequence[tuple[Sequence[int], Tensor]]) -> None:
        """The state that the own run begins with: what other moments gave (their steps, the frames), and own frames."""
        visit, size = self.at, self.layer.temporal.initial_state(0, dtype=self.dtype, device=self.device)[0].shape[0]
        run, rows, width = visit.run, self.part.rows, self.layer.temporal.in_channels
        first = run.start - size
        state = torch.zeros(size, rows, width, dtype=self.dtype, device=self.device)
        for steps, frames in given:
            for step, frame in zip(steps, frames.view(len(steps), rows, width), strict=True):
                state[step - first] = frame
        for step in visit.plan.read_before(visit.block, visit.moment, visit.moment, size + 1):
            state[step - first] = self._past[step]
        self.recurrence.before[visit.block, 0] = (state,)

    def remember(self) -> None:
        """Keep the own frames that later blocks read, drop those that nobody will."""
        visit = self.at
        window, stop = visit.plan.layers[self.number].window, visit.plan.steps(visit.block).stop
        self._past = {step: frame for step, frame in self._past.items() if step >= stop - (window - 1)}
        for step in visit.run:
            if step >= stop - (window - 1):
                self._past[step] = self._frame(step).clone()
        self.recurrence.after.pop(0, None)

    def _window_gradients(self) -> Tensor:
        """[window - 1, rows, channels]: of the frames that the own run began with; those of own frames are noted."""
        visit = self.at
        (gradient,) = self.recurrence.wanted.pop(0)
        first = visit.run.start - gradient.shape[0]
        for step in visit.plan.read_before(visit.block, visit.moment, visit.moment, gradient.shape[0] + 1):
            self.owe(step, gradient[step - first])
        return gradient

    def owe(self, step: int, gradient: Tensor) -> None:
        """Note the gradient of an own frame that a later run read."""
        self._owed[step] = self._owed[step] + gradient if step in self._owed else gradient.clone()

    def _collect_owed(self) -> None:
        run = self.at.run
        for step in run:
            if step in self._owed:
                known(self.d_y)[step - run.start] += self._owed.pop(step)
