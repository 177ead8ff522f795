"""What a layer is here: a module that reads a block of the graph and never sees a rank.

A static model is a list of `Layer`s; that list is what a cut by layer cuts. A dynamic model is a list of
`DynamicLayer`s, each a spatial part inside a snapshot and a temporal part along time. State is an argument and a
return value; nothing is kept on `self` between calls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, Protocol, cast

import torch
from torch import Tensor, nn

from trisect.errors import ConfigError, RunError
from trisect.graph.adjacency import Adjacency
from trisect.nn.initial import generator_for
from trisect.noise import Noise
from trisect.ops.memory import alias, empty
from trisect.ops.message import Message
from trisect.ops.recurrent import OutputBuffers
from trisect.ops.spmm.steps import Snapshots, joined

if TYPE_CHECKING:
    from trisect.views.view import View

State = tuple[Tensor, ...]


@dataclass(frozen=True)
class Context:
    """What a layer may read besides its input: where random numbers come from, and the declared shared inputs.

    Attributes:
        noise: of the rows that are computed; None in evaluation.
        shared: for the rows that are computed, the tensors named in `Layer.reads`.
        columns: noise of the block's columns; needed only where a block is not square and the layer draws random
            numbers for its columns too: before it reads neighbours (`Layer.draws_before`), or for pairs (attention).
        into: where `prepare` ([rows, message_channels]), `combine` and `forward` ([rows, out_channels]) may put their
            result, so that nobody has to copy it there.
    """

    noise: Noise | None = None
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    columns: Noise | None = None
    into: Tensor | None = None


class Layer(nn.Module):
    """One step of a static model: x of the block's columns in, the block's rows out.

    A spatial layer has two halves. `prepare` is the work on single rows whose result other rows read (X·W where W
    narrows); `combine` reads it. `forward` is one after the other on a block; a cut may call them apart, so that no
    row is prepared twice and the narrower of the two tensors crosses the wire.

    Attributes:
        spatial: whether the layer reads neighbours. A layer that does not is called with x of the rows alone.
        reads: names of shared inputs it needs (GCNII: `("h0",)`).
        writes: under which name later layers may read its output, or None.
        draws_before: whether `prepare` draws random numbers.
        preaggregates: whether `combine_aggregated` exists: all that the layer asks of its neighbours is Â·x.
        edge_channels: how many features of an edge the layer reads; 0: none.
        collects: whether `combine` reads its message by `ops.convolve`, `ops.convolve_dense` or the sum of
            `ops.aggregate`, and its own rows by `message.of_block`, and in no other way. Then a cut need not copy the
            rows that a chunk reads. A layer that does more reads `message.rows`, which then hold all columns.
    """

    in_channels: int
    out_channels: int
    spatial: bool = True
    reads: tuple[str, ...] = ()
    writes: str | None = None
    draws_before: bool = False
    preaggregates: bool = False
    collects: bool = False
    edge_channels: int = 0

    @property
    def message_channels(self) -> int:
        """Tell how wide a row is that `prepare` gives."""
        return self.in_channels

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the parameters anew, from the generator or from torch's own."""

    def prepare(self, x: Tensor, context: Context) -> Tensor:
        """x [any rows, in_channels] → what other rows read of these rows, [same rows, message_channels]."""
        return x

    def combine(self, message: Message, x: Tensor, adjacency: Adjacency, context: Context) -> Tensor:
        """Finish the rows of a block from what they read and what they are.

        Args:
            message: what `prepare` gave of the block's columns, [columns, message_channels].
            x: the rows' own inputs, [rows, in_channels].

        Returns: [rows, out_channels].
        """
        raise ConfigError(
            f"{type(self).__name__} reads neighbours and has no combine; define it, or set spatial to False."
        )

    def combine_aggregated(self, aggregated: Tensor, x: Tensor, context: Context) -> Tensor:
        """Do `forward` from Â·x [rows, in_channels], computed before, and the rows' own x."""
        raise ConfigError(
            f"{type(self).__name__} has no combine_aggregated; define it, or leave preaggregates at False."
        )

    def forward(self, x: Tensor, adjacency: Adjacency, context: Context) -> Tensor:
        """x [columns, in_channels] → [rows, out_channels]; the rows' own features are x[self_start:self_start+rows]."""
        noise = context.noise
        if self.draws_before and noise is not None:
            if context.columns is not None:
                noise = context.columns
            elif adjacency.rows != adjacency.columns:
                raise RunError(
                    f"{self} draws random numbers for the {adjacency.columns} columns of a block of {adjacency.rows} "
                    "rows; give their noise as Context(columns=…)."
                )
        message = Message(self.prepare(x, Context(noise, context.shared)))
        return self.combine(message, own_rows(x, adjacency), adjacency, context)

    def ask(self, x: Tensor, g: View) -> Tensor:
        """Return the layer's output [..., rows, out_channels]; all else than x is asked of the view.

        Args:
            x: [rows, in_channels] on a graph, [steps, rows, in_channels] on a timeline.
            g: of these rows and steps.
        """
        raise ConfigError(f"{type(self).__name__} has no ask(x, g); define it.")

    def over_steps(
        self, xs: Tensor, snapshots: Snapshots, contexts: Sequence[Context], aggregated: Tensor | None = None
    ) -> Tensor:
        """Do `forward` on each step of a timeline, with all rows; layers that can do all at once override it.

        Args:
            xs: [steps, vertices, in_channels], or [vertices, in_channels] for the same features in all steps.
            snapshots: the adjacency of each step.
            contexts: that of each step.
            aggregated: Â_t·x_t of each step, [steps, vertices, in_channels]; then no snapshot is read.

        Returns: [steps, vertices, out_channels].
        """
        frames = frames_of(xs, len(contexts))
        if aggregated is None:

            def step(t: int, context: Context) -> Tensor:
                result: Tensor = self(frames[t], snapshots[t], context)
                return result
        else:
            sums = aggregated.unbind()

            def step(t: int, context: Context) -> Tensor:
                return self.combine_aggregated(sums[t], frames[t], context)

        return each_step(step, contexts, xs, self.out_channels)

    def combine_steps(
        self, messages: Sequence[Message], xs: Tensor, adjacencies: Snapshots, contexts: Sequence[Context]
    ) -> Tensor:
        """Do `combine` for each step of a timeline, whose results come to lie in one tensor.

        Args:
            messages: what each step's block reads, [columns of the step, message_channels].
            xs: the rows' own inputs, [steps, rows, in_channels], or [rows, in_channels] for the same in all steps.
            adjacencies: the block of each step.
            contexts: that of each step.

        Returns: [steps, rows, out_channels].
        """
        frames = frames_of(xs, len(contexts))
        return each_step(
            lambda t, context: self.combine(messages[t], frames[t], adjacencies[t], context),
            contexts,
            xs,
            self.out_channels,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}{self._repr_options()})"

    def _repr_options(self) -> str:
        return ""


