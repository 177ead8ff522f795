"""The dynamic models: each function's keyword arguments are the model's options.

With `head` (the default) every layer is `hidden` wide and a linear layer gives out_channels (logits); without, the
last layer's output is out_channels wide (embeddings for a decoder on edges).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, Literal, cast, get_args

from trisect.errors import ConfigError
from trisect.nn.activation import Activation
from trisect.nn.base import Layer, Normalisation
from trisect.nn.conv.convolution import LinearLayer
from trisect.nn.conv.gat import GATLayer, GATv2Layer
from trisect.nn.conv.gcn import GCNLayer
from trisect.nn.conv.gin import GINELayer, GINLayer
from trisect.nn.conv.rgcn import RGCNLayer
from trisect.nn.conv.sage import SAGELayer
from trisect.nn.models.recipe import DynamicRecipe
from trisect.nn.models.static_models import require_edges, require_relations, split_heads
from trisect.nn.norm import Norm
from trisect.nn.temporal.dynamic import SpatialTemporal
from trisect.nn.temporal.evolving import Evolving
from trisect.nn.temporal.mproduct import Kind, MProduct
from trisect.nn.temporal.recurrent import GRU, LSTM

Spatial = Literal["gcn", "sage", "gat", "gatv2", "gin", "gine", "rgcn"]
TemporalKind = Literal["lstm", "gru", "mean", "harmonic", "ones"]

# the layer, and how the graph is prepared for it
_SPATIAL: dict[str, tuple[Callable[..., Layer], Normalisation, bool]] = {
    "gcn": (GCNLayer, "symmetric", True),
    "sage": (SAGELayer, "row", False),
    "gat": (GATLayer, "none", True),
    "gatv2": (GATv2Layer, "none", True),
    "gin": (GINLayer, "none", False),
    "gine": (GINELayer, "none", False),
    "rgcn": (RGCNLayer, "none", False),
}


def recurrent(
    in_channels: int,
    out_channels: int,
    edge_channels: int = 0,
    *,
    spatial: Spatial = "gcn",
    temporal: TemporalKind = "gru",
    concat: bool = False,
    layers: int = 2,
    hidden: int = 32,
    dropout: float = 0.0,
    activation: Activation = "relu",
    norm: Norm = "none",
    heads: int = 1,
    window: int = 5,
    bases: int | None = None,
    head: bool = True,
) -> DynamicRecipe:
    """Any spatial layer and any temporal part; with `concat` the temporal part reads the layer's input too.

    `gatv2` and `gine` read the features of edges, `rgcn` their relations, with `bases` matrices. `heads` is for `gat`
    and `gatv2`; `window` for the kinds of M-product.
    """
    if concat and temporal in get_args(Kind):
        raise ConfigError(f"concat is true and temporal is {temporal!r}, which keeps widths; set concat: false.")
    options: dict[str, Any] = {"activation": activation, "dropout": dropout, "norm": norm}
    if spatial == "gine":
        require_edges("spatial: gine", edge_channels, "gin")
    if spatial == "rgcn":
        require_relations("spatial: rgcn", edge_channels)
        options |= {"relations": edge_channels, "bases": bases}
    if spatial in ("gatv2", "gine"):
        options["edge_channels"] = edge_channels
    kind, normalisation, self_loops = _SPATIAL[spatial]
    makers = []
    for width_in, width_out in _widths(in_channels, out_channels, layers, hidden, head):
        each = width_out
        if spatial in ("gat", "gatv2"):
            options["heads"], each = heads, split_heads(width_out, heads)
        convolution = partial(kind, width_in, each, **options)
        makers.append(partial(_layer, convolution, temporal, width_out, concat, window))
    return DynamicRecipe(tuple(makers), _head(hidden, out_channels, head), normalisation, self_loops)


def cd_gcn(
    in_channels: int,
    out_channels: int,
    *,
    layers: int = 2,
    hidden: int = 6,
    dropout: float = 0.0,
    activation: Activation = "relu",
    norm: Norm = "none",
    head: bool = True,
) -> DynamicRecipe:
    """CD-GCN: an LSTM per vertex reads [relu(Â·X·W) ‖ X] (Manessi et al., 1704.06199)."""
    return recurrent(
        in_channels,
        out_channels,
        temporal="lstm",
        concat=True,
        layers=layers,
        hidden=hidden,
        dropout=dropout,
        activation=activation,
        norm=norm,
        head=head,
    )


def wd_gcn(
    in_channels: int,
    out_channels: int,
    *,
    layers: int = 2,
    hidden: int = 6,
    dropout: float = 0.0,
    activation: Activation = "relu",
    norm: Norm = "none",
    head: bool = True,
) -> DynamicRecipe:
    """WD-GCN: an LSTM per vertex reads relu(Â·X·W) (Manessi et al., 1704.06199)."""
    return recurrent(
        in_channels,
        out_channels,
        temporal="lstm",
        layers=layers,
        hidden=hidden,
        dropout=dropout,
        activation=activation,
        norm=norm,
        head=head,
    )


def tm_gcn(
    in_channels: int,
    out_channels: int,
    *,
    layers: int = 2,
    hidden: int = 6,
    dropout: float = 0.0,
    activation: Activation = "relu",
    norm: Norm = "none",
    window: int = 5,
    kind: Kind = "mean",
    head: bool = True,
) -> DynamicRecipe:
    """TM-GCN: a banded mix of the last `window` frames of relu(Â·X·W) (Malik et al., 1910.07643)."""
    return recurrent(
        in_channels,
        out_channels,
        temporal=kind,
        layers=layers,
        hidden=hidden,
        dropout=dropout,
        activation=activation,
        norm=norm,
        window=window,
        head=head,
    )


def evolvegcn_o(
    in_channels: int,
    out_channels: int,
    *,
    layers: int = 2,
    hidden: int = 32,
    dropout: float = 0.0,
    activation: Activation = "leaky",
    norm: Norm = "none",
    head: bool = True,
) -> DynamicRecipe:
    """EvolveGCN-O: the weights evolve by themselves (Pareja et al., 1902.10191)."""
    return _evolving("O", in_channels, out_channels, layers, hidden, dropout, activation, norm, head)


def evolvegcn_h(
    in_channels: int,
    out_channels: int,
    *,
    layers: int = 2,
    hidden: int = 32,
    dropout: float = 0.0,
    activation: Activation = "leaky",
    norm: Norm = "none",
    head: bool = True,
) -> DynamicRecipe:
    """EvolveGCN-H: the weights evolve with a summary of each snapshot's features (Pareja et al., 1902.10191)."""
    return _evolving("H", in_channels, out_channels, layers, hidden, dropout, activation, norm, head)


