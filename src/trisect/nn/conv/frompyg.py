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
from trisect.nn.pyg.asking import Asking
from trisect.nn.pyg.native import Form, form_of
from trisect.nn.pyg.twin import as_trained, twin_of

if TYPE_CHECKING:
    from trisect.views.view import Neighbours, View

GCN = Form("symmetric", True)


class FromPyG(Layer):
    """out = dropout(activation(conv((x, x_own), edge_index))).

    A convolution that takes bipartite input and gives each row the same result whatever other rows are computed with it
    is called so for some rows at a time, as conv((x [columns, in], x_own [rows, in]), edge_index). Any other, such as
    GCNConv, is called as it is, conv(x, edge_index), and what it wants of other rows is asked of the view (see
    `trisect.nn.pyg`): degrees are those of the whole graph, hops and statistics go over all rows. On a timeline that
    is for `GCNConv` alone, by the model's matrix. One that depends on the order of neighbours (`aggr="lstm"`) is
    refused. All that is tried out on a graph of three vertices at construction.

    Args:
        conv: the convolution.
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
        self.bipartite, tried = self._try_out()
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
            return self._called(self.conv, (near, own), at.block.edge_index(), at.block)

        if self.bipartite:
            y = g.gather(x, then=convolved, width=self.out_channels)
        elif x.dim() == 2:
            conv = twin_of(self.conv)
            with as_trained(conv, trains=g.trains), Asking(g) as ask:
                y = self._called(conv, x, ask.edge_index, g.block)
        elif self.form == GCN:
            y = g.aggregate(x, self.conv.lin.weight, bias=self.conv.bias)  # type: ignore[union-attr,arg-type]
        else:
            raise ConfigError(
                f"{self.conv} does not take the bipartite input ((x, x_own), edge_index) that a step of a timeline"
                " needs, or adds self-loops, drops or normalises itself; use one that does not"
                " (add_self_loops=False), or a layer of trisect.nn."
            )
        return activate_rows(y, self.activation, self.dropout, g)

    @property
    def form(self) -> Form | None:
        """The form of the matrix that it reads on a timeline; None: none is prepared for it."""
        form = None if self.bipartite else form_of(self.conv)
        return form if form == GCN else None

    def _called(self, conv: nn.Module, x: Any, edge_index: Tensor, adjacency: Adjacency) -> Tensor:
        """Return conv(x, edge_index, …) with the matrix's values and features where they are asked for."""
        weights: dict[str, Any] = {}
        like = x if isinstance(x, Tensor) else x[0]
        if self.edge_weight is not None:
            values = adjacency.edge_weight()
            if values is None:
                values = like.new_ones(adjacency.entries)
            weights[self.edge_weight] = values.to(like.dtype)
        if self.edge_channels:
            features = adjacency.edge_attributes()
            if features is None:
                raise ConfigError(
                    f"{self.conv} reads {self.edge_channels} features of each edge, and the edges have none; give the "
                    "data edge_x."
                )
            weights["edge_attr"] = features.to(like.dtype)
        result: Tensor = conv(x, edge_index, **weights)
        return result

    @torch.no_grad()
    def _try_out(self) -> tuple[bool, int]:
        """Run on a graph of three vertices, on a block of the last two, and on all in reverse order.

        Returns:
            whether the block gives the same, and how wide the result is.
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

        conv = twin_of(self.conv)
        buffers = [buffer.clone() for buffer in conv.buffers()]
        with torch.random.fork_rng(device_type="cuda"):
            try:
                with as_trained(conv, trains=False):
                    all_rows = self._called(conv, x, graph.edge_index(), graph)
                    reversed_rows = self._called(conv, x.flip(0), reverse.edge_index(), reverse).flip(0)
            except Exception as error:
                raise ConfigError(self._failed(error)) from error
            bipartite = self._same_in_blocks(conv, x, graph)
        for buffer, value in zip(conv.buffers(), buffers, strict=True):
            buffer.copy_(value)
        if not torch.allclose(all_rows, reversed_rows, rtol=1e-4, atol=1e-6):
            raise ConfigError(
                f"{self.conv} gives a row another result when its neighbours stand in another order, so that a cut "
                "would change it; use an aggregation without an order, such as mean, sum or max."
            )
        return bipartite, int(all_rows.shape[1])

    def _same_in_blocks(self, conv: nn.Module, x: Tensor, graph: Adjacency) -> bool:
        """Whether a convolution takes bipartite input, and gives some rows of three what it gives them among all."""
        if _drops(conv):
            return False
        block = graph.rows_between(1, 3)
        try:
            some = self._called(conv, (x, x[1:]), block.edge_index(), block)
            rows = self._called(conv, x, graph.edge_index(), graph)[1:]
        except Exception:
            return False
        return some.shape == rows.shape and torch.allclose(rows, some, rtol=1e-3, atol=1e-4)

    def _failed(self, error: Exception) -> str:
        """Return the sentence for a convolution that cannot be called."""
        why = f"({type(error).__name__}: {error})"
        if self.edge_channels == 0 and "edge_attr" in inspect.signature(self.conv.forward).parameters:
            return (
                f"{self.conv} fails without features of edges {why}; where it reads them, say how many: FromPyG(conv,"
                " edge_channels=…)."
            )
        return (
            f"{self.conv} fails as conv(x, edge_index) {why}; use one that is called so, or parallelize a module that"
            " calls it (docs/loop.md)."
        )

    def __repr__(self) -> str:
        return f"FromPyG({self.conv})"


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
    if argument is not None and width is None and any(kind.__name__ == "GINEConv" for kind in type(conv).__mro__):
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