def frames_of(xs: Tensor, steps: int) -> Sequence[Tensor]:
    """List x of each step, from [steps, rows, features] or a fixed [rows, features].

    The gradient of a single xs[t] would be as large as xs for every t.
    """
    if xs.dim() == 2:
        return [xs] * steps
    return [xs.squeeze(0)] if steps == 1 else xs.unbind()


def each_step(
    call: Callable[[int, Context], Tensor],
    contexts: Sequence[Context],
    xs: Tensor,
    channels: int,
) -> Tensor:
    """Call a function for each step, let it write its result into one tensor, and give [steps, rows, channels].

    One step alone is not copied: its result is what is returned.
    """
    steps = len(contexts)
    if steps == 1:
        return call(0, contexts[0])[None]
    out = empty((steps, xs.shape[-2], channels), xs.dtype, xs.device)
    frames = [call(t, replace(context, into=alias(out[t]))) for t, context in enumerate(contexts)]
    if any(frame.dtype != out.dtype for frame in frames):
        return torch.stack(frames)
    return joined(out, frames)


def own_rows(x: Tensor, adjacency: Adjacency) -> Tensor:
    """Take the rows of the block itself out of x [columns, …]."""
    if adjacency.rows == x.shape[0]:
        return x  # a slice of everything has a gradient that is copied
    return x[adjacency.self_start : adjacency.self_start + adjacency.rows]


Normalisation = Literal["symmetric", "row", "none"]


