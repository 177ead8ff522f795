"""What a layer is here: a module that reads a block of the graph and never sees a rank.

A static model is a list of `Layer`s; that list is what a cut by layer cuts. A dynamic model is a list of `DynamicLayer`s,
each a spatial part inside a snapshot and a temporal part along time. State is an argument and a return value; nothing is
kept on `self` between calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from trisect.graph.adjacency import Adjacency
from trisect.noise import Noise

State = tuple[Tensor, ...]


@dataclass(frozen=True)
class Context:
    """What a layer may read besides its input: where random numbers come from, and the declared shared inputs.

    `noise` is None in evaluation. `shared` holds, for the rows that are computed, the tensors named in `Layer.reads`.
    """

    noise: Noise | None = None
    shared: Mapping[str, Tensor] = field(default_factory=dict)


class Layer(nn.Module):
    """One step of a static model: x of the block's columns in, the block's rows out.

    Attributes:
        spatial: whether the layer reads neighbours. A layer that does not is called with x of the rows alone.
        reads: names of shared inputs it needs (GCNII: `("h0",)`).
        writes: under which name later layers may read its output, or None.
    """

    in_channels: int
    out_channels: int
    spatial: bool = True
    reads: tuple[str, ...] = ()
    writes: str | None = None

    def forward(self, x: Tensor, adjacency: Adjacency, context: Context) -> Tensor:
        """x [columns, in_channels] → [rows, out_channels]; the rows' own features are x[self_start:self_start+rows]."""
        raise NotImplementedError


Normalisation = Literal["symmetric", "row", "none"]


class Model(nn.Module):
    """A static model: layers in order, and the form of the adjacency that they want."""

    normalisation: Normalisation = "symmetric"
    self_loops: bool = True

    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, adjacency: Adjacency, noise: Noise | None = None) -> Tensor:
        """The whole model on the whole graph: the single-process reference of every layout."""
        shared: dict[str, Tensor] = {}
        for number, layer in enumerate(self.layers):
            context = Context(None if noise is None else noise.at(layer=number), shared)
            x = layer(x, adjacency, context)
            if layer.writes is not None:
                shared[layer.writes] = x
        return x


class Temporal(nn.Module):
    """A recurrent part along time; vertices are independent in it.

    Attributes:
        state_kind: `"vertex"`: the state has a row a vertex (LSTM: h, c); `"window"`: it is the last w-1 frames.
    """

    state_kind: Literal["vertex", "window"] = "vertex"

    def initial_state(self, rows: int, *, dtype: torch.dtype, device: torch.device) -> State:
        """The state before the first step."""
        raise NotImplementedError

    def forward(self, frames: Sequence[Tensor], state: State, first_step: int) -> tuple[Tensor, State]:
        """frames: one or two tensors [steps, rows, features] read side by side → ([steps, rows, out], new state)."""
        raise NotImplementedError
