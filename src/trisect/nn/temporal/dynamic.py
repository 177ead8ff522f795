"""Dynamic models: layers of a spatial part inside each snapshot and a temporal part along time.

State goes in and comes out; nothing stays on `self`. Therefore a timeline may be run in pieces: the state after one
piece is the state before the next, and gradients flow through it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor, nn

from trisect import ops
from trisect.errors import ConfigError
from trisect.graph.adjacency import Adjacency
from trisect.nn.base import Context, Layer, Normalisation, State, Temporal, check_widths, edge_channels_of
from trisect.nn.initial import generator_for
from trisect.noise import Noise
from trisect.ops.elementwise import twice
from trisect.ops.spmm.steps import Snapshots as Snapshots

if TYPE_CHECKING:
    from trisect.views.view import View


class DynamicLayer(nn.Module, ABC):
    """One layer of a dynamic model.

    Its two halves may be called apart, since a cut may exchange data between them: `convolve` works inside one
    snapshot, `recur` along time.

    Attributes:
        state_kind: `"vertex"`, `"window"` (see `Temporal`), or `"weight"`: the state is a weight matrix, which has no
            rows.
        preaggregates: whether `convolve_aggregated` exists.
    """

    in_channels: int
    out_channels: int
    state_kind: Literal["vertex", "window", "weight"]
    preaggregates: bool = False

    @abstractmethod
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the parameters anew, from the generator or from torch's own."""

    @abstractmethod
    def initial_state(self, rows: int, *, dtype: torch.dtype, device: torch.device) -> State:
        """Make the state before the first step."""

    @abstractmethod
    def recur(self, frames: Sequence[Tensor], state: State, first_step: int) -> tuple[Tensor, State]:
        """Run the temporal half over some steps, the first of which is step `first_step` of the timeline."""

    def ask(self, x: Tensor, g: View) -> Tensor:
        """Return the layer's output [steps, rows, out_channels]; all else than x is asked of the view.

        Args:
            x: [steps, rows, in_channels]; the steps may share memory.
            g: of these rows and steps.
        """
        raise ConfigError(f"{type(self).__name__} has no ask(x, g); define it.")

    @abstractmethod
    def forward(
        self,
        xs: Tensor,
        snapshots: Snapshots,
        state: State,
        noise: Noise | None = None,
        first_step: int = 0,
        aggregated: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Run both halves over some steps, with all rows of their snapshots.

        Args:
            xs: [steps, vertices, in_channels], or [vertices, in_channels] for the same features in all steps.
            snapshots: the adjacency of each of these steps.
            state: after the step before.
            noise: of the layer; None in evaluation.
            first_step: where in the timeline the first of these steps stands.
            aggregated: Â_t·x_t of each step, [steps, vertices, in_channels], where it is known; then no snapshot is
                read.

        Returns: [steps, vertices, out_channels], and the state after the last step.
        """


class SpatialTemporal(DynamicLayer):
    """A spatial layer in each snapshot, then a recurrent part for each vertex: z = temporal(y) or temporal([y ‖ x]).

    Args:
        spatial: any `Layer` that reads no shared inputs.
        temporal: reads spatial.out_channels, or with `concat` spatial.out_channels + spatial.in_channels.
        concat: whether the temporal part reads the layer's input beside the convolved frame (CD-GCN).
    """

    def __init__(self, spatial: Layer, temporal: Temporal, *, concat: bool = False) -> None:
        super().__init__()
        if spatial.reads:
            raise ConfigError(f"spatial layer {spatial} reads shared inputs {spatial.reads}; a dynamic layer has none.")
        width = spatial.out_channels + (spatial.in_channels if concat else 0)
        if temporal.in_channels != width:
            raise ConfigError(
                f"temporal part {temporal} reads {temporal.in_channels} channels, but the spatial part gives {width}; "
                "make them equal."
            )
        self.spatial = spatial
        self.temporal = temporal
        self.concat = concat
        self.in_channels = spatial.in_channels
        self.out_channels = temporal.out_channels
        self.state_kind = temporal.state_kind
        self.preaggregates = spatial.preaggregates

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the spatial part's parameters first, then the temporal part's."""
        self.spatial.reset_parameters(generator)
        self.temporal.reset_parameters(generator)

    def initial_state(self, rows: int, *, dtype: torch.dtype, device: torch.device) -> State:
        """Make the state of the temporal part before the first step."""
        return self.temporal.initial_state(rows, dtype=dtype, device=device)

    def ask(self, x: Tensor, g: View) -> Tensor:
        """x [steps, rows, in_channels] → [steps, rows, out_channels]."""
        if not self.concat:
            return g.recur(self.temporal, self.spatial.ask(x, g))
        x, beside = twice(x)
        return g.recur(self.temporal, self.spatial.ask(x, g), beside)

    def convolve(self, x: Tensor, adjacency: Adjacency, context: Context) -> Tensor:
        """One snapshot: x [columns, in_channels] → [rows, spatial.out_channels]."""
        result: Tensor = self.spatial(x, adjacency, context)
        return result

    def convolve_aggregated(self, aggregated: Tensor, x: Tensor, context: Context) -> Tensor:
        """One snapshot, from Â·x [rows, in_channels] and the rows' own x."""
        return self.spatial.combine_aggregated(aggregated, x, context)

    def recur(self, frames: Sequence[Tensor], state: State, first_step: int) -> tuple[Tensor, State]:
        """frames: (y,), or (y, x) with `concat`; each [steps, rows, ·] → ([steps, rows, out_channels], state)."""
        result: tuple[Tensor, State] = self.temporal(frames, state, first_step)
        return result

    def forward(
        self,
        xs: Tensor,
        snapshots: Snapshots,
        state: State,
        noise: Noise | None = None,
        first_step: int = 0,
        aggregated: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Run the spatial half of all steps, then the temporal half; see `DynamicLayer.forward`."""
        steps = len(snapshots)
        contexts = [context_at(noise, first_step + t) for t in range(steps)]
        xs, beside = twice(xs) if self.concat else (xs, None)
        frames = [self.spatial.over_steps(xs, snapshots, contexts, aggregated)]
        if beside is not None:
            frames.append(beside if beside.dim() == 3 else beside.expand(steps, *beside.shape))
        return self.recur(frames, state, first_step)


class DynamicModel(nn.Module):
    """Dynamic layers in order, an optional head, and the form of the adjacency that they want.

    Args:
        layers: each layer's in_channels is the out_channels of the one before.
        head: a layer that reads no neighbours, applied to each step's output (logits); None: the last layer's output.
        normalisation, self_loops: how each snapshot is to be prepared.
    """

    head: Layer | None

    def __init__(
        self,
        layers: Sequence[DynamicLayer],
        head: Layer | None = None,
        *,
        normalisation: Normalisation = "symmetric",
        self_loops: bool = True,
    ) -> None:
        super().__init__()
        if not layers:
            raise ConfigError("a dynamic model needs at least one layer; layers is empty.")
        check_widths([*layers, *([] if head is None else [head])])
        if head is not None and head.spatial:
            raise ConfigError(
                f"head {head} reads neighbours; use a layer with spatial=False, or put it among the layers."
            )
        if getattr(head, "dropout", 0.0):
            raise ConfigError(f"head {head} drops features; set dropout on the last layer instead.")
        self.layers = nn.ModuleList(layers)
        self.head = head
        self.normalisation: Normalisation = normalisation
        self.self_loops = self_loops

    @property
    def stack(self) -> list[DynamicLayer]:
        """Give the layers as a typed list."""
        return cast("list[DynamicLayer]", list(self.layers))

    @property
    def in_channels(self) -> int:
        """Give the width of the input."""
        return self.stack[0].in_channels

    @property
    def out_channels(self) -> int:
        """Give the width of the output."""
        return self.stack[-1].out_channels if self.head is None else self.head.out_channels

    @property
    def edge_channels(self) -> int:
        """Give the number of features of an edge that layers read; 0: no layer reads any."""
        return edge_channels_of(self.modules())

    def reset_parameters(self, seed: int) -> None:
        """Draw all parameters anew: layer i from (seed, i), the head as the layer after the last."""
        for number, layer in enumerate(self.stack):
            layer.reset_parameters(generator_for(seed, number))
        if self.head is not None:
            self.head.reset_parameters(generator_for(seed, len(self.layers)))

    def initial_state(self, rows: int, *, dtype: torch.dtype, device: torch.device) -> tuple[State, ...]:
        """Give the state of each layer before the first step."""
        return tuple(layer.initial_state(rows, dtype=dtype, device=device) for layer in self.stack)

    def first_aggregation(self, xs: Tensor, snapshots: Snapshots) -> Tensor:
        """Â_t·x_t of every step, [steps, vertices, in_channels]: what the first layer reads, and nothing in it is
        trained.
        """
        if not self.stack[0].preaggregates:
            raise ConfigError(
                f"the first layer, {self.layers[0]}, does not read Â·x alone; run it without `aggregated`."
            )
        return first_aggregation(xs, snapshots)

    def forward(
        self,
        xs: Tensor,
        snapshots: Snapshots,
        state: Sequence[State] | None = None,
        noise: Noise | None = None,
        first_step: int = 0,
        aggregated: Tensor | None = None,
    ) -> tuple[Tensor, tuple[State, ...]]:
        """Run some steps of the timeline, layer by layer: the single-process reference of every layout.

        Args:
            xs: [steps, vertices, in_channels], or [vertices, in_channels] for the same features in all steps.
            snapshots: the adjacency of each of these steps, made when asked for.
            state: what the call for the steps before returned; None before the first step.
            noise: where random numbers come from; None (evaluation) draws none.
            first_step: where in the timeline the first of these steps stands.
            aggregated: the result of `first_aggregation` for these steps; the first layer then reads no snapshot.

        Returns: [steps, vertices, out_channels], and the state after the last step, an entry a layer.
        """
        rows = xs.shape[-2]
        if state is None:
            if first_step > 0:
                raise ConfigError(
                    f"first_step is {first_step}, but no state is given; pass the state after step {first_step - 1}."
                )
            state = self.initial_state(rows, dtype=xs.dtype, device=xs.device)
        after = []
        for number, layer in enumerate(self.stack):
            layer_noise = None if noise is None else noise.at(layer=number)
            xs, left = layer(xs, snapshots, state[number], layer_noise, first_step, aggregated if number == 0 else None)
            after.append(left)
        return self.read_out(xs), tuple(after)

    def ask(self, x: Tensor, g: View) -> Tensor:
        """Run all layers and the head on a view: x [steps, rows, in_channels] → [steps, rows, out_channels]."""
        for number, layer in enumerate(self.stack):
            g.enter(number)
            x = layer.ask(x, g)
        if self.head is None:
            return x
        g.enter(len(self.layers), draws=False)
        return self.head.ask(x, g)

    def read_out(self, xs: Tensor) -> Tensor:
        """Run the head over [steps, rows, ·]; all steps at once, since a head draws no random numbers."""
        if self.head is None:
            return xs
        steps, rows, channels = xs.shape
        result: Tensor = self.head(xs.reshape(steps * rows, channels), None, Context())
        return result.view(steps, rows, -1)


def frame_of(xs: Tensor, step: int) -> Tensor:
    """Give x of one step, from [steps, rows, features] or a fixed [rows, features]."""
    return xs if xs.dim() == 2 else xs[step]


def context_at(noise: Noise | None, step: int) -> Context:
    """Give the context of a spatial layer at one step of the timeline."""
    return Context(None if noise is None else noise.at(step=step))


@torch.no_grad()
def first_aggregation(xs: Tensor, snapshots: Snapshots) -> Tensor:
    """Â_t·x_t of every step, [steps, rows, features]; xs as in `DynamicModel.forward`."""
    return torch.stack([ops.aggregate(frame_of(xs, t), snapshots[t]) for t in range(len(snapshots))])