class Model(nn.Module):
    """A static model: layers in order, and the form of the adjacency that they want.

    Args:
        layers: each layer's in_channels is the out_channels of the one before.
        normalisation: how the graph's weights are to be scaled (`trisect.graph.build.normalise`).
        self_loops: whether each vertex gets a loop of weight 1 where it has none.
    """

    def __init__(
        self, layers: Sequence[Layer], *, normalisation: Normalisation = "symmetric", self_loops: bool = True
    ) -> None:
        super().__init__()
        check_chain(layers)
        self.layers = nn.ModuleList(layers)
        self.normalisation: Normalisation = normalisation
        self.self_loops = self_loops

    @property
    def stack(self) -> list[Layer]:
        """Give the layers as a typed list."""
        return cast("list[Layer]", list(self.layers))

    @property
    def in_channels(self) -> int:
        """Give the width of the input."""
        return self.stack[0].in_channels

    @property
    def out_channels(self) -> int:
        """Give the width of the output (logits: the last layer has no activation)."""
        return self.stack[-1].out_channels

    @property
    def edge_channels(self) -> int:
        """Give the number of features of an edge that layers read; 0: no layer reads any."""
        return edge_channels_of(self.stack)

    def reset_parameters(self, seed: int) -> None:
        """Draw all parameters anew: layer i from (seed, i), whatever is built beside it."""
        for number, layer in enumerate(self.stack):
            layer.reset_parameters(generator_for(seed, number))

    def forward(self, x: Tensor, adjacency: Adjacency, noise: Noise | None = None) -> Tensor:
        """Run all layers on all rows of the graph: the single-process reference of every layout.

        Args:
            x: [vertices, in_channels].
            noise: where random numbers come from; None (evaluation) draws none, whatever `self.training` says.
        """
        shared: dict[str, Tensor] = {}
        for number, layer in enumerate(self.stack):
            context = Context(None if noise is None else noise.at(layer=number), shared)
            x = layer(x, adjacency, context)
            if layer.writes is not None:
                shared[layer.writes] = x
        return x

    def ask(self, x: Tensor, g: View) -> Tensor:
        """Run all layers on the rows of a view: x [rows, in_channels] → [rows, out_channels]."""
        for number, layer in enumerate(self.stack):
            g.enter(number)
            x = layer.ask(x, g)
            if layer.writes is not None:
                g.shared[layer.writes] = x
        return x


def check_chain(layers: Sequence[Layer]) -> None:
    """Refuse a list of layers whose widths or shared inputs do not fit together."""
    if not layers:
        raise ConfigError("a model needs at least one layer; layers is empty.")
    check_widths(layers)
    written: set[str] = set()
    for number, layer in enumerate(layers):
        missing = [name for name in layer.reads if name not in written]
        if missing:
            raise ConfigError(
                f"layer {number}, {layer}, reads the shared input {missing[0]!r}, which no layer before it writes; "
                "set `writes` on an earlier layer."
            )
        if layer.writes is not None:
            written.add(layer.writes)


def edge_channels_of(layers: Iterable[nn.Module]) -> int:
    """Give the number of features of an edge that these layers read; all that read any must read the same number."""
    widths = sorted({layer.edge_channels for layer in layers if isinstance(layer, Layer)} - {0})
    if len(widths) > 1:
        raise ConfigError(
            f"one layer reads {widths[0]} features of an edge and another {widths[1]}; give all the number of the data."
        )
    return widths[0] if widths else 0


class HasWidths(Protocol):
    """Anything that has an input and an output width."""

    in_channels: int
    out_channels: int


def check_widths(layers: Sequence[HasWidths]) -> None:
    """Refuse a list of layers where one reads another width than the one before gives."""
    for number, (before, layer) in enumerate(pairwise(layers), 1):
        if layer.in_channels != before.out_channels:
            raise ConfigError(
                f"layer {number}, {layer}, reads {layer.in_channels} channels, but layer {number - 1} gives "
                f"{before.out_channels}; make them equal."
            )


class Temporal(nn.Module, ABC):
    """A recurrent part along time; vertices are independent in it.

    Attributes:
        state_kind: `"vertex"`: each tensor of the state is [rows, …] (LSTM: h, c); `"window"`: it is the last w-1
            frames, [w-1, rows, …].
    """

    in_channels: int
    out_channels: int
    state_kind: Literal["vertex", "window"] = "vertex"

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the parameters anew, from the generator or from torch's own."""

    @abstractmethod
    def initial_state(self, rows: int, *, dtype: torch.dtype, device: torch.device) -> State:
        """Make the state before the first step."""

    @abstractmethod
    def forward(self, frames: Sequence[Tensor], state: State, first_step: int) -> tuple[Tensor, State]:
        """frames: one or two tensors [steps, rows, features] read side by side → ([steps, rows, out], new state)."""

    def forward_into(
        self, buffers: OutputBuffers, frames: Sequence[Tensor], state: State
    ) -> tuple[Tensor, State] | None:
        """Do `forward`, and write outputs and the frames' gradients into buffers; None where that is not possible."""
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels})"
