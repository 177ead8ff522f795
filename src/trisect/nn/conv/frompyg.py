"""`FromPyG`: a convolution of PyTorch Geometric as a layer, under every cut."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trisect.errors import ConfigError
from trisect.graph.adjacency import Adjacency
from trisect.nn.activation import Activation, activate_rows
from trisect.nn.base import Layer

if TYPE_CHECKING:
    from trisect.views.view import Neighbours, View

# convolutions of PyG that, with its default options, are layers here
_OWN_LAYERS = {
    "GATConv": "GATLayer",
    "GATv2Conv": "GATv2Layer",
    "GCN2Conv": "GCN2Layer",
    "GCNConv": "GCNLayer",
    "GINConv": "GINLayer",
    "GINEConv": "GINELayer",
    "SAGEConv": "SAGELayer",
}


class FromPyG(Layer):
    """out = dropout(activation(conv((x, x_own), edge_index))).

    A block has other columns than rows, so that the convolution must take bipartite input and give each row the same
    result whatever other rows are computed with it, and in whatever order its neighbours stand (`aggr="lstm"` does
    not). That is tried out on a graph of three vertices at construction.

    Args:
        conv: the convolution, called as conv((x [columns, in], x_own [rows, in]), edge_index).
        activation: follows it.
        dropout: the probability of the dropout that follows.
        in_channels: the width of the inputs; read from `conv` where it has it.
        out_channels: the width of the result; read from `conv` where it has it.
        edge_weight: the name of the argument that takes the adjacency's values (`"edge_weight"`), or None: not given.
        edge_channels: how many features of an edge it reads as `edge_attr`; read from `conv` where that says so by
            `edge_dim`. 0: none are given to it.

    Shapes: x [..., rows, in_channels] → [..., rows, out_channels].
    """

    def __init__(
        self,
        conv: nn.Module,
        activation: Activation = "none",
        dropout: float = 0.0,
        *,
        in_channels: int | None = None,
        out_channels: int | None = None,
        edge_weight: str | None = None,
        edge_channels: int | None = None,
    ) -> None:
        super().__init__()
        self.conv = conv
        self.activation: Activation = activation
        self.dropout = dropout
        self.edge_weight = edge_weight
        self.in_channels = _width(conv, "in_channels", in_channels)
        self.edge_channels = _edge_width(conv, self.in_channels, edge_channels)
        tried = self._try_out()
        if out_channels is not None and out_channels != tried:
            raise ConfigError(f"out_channels is {out_channels}, but {conv} gives {tried} channels; leave it out.")
        self.out_channels = tried

    def reset_parameters(self) -> None:
        """Draw by the convolution's own method, from torch's generator."""
        if not hasattr(self.conv, "reset_parameters"):
            raise ConfigError(
                f"{self.conv} has no reset_parameters(), so that its start cannot be seeded; give it one."
            )
        super().reset_parameters()

    def forward(self, x: Tensor, g: View) -> Tensor:
        """x [..., rows, in_channels] → [..., rows, out_channels]."""

        def convolved(near: Tensor, own: Tensor, at: Neighbours) -> Tensor:
            return self._convolved(near, own, at.block)

        y = g.gather(x, then=convolved, width=self.out_channels)
        return activate_rows(y, self.activation, self.dropout, g)

    def _convolved(self, near: Tensor, x: Tensor, adjacency: Adjacency) -> Tensor:
        """Run the convolution: near [columns, in_channels], x [rows, in_channels] → [rows, out_channels]."""
        weights: dict[str, Any] = {}
        if self.edge_weight is not None:
            values = adjacency.edge_weight()
            if values is None:
                values = near.new_ones(adjacency.entries)
            weights[self.edge_weight] = values.to(near.dtype)
        if self.edge_channels:
            features = adjacency.edge_attributes()
            if features is None:
                raise ConfigError(
                    f"{self.conv} reads {self.edge_channels} features of each edge, and the edges have none; give the "
                    "data edge_x."
                )
            weights["edge_attr"] = features.to(near.dtype)
        result: Tensor = self.conv((near, x), adjacency.edge_index(), **weights)
        return result

    @torch.no_grad()
    def _try_out(self) -> int:
        """Run on a graph of three vertices, on a block of the last two, and on all in reverse order; where the results
        differ, the convolution is refused.
        """
        like = next(self.conv.parameters(), torch.empty(0))
        x = torch.linspace(-1.0, 1.0, 3 * self.in_channels).view(3, self.in_channels).to(like)
        indptr = torch.tensor([0, 2, 4, 6], device=like.device)
        indices = torch.tensor([0, 1, 1, 2, 0, 2], device=like.device)
        values = torch.linspace(0.5, 1.0, 6).to(like)
        graph = Adjacency.from_csr(indptr, indices, values, 3)
        # entries are sorted by row and column, so that vertices in reverse have theirs in reverse
        reverse = Adjacency.from_csr(indptr, 2 - indices.flip(0), values.flip(0), 3)
        if self.edge_channels:
            features = torch.linspace(0.0, 1.0, 6 * self.edge_channels).view(6, self.edge_channels).to(like)
            graph, reverse = graph.with_features(features), reverse.with_features(features.flip(0))
        block = graph.rows_between(1, 3)
        buffers = {name: value.clone() for name, value in self.conv.named_buffers()}
        try:
            with torch.random.fork_rng(device_type="cuda"):
                all_rows = self._convolved(x, x, graph)
                two_rows = self._convolved(x, x[1:], block)
                reversed_rows = self._convolved(x.flip(0), x.flip(0), reverse).flip(0)
        except Exception as error:
            if self.edge_channels == 0 and "edge_attr" in inspect.signature(self.conv.forward).parameters:
                raise ConfigError(
                    f"{self.conv} fails without features of edges ({type(error).__name__}: {error}); where it reads "
                    "them, say how many: FromPyG(conv, edge_channels=…)."
                ) from error
            own = _own_layer(self.conv)
            # PyG's text would name other layers than ours
            remedy = (
                f" ({type(error).__name__}: {error}); use one that does, such as SAGEConv, or a layer of trisect.nn."
                if own is None
                else f"; use trisect.nn.{_OWN_LAYERS[own]}, which does and is PyG's {own} with its default options."
            )
            raise ConfigError(
                f"{self.conv} does not take the bipartite input ((x, x_own), edge_index) that a block needs{remedy}"
            ) from error
        for name, value in self.conv.named_buffers():
            value.copy_(buffers[name])
        if (
            _drops(self.conv)
            or all_rows.shape[:1] != (3,)
            or not torch.allclose(all_rows[1:], two_rows, rtol=1e-3, atol=1e-4)
        ):
            raise ConfigError(
                f"{self.conv} gives a row another result when other rows are computed with it, so that a cut would "
                "change it; switch off its own self-loops (add_self_loops=False), dropout and batch norm."
            )
        if not torch.allclose(all_rows, reversed_rows, rtol=1e-4, atol=1e-6):
            raise ConfigError(
                f"{self.conv} gives a row another result when its neighbours stand in another order, so that a cut "
                "would change it; use an aggregation without an order, such as mean, sum or max."
            )
        return int(all_rows.shape[1])

    def __repr__(self) -> str:
        return f"FromPyG({self.conv})"


def _own_layer(conv: nn.Module) -> str | None:
    """Return the name of PyG's convolution that `conv` is or derives from, where it is a layer here."""
    return next((kind.__name__ for kind in type(conv).__mro__ if kind.__name__ in _OWN_LAYERS), None)


