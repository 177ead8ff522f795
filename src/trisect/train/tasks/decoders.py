"""The trained parts between a model's embeddings and a task's scores, of one vertex or of a pair."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from trisect.errors import ConfigError
from trisect.nn.initial import fan_in_, fill_, generator_for, glorot_
from trisect.train.tasks.base import take

VertexDecoderName = Literal["auto", "none", "linear", "mlp"]
PairDecoderName = Literal["dot", "mlp", "bilinear"]


class Decoder(nn.Module):
    """A decoder whose parameters are a function of (seed, index), like those of a layer."""

    in_channels: int
    out_channels: int

    def reset_parameters(self, seed: int, index: int) -> None:
        """Draw the parameters as the layer `index` of a run with this seed."""
        generator = generator_for(seed, index)
        for name, parameter in self.named_parameters():
            if name.startswith("bias"):
                fill_(parameter, 0.0)
            elif name == "bilinear":
                glorot_(parameter, generator)
            else:
                fan_in_(parameter, parameter.shape[1], generator)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels})"


class VertexDecoder(Decoder):
    """Linear, or with one hidden layer: rows [rows, in_channels] → [rows, out_channels]."""

    def __init__(self, in_channels: int, out_channels: int, hidden: int | None = None) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        inner = in_channels if hidden is None else hidden
        if hidden is not None:
            self.weight_in = nn.Parameter(torch.zeros(hidden, in_channels))
            self.bias_in = nn.Parameter(torch.zeros(hidden))
        self.hidden = hidden
        self.weight = nn.Parameter(torch.zeros(out_channels, inner))
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        """x [rows, in_channels] → [rows, out_channels]."""
        if self.hidden is not None:
            x = torch.relu(functional.linear(x, self.weight_in, self.bias_in))
        return functional.linear(x, self.weight, self.bias)


class PairDecoder(Decoder):
    """Scores pairs of rows: `forward(z [rows, in_channels], src, dst)` → [pairs, out_channels]."""

    def forward(self, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        """src, dst: int64 [pairs], rows of z."""
        raise NotImplementedError


class DotDecoder(PairDecoder):
    """⟨z_src, z_dst⟩; no parameters, one score."""

    def __init__(self, in_channels: int, out_channels: int = 1) -> None:
        super().__init__()
        if out_channels != 1:
            raise ConfigError(f"task.decoder dot gives one score, and {out_channels} are needed; use mlp or bilinear.")
        self.in_channels, self.out_channels = in_channels, out_channels

    def forward(self, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        """One score a pair."""
        return (take(z, src) * take(z, dst)).sum(1, keepdim=True)


class BilinearDecoder(PairDecoder):
    """z_srcᵀ W_k z_dst + b_k for each output k."""

    def __init__(self, in_channels: int, out_channels: int = 1) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.bilinear = nn.Parameter(torch.zeros(out_channels, in_channels, in_channels))
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        """The product with W is taken once a vertex, not once a pair."""
        other = take(z, dst)
        scores = [(take(z @ weight, src) * other).sum(1) for weight in self.bilinear]
        return torch.stack(scores, 1) + self.bias


class PairMLP(PairDecoder):
    """W2·relu(W1·[z_src ‖ z_dst] + b1) + b2."""

    def __init__(self, in_channels: int, out_channels: int = 1, hidden: int = 64) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.hidden = in_channels, out_channels, hidden
        self.weight_in = nn.Parameter(torch.zeros(hidden, 2 * in_channels))
        self.bias_in = nn.Parameter(torch.zeros(hidden))
        self.weight = nn.Parameter(torch.zeros(out_channels, hidden))
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        """W1 is applied to each half once a vertex; a pair costs one addition of rows."""
        left, right = self.weight_in[:, : self.in_channels], self.weight_in[:, self.in_channels :]
        inner = take(functional.linear(z, left, self.bias_in), src) + take(functional.linear(z, right), dst)
        return functional.linear(inner.relu_(), self.weight, self.bias)


def vertex_decoder(name: VertexDecoderName, in_channels: int, out_channels: int, hidden: int) -> VertexDecoder | None:
    """`auto`: none where the model gives the outputs itself, linear where it gives embeddings of another width."""
    if name == "none" or (name == "auto" and in_channels == out_channels):
        return None
    return VertexDecoder(in_channels, out_channels, hidden if name == "mlp" else None)


def pair_decoder(name: PairDecoderName, in_channels: int, out_channels: int, hidden: int) -> PairDecoder:
    """The decoder of that name."""
    if name == "dot":
        return DotDecoder(in_channels, out_channels)
    if name == "bilinear":
        return BilinearDecoder(in_channels, out_channels)
    return PairMLP(in_channels, out_channels, hidden)
