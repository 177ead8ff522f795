"""Convolutions of PyG that the verbs of a view do at once, by the kernels of this library.

Each reads one prepared matrix, its form. A module all of whose convolutions have one form is run so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trisect import ops
from trisect.nn.base import Normalisation
from trisect.ops.attention import attend
from trisect.ops.edges import attend_edges

if TYPE_CHECKING:
    from trisect.views.view import Neighbours, View


class NotNativeError(Exception):
    """A convolution was called with more than the edges of the data."""


@dataclass(frozen=True)
class Form:
    """How the matrix is prepared that a convolution reads; see `trisect.graph.build.normalise`."""

    normalisation: Normalisation
    self_loops: bool


def _gcn(conv: Any, g: View, x: Tensor) -> Tensor:
    return g.aggregate(x, conv.lin.weight, bias=conv.bias)


def _gcn2(conv: Any, g: View, x: Tensor, x_0: Tensor) -> Tensor:
    return g.aggregate(x, conv.weight1.t(), add=x_0, alpha=conv.alpha, theta=conv.beta)


def _sage(conv: Any, g: View, x: Tensor) -> Tensor:
    root = conv.lin_r.weight if conv.root_weight else None
    y = g.aggregate(x, conv.lin_l.weight, root=root, bias=conv.lin_l.bias)
    return functional.normalize(y, p=2.0, dim=-1) if conv.normalize else y


def _graph(conv: Any, g: View, x: Tensor) -> Tensor:
    return g.aggregate(x, conv.lin_rel.weight, root=conv.lin_root.weight, bias=conv.lin_rel.bias)


def _gin(conv: Any, g: View, x: Tensor) -> Tensor:
    return g.aggregate(x, add=ops.scale(x, 1.0 + conv.eps))


def _gat(conv: Any, g: View, x: Tensor) -> Tensor:
    heads, channels = conv.heads, conv.out_channels

    def attended(near: Tensor, own: Tensor, at: Neighbours) -> Tensor:
        block = at.block
        # ⟨att, h⟩ of each head as one product, with a matrix [heads, heads · channels] that is zero between heads
        one_head = torch.eye(heads, dtype=near.dtype, device=near.device)[:, :, None]
        source, target = ((one_head * att[0]).flatten(1) for att in (conv.att_src, conv.att_dst))
        scores = ops.branches(near, source, target, block.self_start, block.rows)
        return attend(near.view(-1, heads, channels), *scores, block, conv.negative_slope).flatten(1)

    return _of_heads(conv, g.gather(x, conv.lin.weight, then=attended, width=heads * channels), None)


def _gatv2(conv: Any, g: View, x: Tensor) -> Tensor:
    left, right = conv.lin_l, conv.lin_r

    def attended(near: Tensor, own: Tensor, at: Neighbours) -> Tensor:
        # coefficients of a row add up to 1, so that the bias of what is summed may be added behind
        bias = right.bias if left.bias is None or right.bias is None else left.bias + right.bias
        target = ops.dense(own, right.weight, bias)
        return attend_edges(near, target, conv.att[0], at.block, None, conv.negative_slope)

    width = conv.heads * conv.out_channels
    return _of_heads(conv, g.gather(x, left.weight, then=attended, width=width), left.bias)


def _of_heads(conv: Any, y: Tensor, bias: Tensor | None) -> Tensor:
    y = y if bias is None else y + bias
    y = y if conv.concat else y.view(-1, conv.heads, conv.out_channels).mean(1)
    return y if conv.bias is None else y + conv.bias


_RUNS: dict[str, Callable[..., Tensor]] = {
    "GCNConv": _gcn,
    "GCN2Conv": _gcn2,
    "SAGEConv": _sage,
    "GraphConv": _graph,
    "GINConv": _gin,
    "GATConv": _gat,
    "GATv2Conv": _gatv2,
}


NATIVE = tuple(_RUNS)


def form_of(conv: Any) -> Form | None:
    """Return the form of the matrix that a convolution reads where it is done here with its options; else None."""
    kind = _kind(conv)
    if kind is None or conv.flow != "source_to_target" or conv.explain:
        return None
    mean = getattr(conv, "aggr", None)
    if kind in ("GCNConv", "GCN2Conv"):
        plain = conv.normalize and conv.add_self_loops and not getattr(conv, "improved", False) and mean == "add"
        plain = plain and getattr(conv, "weight2", None) is None
        return Form("symmetric", True) if plain else None
    if kind == "SAGEConv" and not conv.project and mean in ("mean", "add", "sum"):
        return Form("row" if mean == "mean" else "none", False)
    if kind in ("GINConv", "GraphConv") and mean in ("add", "sum"):
        return Form("none", False)
    if kind in ("GATConv", "GATv2Conv"):
        shared = kind == "GATv2Conv" or isinstance(conv.lin, nn.Module)
        plain = shared and conv.add_self_loops and conv.dropout == 0.0 and conv.edge_dim is None
        return Form("none", True) if plain and not conv.residual else None
    return None


def _kind(conv: Any) -> str | None:
    """Return the name of PyG's convolution, where the class is PyG's own and is done here."""
    for kind in type(conv).__mro__:
        if kind.__module__.startswith("torch_geometric.nn.conv"):
            return kind.__name__ if kind.__name__ in _RUNS and kind.__name__ == type(conv).__name__ else None
        if kind.__module__ != "trisect.nn.pyg.twin":
            return None
    return None


def run_native(conv: Any, g: View, given: dict[str, Tensor | None], args: tuple[Any, ...], kwargs: Any) -> Tensor:
    """Return conv(*args, **kwargs) by the verbs of a view.

    Args:
        given: by name, what the module's forward was given; edges are to be these.

    Raises:
        NotNativeError: they are not.
    """
    kind = _kind(conv)
    rows = args[: 2 if kind == "GCN2Conv" else 1]
    named = {name: kwargs.pop(name) for name in ("x", "x_0") if name in kwargs}
    edges = [*args[len(rows) :], *kwargs.values()]
    known = [value for value in given.values() if value is not None]
    if kind is None or not edges or not all(value is None or any(value is one for one in known) for value in edges):
        raise NotNativeError
    if not all(isinstance(value, Tensor) and value.dim() == 2 for value in (*rows, *named.values())):
        raise NotNativeError
    with torch._C.DisableTorchFunction():
        y = _RUNS[kind](conv, g, *rows, **named)
    if kind == "GINConv":
        y = conv.nn(y)
    return y