def _evolving(
    variant: str,
    in_channels: int,
    out_channels: int,
    layers: int,
    hidden: int,
    dropout: float,
    activation: Activation,
    norm: Norm,
    head: bool,
) -> DynamicRecipe:
    makers = tuple(
        partial(Evolving, width_in, width_out, variant=variant, activation=activation, dropout=dropout, norm=norm)
        for width_in, width_out in _widths(in_channels, out_channels, layers, hidden, head)
    )
    return DynamicRecipe(makers, _head(hidden, out_channels, head))


def _layer(
    convolution: Callable[[], Layer], temporal: TemporalKind, channels: int, concat: bool, window: int
) -> SpatialTemporal:
    """One layer of the general model. An M-product keeps the width that it reads."""
    spatial = convolution()
    read = channels + (spatial.in_channels if concat else 0)
    gated = {"lstm": LSTM, "gru": GRU}.get(temporal)
    if gated is not None:
        return SpatialTemporal(spatial, gated(read, channels), concat=concat)
    return SpatialTemporal(spatial, MProduct(read, window=window, kind=cast("Kind", temporal)), concat=concat)


def _widths(in_channels: int, out_channels: int, layers: int, hidden: int, head: bool) -> list[tuple[int, int]]:
    """List the input and the output width of each layer."""
    widths = [in_channels, *[hidden] * layers] if head else [in_channels, *[hidden] * (layers - 1), out_channels]
    return list(pairwise(widths))


def _head(hidden: int, out_channels: int, head: bool) -> Callable[[], Layer] | None:
    return partial(LinearLayer, hidden, out_channels) if head else None
