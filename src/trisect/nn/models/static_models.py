"""The static models: each function's keyword arguments are the model's options.

`layers` counts the graph layers; linear layers in and out come on top. The last layer gives logits: no activation, no
dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from trisect.errors import ConfigError
from trisect.nn.activation import Activation
from trisect.nn.base import Layer, Normalisation
from trisect.nn.conv.convolution import DropoutLayer, LinearLayer
from trisect.nn.conv.gat import GATLayer, GATv2Layer
from trisect.nn.conv.gcn import GCN2Layer, GCNLayer
from trisect.nn.conv.gin import GINELayer, GINLayer
from trisect.nn.conv.hetero_linear import HeteroLinearLayer
from trisect.nn.conv.resgcn import ReadoutLayer, ResGCNLayer
from trisect.nn.conv.rgcn import RGCNLayer
from trisect.nn.conv.sage import SAGELayer
from trisect.nn.models.recipe import Recipe
from trisect.nn.norm import Norm

Maker = Callable[[], Layer]


def gcn(
    in_channels: int,
    out_channels: int,
    *,
    layers: int = 2,
    hidden: int = 64,
    dropout: float = 0.5,
    input_dropout: float = 0.0,
    activation: Activation = "relu",
    norm: Norm = "none",
    residual: bool = False,
    root_weight: bool = False,
) -> Recipe:
    """GCN: Kipf & Welling's graph convolutions, one after the other.

    `residual` adds a layer's input to its output; `root_weight` gives a vertex a weight for itself, before the norm.
    """
    return _stack(
        partial(GCNLayer, root_weight=root_weight),
        in_channels,
        out_channels,
        layers,
        hidden,
        input_dropout,
        activation=activation,
        dropout=dropout,
        norm=norm,
        residual=residual,
    )


def sage(
    in_channels: int,
    out_channels: int,
    *,
    layers: int = 2,
    hidden: int = 64,
    dropout: float = 0.5,
    input_dropout: float = 0.0,
    activation: Activation = "relu",
    norm: Norm = "none",
    residual: bool = False,
    root_weight: bool = True,
) -> Recipe:
    """GraphSAGE with the mean of the neighbours and a weight for the vertex itself."""
    return _stack(
        partial(SAGELayer, root_weight=root_weight),
        in_channels,
        out_channels,
        layers,
        hidden,
        input_dropout,
        normalisation="row",
        self_loops=False,
        activation=activation,
        dropout=dropout,
        norm=norm,
        residual=residual,
    )


def gcnii(
    in_channels: int,
    out_channels: int,
    *,
    layers: int = 16,
    hidden: int = 64,
    dropout: float = 0.5,
    input_dropout: float = 0.0,
    activation: Activation = "relu",
    norm: Norm = "none",
    residual: bool = False,
    alpha: float = 0.1,
    lam: float = 0.5,
) -> Recipe:
    """GCNII: a linear layer in, whose output h0 every graph layer reads; identity mapping; a linear layer out."""
    makers: list[Maker] = [partial(LinearLayer, in_channels, hidden, activation="relu", writes="h0")]
    if dropout > 0.0:
        # a layer of its own, since h0 itself is not dropped
        makers.append(partial(DropoutLayer, hidden, dropout))
    options: dict[str, Any] = {"activation": activation, "dropout": dropout, "norm": norm, "residual": residual}
    make = partial(GCN2Layer, hidden, alpha=alpha, lam=lam, **options)
    makers += [partial(make, layer=number) for number in range(1, layers + 1)]
    makers.append(partial(LinearLayer, hidden, out_channels))
    return Recipe(_with_input_dropout(makers, in_channels, input_dropout))


def resgcn(
    in_channels: int,
    out_channels: int,
    *,
    layers: int = 16,
    hidden: int = 64,
    dropout: float = 0.5,
    input_dropout: float = 0.0,
    norm: Norm = "layer",
    final_norm: bool = True,
) -> Recipe:
    """ResGCN+: a linear layer in, pre-activated residual blocks, and a linear layer out.

    `final_norm` puts the norm, ReLU and dropout before the last linear layer, as pre-activated networks have it.
    """
    makers: list[Maker] = [partial(LinearLayer, in_channels, hidden)]
    makers += [partial(ResGCNLayer, hidden, dropout=dropout, norm=norm) for _ in range(layers)]
    last = partial(ReadoutLayer, dropout=dropout, norm=norm) if final_norm else LinearLayer
    makers.append(partial(last, hidden, out_channels))
    return Recipe(_with_input_dropout(makers, in_channels, input_dropout))


def gat(
    in_channels: int,
    out_channels: int,
    *,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 8,
    out_heads: int = 1,
    dropout: float = 0.5,
    input_dropout: float = 0.0,
    activation: Activation = "elu",
    norm: Norm = "none",
    residual: bool = False,
    negative_slope: float = 0.2,
    attention_dropout: float = 0.0,
) -> Recipe:
    """Graph attention: `hidden` is the width of all heads together; the last layer takes the mean of `out_heads`."""
    make = partial(GATLayer, negative_slope=negative_slope, attention_dropout=attention_dropout)
    return _attentive(
        make,
        in_channels,
        out_channels,
        layers,
        hidden,
        heads,
        out_heads,
        input_dropout,
        activation=activation,
        dropout=dropout,
        norm=norm,
        residual=residual,
    )


def gatv2(
    in_channels: int,
    out_channels: int,
    edge_channels: int = 0,
    *,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 8,
    out_heads: int = 1,
    dropout: float = 0.5,
    input_dropout: float = 0.0,
    activation: Activation = "elu",
    norm: Norm = "none",
    residual: bool = False,
    negative_slope: float = 0.2,
    attention_dropout: float = 0.0,
) -> Recipe:
    """GATv2: attention that reads both ends of an edge and its features, where there are any; heads as in `gat`."""
    options: dict[str, Any] = {"negative_slope": negative_slope, "attention_dropout": attention_dropout}
    return _attentive(
        partial(GATv2Layer, edge_channels=edge_channels, **options),
        in_channels,
        out_channels,
        layers,
        hidden,
        heads,
        out_heads,
        input_dropout,
        activation=activation,
        dropout=dropout,
        norm=norm,
        residual=residual,
    )


def gin(
    in_channels: int,
    out_channels: int,
    *,
    layers: int = 2,
    hidden: int = 64,
    dropout: float = 0.5,
    input_dropout: float = 0.0,
    activation: Activation = "relu",
    norm: Norm = "none",
    residual: bool = False,
    mlp_norm: Norm = "layer",
    eps: float = 0.0,
    train_eps: bool = False,
) -> Recipe:
    """GIN: the sum of the neighbours, then an MLP with a norm inside (the paper's is a batch norm)."""
    make = partial(GINLayer, hidden_channels=hidden, eps=eps, train_eps=train_eps, mlp_norm=mlp_norm)
    return _stack(
        make,
        in_channels,
        out_channels,
        layers,
        hidden,
        input_dropout,
        normalisation="none",
        self_loops=False,
        activation=activation,
        dropout=dropout,
        norm=norm,
        residual=residual,
    )


def gine(
    in_channels: int,
    out_channels: int,
    edge_channels: int = 0,
    *,
    layers: int = 2,
    hidden: int = 64,
    dropout: float = 0.5,
    input_dropout: float = 0.0,
    activation: Activation = "relu",
    norm: Norm = "none",
    residual: bool = False,
    mlp_norm: Norm = "layer",
    eps: float = 0.0,
    train_eps: bool = False,
) -> Recipe:
    """GINE: the sum over edges of relu(neighbour + features of the edge), then the MLP of `gin`."""
    require_edges("gine", edge_channels, "gin")
    options: dict[str, Any] = {"hidden_channels": hidden, "eps": eps, "train_eps": train_eps, "mlp_norm": mlp_norm}
    return _stack(
        partial(GINELayer, edge_channels=edge_channels, **options),
        in_channels,
        out_channels,
        layers,
        hidden,
        input_dropout,
        normalisation="none",
        self_loops=False,
        activation=activation,
        dropout=dropout,
        norm=norm,
        residual=residual,
    )


def rgcn(
    in_channels: int,
    out_channels: int,
    edge_channels: int = 0,
    *,
    layers: int = 2,
    hidden: int = 64,
    dropout: float = 0.5,
    input_dropout: float = 0.0,
    activation: Activation = "relu",
    norm: Norm = "none",
    residual: bool = False,
    bases: int | None = None,
    root_weight: bool = True,
    types: str | None = None,
) -> Recipe:
    """R-GCN: the mean of the neighbours in each relation through a weight of its own, or made of `bases` weights.

    With `types`, such as `author:334,paper:4231`, features are first projected to `hidden` by a weight for each type of
    vertices; the input is then not dropped.
    """
    require_relations("rgcn", edge_channels)
    recipe = _stack(
        partial(RGCNLayer, relations=edge_channels, bases=bases, root_weight=root_weight),
        in_channels if types is None else hidden,
        out_channels,
        layers,
        hidden,
        0.0 if types is not None else input_dropout,
        normalisation="none",
        self_loops=False,
        activation=activation,
        dropout=dropout,
        norm=norm,
        residual=residual,
    )
    if types is None:
        return recipe
    first = partial(HeteroLinearLayer, type_widths(types), hidden, activation=activation, dropout=dropout, norm=norm)
    return replace(recipe, layers=(first, *recipe.layers))


def type_widths(text: str) -> list[int]:
    """Return the width of each type of `author:334,paper:4231`."""
    widths = [part.rpartition(":")[2].strip() for part in text.split(",")]
    if not all(width.isdigit() for width in widths):
        raise ConfigError(f"option types of model rgcn is {text!r}; write name:width,name:width, one a type.")
    return [int(width) for width in widths]


def require_relations(name: str, relations: int) -> None:
    """Refuse a model that tells relations apart where the data have none."""
    if relations < 1:
        raise ConfigError(
            f"{name} reads relations of edges, and the data have none; give `relation` (trisect data ingest "
            "--relation COLUMN), or use gcn."
        )


def require_edges(name: str, edge_channels: int, instead: str) -> None:
    """Refuse a model that cannot do without edge features where the data have none."""
    if edge_channels < 1:
        raise ConfigError(
            f"{name} reads features of edges, and the data have none; give edge_x (trisect data ingest "
            f"--edge-features), or use {instead}."
        )


def split_heads(hidden: int, heads: int) -> int:
    """Divide the hidden width among the heads."""
    if heads < 1 or hidden % heads != 0:
        raise ConfigError(f"hidden is {hidden} and heads is {heads}; hidden must be a multiple of heads.")
    return hidden // heads


def _stack(
    make: Callable[..., Layer],
    in_channels: int,
    out_channels: int,
    layers: int,
    hidden: int,
    input_dropout: float,
    normalisation: Normalisation = "symmetric",
    self_loops: bool = True,
    **inner: Any,
) -> Recipe:
    """Layers of one kind; all but the last with the options `inner`."""
    *before, last = pairwise([in_channels, *[hidden] * (layers - 1), out_channels])
    makers = [*(partial(make, *widths, **inner) for widths in before), partial(make, *last)]
    return Recipe(_with_input_dropout(makers, in_channels, input_dropout), None, normalisation, self_loops)


def _attentive(
    make: Callable[..., Layer],
    in_channels: int,
    out_channels: int,
    layers: int,
    hidden: int,
    heads: int,
    out_heads: int,
    input_dropout: float,
    **inner: Any,
) -> Recipe:
    """Layers of heads side by side; the last takes the mean of `out_heads`."""
    each = split_heads(hidden, heads)
    *widths, last = [in_channels, *[hidden] * (layers - 1)]
    makers: list[Maker] = [partial(make, width, each, heads=heads, **inner) for width in widths]
    makers.append(partial(make, last, out_channels, heads=out_heads, concat=False))
    return Recipe(_with_input_dropout(makers, in_channels, input_dropout), normalisation="none")


def _with_input_dropout(makers: Sequence[Maker], in_channels: int, p: float) -> tuple[Maker, ...]:
    """Dropout of the input is a layer of its own (see `Convolution`)."""
    return (partial(DropoutLayer, in_channels, p), *makers) if p > 0.0 else tuple(makers)
