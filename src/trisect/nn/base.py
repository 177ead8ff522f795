"""What a layer is: a module `forward(x, g)`, which asks a view `g` for all that it wants to know of other rows.

A static model is a list of `Layer`s; that list is what a cut by layer cuts. A dynamic model is a list of
`DynamicLayer`s, each a spatial part inside a snapshot and a temporal part along time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from trisect.errors import ConfigError
from trisect.nn.initial import Drawn, seeded
from trisect.ops.recurrent import OutputBuffers

if TYPE_CHECKING:
    from trisect.views.view import View

State = tuple[Tensor, ...]


class Layer(Drawn):
    """One step of a static model: rows in, rows out; all else is asked of a view.

    Attributes:
        reads: names of shared inputs, which are in `g.shared` (GCNII: `("h0",)`).
        writes: under which name later layers may read its output, or None.
        edge_channels: how many features of an edge the layer reads; 0: none.
    """

    in_channels: int
    out_channels: int
    reads: tuple[str, ...] = ()
    writes: str | None = None
    edge_channels: int = 0

    def forward(self, x: Tensor, g: View) -> Tensor:
        """Return the layer's output [..., rows, out_channels]; all else than x is asked of the view.

        Args:
            x: [rows, in_channels] on a graph, [steps, rows, in_channels] on a timeline.
            g: of these rows and steps.
        """
        raise ConfigError(f"{type(self).__name__} has no forward(x, g); define it.")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}{self._repr_options()})"

    def _repr_options(self) -> str:
        return ""


class Wrapped(Layer):
    """A module as a whole: it can be cut by vertex and run in blocks; to be cut by layer takes a list of layers.

    Args:
        module: called as module(x, g), x [..., rows, in_channels].
        in_channels: width of the features.
        out_channels: width of the output, as a trace of the module has it.
    """

    def __init__(self, module: nn.Module, in_channels: int, out_channels: int = 0) -> None:
        super().__init__()
        self.module, self.in_channels, self.out_channels = module, in_channels, out_channels

    def reset_parameters(self) -> None:
        """Leave the parameters as the user made them."""

    def forward(self, x: Tensor, g: View) -> Tensor:
        """Return module(x, g), [..., rows, out_channels]."""
        out: Tensor = self.module(x, g)
        return out

    def __repr__(self) -> str:
        return f"Wrapped({self.module})"


Normalisation = Literal["symmetric", "row", "none"]


class Model(nn.Module):
    """Layers in order, and the form of the adjacency that they want.

    Args:
        layers: each layer's in_channels is the out_channels of the one before.
        head: a layer that reads no neighbours and draws no random numbers, behind the last one; None: there is none.
        normalisation: how the graph's weights are to be scaled (`trisect.graph.build.normalise`).
        self_loops: whether each vertex gets a loop of weight 1 where it has none.
    """

    head: Layer | None

    def __init__(
        self,
        layers: Sequence[Any],
        head: Layer | None = None,
        *,
        normalisation: Normalisation = "symmetric",
        self_loops: bool = True,
    ) -> None:
        super().__init__()
        check_chain([*layers, *([] if head is None else [head])])
        if getattr(head, "dropout", 0.0):
            raise ConfigError(f"head {head} drops features; set dropout on the last layer instead.")
        self.layers, self.head = nn.ModuleList(layers), head
        self.normalisation: Normalisation = normalisation
        self.self_loops = self_loops

    @property
    def stack(self) -> list[Any]:
        """Return the layers, without the head."""
        return list(self.layers)

    @property
    def in_channels(self) -> int:
        """Return the width of the input."""
        return int(self.stack[0].in_channels)

    @property
    def out_channels(self) -> int:
        """Return the width of the output (logits: the last layer has no activation)."""
        return int(self.stack[-1].out_channels) if self.head is None else self.head.out_channels

    @property
    def edge_channels(self) -> int:
        """Return the number of features of an edge that layers read; 0: no layer reads any."""
        return edge_channels_of(self.modules())

    def reset_parameters(self, seed: int) -> None:
        """Draw all parameters anew: layer i from (seed, i), the head as the layer after the last."""
        for number, layer in enumerate([*self.stack, *([] if self.head is None else [self.head])]):
            with seeded(seed, number):
                layer.reset_parameters()

    def forward(self, x: Tensor, g: View) -> Tensor:
        """Run all layers on the rows of a view: x [..., rows, in_channels] → [..., rows, out_channels]."""
        for number, layer in enumerate(self.stack):
            g.enter(number)
            x = layer(x, g)
            if getattr(layer, "writes", None) is not None:
                g.shared[layer.writes] = x
        if self.head is None:
            return x
        g.enter(len(self.layers), draws=False)
        out: Tensor = self.head(x, g)
        return out


def check_chain(layers: Sequence[Any]) -> None:
    """Refuse a list of layers whose widths or shared inputs do not fit together."""
    if not layers:
        raise ConfigError("a model needs at least one layer; layers is empty.")
    for number, (before, layer) in enumerate(pairwise(layers), 1):
        if layer.in_channels != before.out_channels:
            raise ConfigError(
                f"layer {number}, {layer}, reads {layer.in_channels} channels, but layer {number - 1} gives "
                f"{before.out_channels}; make them equal."
            )
    written: set[str | None] = set()
    for number, layer in enumerate(layers):
        missing = [name for name in getattr(layer, "reads", ()) if name not in written]
        if missing:
            raise ConfigError(
                f"layer {number}, {layer}, reads the shared input {missing[0]!r}, which no layer before it writes; "
                "set `writes` on an earlier layer."
            )
        written.add(getattr(layer, "writes", None))


def edge_channels_of(layers: Iterable[nn.Module]) -> int:
    """Return the number of features of an edge that these layers read; all that read any must read the same number."""
    widths = sorted({layer.edge_channels for layer in layers if isinstance(layer, Layer)} - {0})
    if len(widths) > 1:
        raise ConfigError(
            f"one layer reads {widths[0]} features of an edge and another {widths[1]}; give all the number of the data."
        )
    return widths[0] if widths else 0


class Temporal(Drawn, ABC):
    """A recurrent part along time; vertices are independent in it.

    Attributes:
        state_kind: `"vertex"`: each tensor of the state is [rows, …] (LSTM: h, c); `"window"`: it is the last w-1
            frames, [w-1, rows, …].
    """

    in_channels: int
    out_channels: int
    state_kind: Literal["vertex", "window"] = "vertex"

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
