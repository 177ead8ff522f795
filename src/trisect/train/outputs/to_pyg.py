"""A trained static model as a module of PyTorch Geometric's convolutions, which gives the same outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trisect.errors import ConfigError
from trisect.nn.activation import Activation, activate
from trisect.nn.base import Layer, Model
from trisect.nn.conv.convolution import Convolution, DropoutLayer, LinearLayer
from trisect.nn.conv.gat import GATLayer
from trisect.nn.conv.gcn import GCN2Layer, GCNLayer
from trisect.nn.conv.gin import GINLayer
from trisect.nn.conv.sage import SAGELayer
from trisect.nn.norm import BatchNorm
from trisect.nn.temporal.dynamic import DynamicModel


class PyGModel(nn.Module):
    """Blocks of a convolution and what follows it.

    PyG's convolutions normalise the adjacency and add self-loops themselves. Only GCN and GCNII read weights of edges.
    """

    def __init__(self, blocks: list[PyGBlock]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """x [vertices, features], edge_index [2, edges] (both directions where the graph is undirected) → outputs."""
        h0 = x
        for block in self.blocks:
            x = block(x, h0, edge_index, edge_weight)
            if block.writes:
                h0 = x
        return x


class PyGBlock(nn.Module):
    """One layer: its convolution (or linear map), norm, activation, dropout and residual.

    Attributes:
        kind: what the convolution is called with: `linear` and `dropout` (x), `plain` (x, edge_index), `weighted`
            (x, edge_index, edge_weight), `initial` (x, h0, edge_index, edge_weight).
        writes: whether later layers read its output as h0.
    """

    def __init__(self, conv: nn.Module, kind: str, layer: Layer) -> None:
        super().__init__()
        self.conv, self.kind, self.writes = conv, kind, layer.writes is not None
        own = layer if isinstance(layer, Convolution) else None
        self.norm = None if own is None or own.norm is None else _norm_of(own.norm)
        self.activation: Activation = "none" if own is None else own.activation
        self.dropout = nn.Dropout(0.0 if own is None else own.dropout)
        self.residual = own is not None and own.residual

    def forward(self, x: Tensor, h0: Tensor, edge_index: Tensor, edge_weight: Tensor | None) -> Tensor:
        """x [vertices, in] → [vertices, out]."""
        if self.kind == "initial":
            y = self.conv(x, h0, edge_index, edge_weight)
        elif self.kind == "weighted":
            y = self.conv(x, edge_index, edge_weight)
        else:
            y = self.conv(x, edge_index) if self.kind == "plain" else self.conv(x)
        y = y if self.norm is None else self.norm(y)
        y = self.dropout(activate(y, self.activation))
        out: Tensor = y + x if self.residual else y
        return out


def to_pyg(model: Any) -> PyGModel:
    """Give the module, in evaluation; a model with layers that PyG has no counterpart of is refused."""
    if isinstance(model, DynamicModel):
        raise ConfigError("the model has a part along time, which PyG's convolutions have not; export its state_dict.")
    try:
        from torch_geometric import nn as pyg
    except ImportError:
        raise ConfigError("form pyg needs PyTorch Geometric; install it with: pip install 'trisect[pyg]'.") from None
    blocks = []
    for number, layer in enumerate(model.stack):
        made = _convolution(layer, model, pyg)
        if made is None:
            raise ConfigError(
                f"layer {number} of the model, {layer}, has no counterpart in PyG under the normalisation"
                f" {model.normalisation!r}; export its state_dict."
            )
        blocks.append(PyGBlock(*made, layer))
    like = next(model.parameters())
    return PyGModel(blocks).to(device=like.device, dtype=like.dtype).eval()


def _convolution(layer: Layer, model: Model, pyg: Any) -> tuple[nn.Module, str] | None:
    """Give PyG's convolution with the layer's parameters, and how it is called; None where there is none."""
    adjacency = model.normalisation, model.self_loops
    if isinstance(layer, LinearLayer):
        linear = nn.Linear(layer.in_channels, layer.out_channels, bias=layer.bias is not None)
        return _filled(linear, {"weight": layer.weight, "bias": layer.bias}), "linear"
    if isinstance(layer, DropoutLayer):
        return nn.Dropout(layer.p), "dropout"
    conv: nn.Module
    if isinstance(layer, GCNLayer) and adjacency == ("symmetric", True) and layer.weight_root is None:
        conv = pyg.GCNConv(layer.in_channels, layer.out_channels, bias=layer.bias is not None)
        return _filled(conv, {"lin.weight": layer.weight, "bias": layer.bias}), "weighted"
    if isinstance(layer, GCN2Layer) and adjacency == ("symmetric", True):
        conv = pyg.GCN2Conv(layer.out_channels, alpha=layer.alpha, theta=1.0, layer=1)
        conv.beta = layer.theta  # type: ignore[assignment]
        return _filled(conv, {"weight1": layer.weight.t()}), "initial"
    if isinstance(layer, SAGELayer) and (adjacency == ("row", False) or layer.reduce == "max"):
        conv = pyg.SAGEConv(
            layer.in_channels,
            layer.out_channels,
            aggr="max" if layer.reduce == "max" else "mean",
            root_weight=layer.weight_root is not None,
            bias=layer.bias is not None,
        )
        own = {"lin_l.weight": layer.weight, "lin_l.bias": layer.bias, "lin_r.weight": layer.weight_root}
        return _filled(conv, own), "plain"
    if isinstance(layer, GATLayer) and model.self_loops:
        conv = pyg.GATConv(
            layer.in_channels,
            layer.channels,
            heads=layer.heads,
            concat=layer.concat,
            negative_slope=layer.negative_slope,
            dropout=layer.attention_dropout,
            bias=layer.bias is not None,
        )
        attention = {"att_src": layer.att_src[None], "att_dst": layer.att_dst[None]}
        return _filled(conv, {"lin.weight": layer.weight, **attention, "bias": layer.bias}), "plain"
    if isinstance(layer, GINLayer) and adjacency == ("none", False):
        return _gin(layer, pyg), "plain"
    return None


def _gin(layer: GINLayer, pyg: Any) -> nn.Module:
    inner = nn.Linear(layer.in_channels, layer.hidden_channels, bias=layer.bias1 is not None)
    outer = nn.Linear(layer.hidden_channels, layer.out_channels, bias=layer.bias is not None)
    norm = nn.Identity() if layer.mlp_norm is None else _norm_of(layer.mlp_norm)
    mlp = nn.Sequential(inner, norm, nn.ReLU(), outer)
    conv: nn.Module = pyg.GINConv(mlp, train_eps=isinstance(layer.eps, nn.Parameter))
    # only now, since GINConv draws the parameters of what it is given anew
    _filled(inner, {"weight": layer.weight1, "bias": layer.bias1})
    _filled(outer, {"weight": layer.weight2, "bias": layer.bias})
    if layer.mlp_norm is not None:
        _copied(norm, layer.mlp_norm)  # drawn anew, too
    return _filled(conv, {"eps": layer.eps})


def _norm_of(norm: nn.LayerNorm | BatchNorm) -> nn.Module:
    """Return torch's norm with the parameters and running statistics of ours."""
    made = nn.BatchNorm1d(norm.out_channels) if isinstance(norm, BatchNorm) else nn.LayerNorm(norm.normalized_shape)
    return _copied(made, norm)


def _copied(module: nn.Module, like: nn.Module) -> nn.Module:
    module.to(next(like.parameters()).dtype).load_state_dict(like.state_dict())
    return module


@torch.no_grad()
def _filled(module: nn.Module, values: Mapping[str, Tensor | None]) -> nn.Module:
    """Give the module with these parameters or buffers, by name; in the type that they have."""
    present = {name: value for name, value in values.items() if value is not None}
    module.to(next(iter(present.values())).dtype)
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, value in present.items():
        tensors[name].copy_(value.view(tensors[name].shape))
    return module