def _width(conv: nn.Module, name: str, asked: int | None) -> int:
    """Return the width that the user chose, or the one that the convolution has."""
    own = getattr(conv, name, None)
    if isinstance(own, tuple):
        own = own[0] if own and own[0] == own[-1] else None
    width = own if asked is None else asked
    if not isinstance(width, int) or width <= 0:
        raise ConfigError(f"{conv} does not say its {name} ({own!r}); give it, as FromPyG(conv, {name}=…).")
    return width


def _edge_width(conv: nn.Module, in_channels: int, asked: int | None) -> int:
    """Return how many features of an edge the convolution reads: the user's number, or what the convolution says."""
    argument = inspect.signature(conv.forward).parameters.get("edge_attr")
    if asked is not None:
        if asked and argument is None:
            raise ConfigError(f"edge_channels is {asked}, but {conv} takes no edge_attr; leave edge_channels out.")
        return asked
    width = getattr(conv, "edge_dim", None)
    if argument is not None and width is None and _own_layer(conv) == "GINEConv":
        width = in_channels if getattr(conv, "lin", None) is None else getattr(conv.lin, "in_channels", None)
    if isinstance(width, int) and width > 0 and argument is not None:
        return width
    return 0


def _drops(conv: nn.Module) -> bool:
    """Whether any part of the convolution drops elements, by torch's own random numbers."""
    for part in conv.modules():
        p = part.p if isinstance(part, nn.Dropout) else getattr(part, "dropout", 0.0)
        if isinstance(p, float) and p > 0.0:
            return True
    return False
