"""The trained parts between a model's embeddings and a task's scores, of one vertex or of a pair."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from trisect import ops
from trisect.errors import ConfigError
from trisect.nn.initial import fan_in_, seeded
from trisect.tasks.pairs import Memory

VertexDecoderName = Literal["auto", "none", "linear", "mlp"]
PairDecoderName = Literal["dot", "mlp", "bilinear"]
Block = Callable[[slice], Tensor]


class Decoder(nn.Module):
    """A decoder whose parameters are a function of (seed, index), like those of a layer."""

    in_channels: int
    out_channels: int

    def reset_parameters(self, seed: int, index: int) -> None:
        """Draw the parameters as the layer `index` of a run with this seed."""
        with seeded(seed, index):
            for name, parameter in self.named_parameters():
                (nn.init.zeros_ if name.startswith("bias") or name == "bilinear" else fan_in_)(parameter)

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
        """x […, in_channels] → […, out_channels]."""
        rows = x.reshape(-1, self.in_channels)
        if self.hidden is not None:
            rows = ops.dense(rows, self.weight_in, self.bias_in, relu=True)
        return ops.dense(rows, self.weight, self.bias).view(*x.shape[:-1], self.out_channels)


class PairDecoder(Decoder, ABC):
    """Scores pairs of rows: `forward(z [rows, in_channels], src, dst)` → [pairs, out_channels]."""

    @abstractmethod
    def forward(self, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        """src, dst: int64 [pairs], rows of z."""

    @abstractmethod
    def blocks(self, z: Tensor) -> Block:
        """What depends on one vertex is computed now; the function then gives the first score of all pairs of some
        sources, [sources, rows of z]. For evaluation, under torch.no_grad().
        """


class DotDecoder(PairDecoder):
    """⟨z_src, z_dst⟩; no parameters, one score."""

    def __init__(self, in_channels: int, out_channels: int = 1) -> None:
        super().__init__()
        if out_channels != 1:
            raise ConfigError(f"task.decoder dot gives one score, and {out_channels} are needed; use mlp or bilinear.")
        self.in_channels, self.out_channels = in_channels, out_channels

    def forward(self, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        """Each pair has one score."""
        return ops.multiply_pairs(z, z, src, dst)[:, None]

    def blocks(self, z: Tensor) -> Block:
        """A block is one product of matrices."""
        return lambda sources: z[sources] @ z.t()


class BilinearDecoder(PairDecoder):
    """z_srcᵀ W_k z_dst + a_k·z_src + b_k·z_dst + c_k for each output k.

    W begins at zero, so that a wide z makes no noise before it has learnt something.

    Shapes: bilinear (W) [out, in, in], weight [2 · out, in] (all a, then all b), bias (c) [out].
    """

    def __init__(self, in_channels: int, out_channels: int = 1) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.bilinear = nn.Parameter(torch.zeros(out_channels, in_channels, in_channels))
        self.weight = nn.Parameter(torch.zeros(2 * out_channels, in_channels))
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def _ends(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """a·z + c and b·z, [rows, out] each."""
        a, b = functional.linear(z, self.weight).chunk(2, 1)
        return a + self.bias, b

    def forward(self, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        """The products with W, a and b are taken once a vertex, not once a pair."""
        a, b = self._ends(z)
        scores = [ops.multiply_pairs(ops.dense(z, weight.t()), z, src, dst) for weight in self.bilinear]
        return torch.stack(scores, 1) + ops.take_rows(a, src) + ops.take_rows(b, dst)

    def blocks(self, z: Tensor) -> Block:
        """A block is one product of matrices."""
        a, b = self._ends(z)
        left = z @ self.bilinear[0]
        return lambda sources: torch.addmm(b[:, 0], left[sources], z.t()).add_(a[sources, :1])


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
        return ops.score_pairs(z, src, dst, self.weight_in, self.bias_in, self.weight, self.bias)

    def blocks(self, z: Tensor) -> Block:
        """Hidden units are added one at a time, so that memory is that of the scores alone."""
        left = functional.linear(z, self.weight_in[:, : self.in_channels], self.bias_in)
        right = functional.linear(z, self.weight_in[:, self.in_channels :]).t().contiguous()
        weights, bias = self.weight[0].tolist(), float(self.bias[0])

        def block(sources: slice) -> Tensor:
            mine = left[sources].t().contiguous()[:, :, None]
            scores = z.new_full((mine.shape[1], z.shape[0]), bias)
            unit = torch.empty_like(scores)
            for k, weight in enumerate(weights):
                torch.add(mine[k], right[k], out=unit)
                scores.add_(unit.relu_(), alpha=weight)
            return scores

        return block


class Remembering(PairDecoder):
    """Another decoder's score, plus a trained multiple of what is remembered of the pair itself.

    Shapes: weight [out, 2], for the two numbers of `pairs.Memory`; it begins at zero.
    """

    def __init__(self, decoder: PairDecoder) -> None:
        super().__init__()
        self.in_channels, self.out_channels = decoder.in_channels, decoder.out_channels
        self.decoder = decoder
        self.weight = nn.Parameter(torch.zeros(decoder.out_channels, 2))

    def reset_parameters(self, seed: int, index: int) -> None:
        """Draw those of the other decoder; the weight of the memory is zero."""
        self.decoder.reset_parameters(seed, index)
        nn.init.zeros_(self.weight)

    def forward(
        self, z: Tensor, src: Tensor, dst: Tensor, memory: Memory | None = None, codes: Tensor | None = None
    ) -> Tensor:
        """memory: of the step that z belongs to; without it nothing is remembered. codes: of the pairs in the memory,
        where z holds a part of the vertices.
        """
        scores: Tensor = self.decoder(z, src, dst)
        if memory is None:
            return scores
        codes = src * z.shape[0] + dst if codes is None else codes
        return scores + functional.linear(memory.of(codes).to(z), self.weight)

    def blocks(self, z: Tensor, memory: Memory | None = None) -> Block:
        """The other decoder's scores; the few pairs that are remembered are added to."""
        inner, vertices = self.decoder.blocks(z), z.shape[0]
        if memory is None:
            return inner
        held, added = memory.pairs, memory.features.to(z) @ self.weight[0]

        def block(sources: slice) -> Tensor:
            scores = inner(sources)
            there = held.inside(sources, vertices)
            scores.view(-1)[held.codes[there] - sources.start * vertices] += added[there]
            return scores

        return block


def vertex_decoder(name: VertexDecoderName, in_channels: int, out_channels: int, hidden: int) -> VertexDecoder | None:
    """`auto`: none where the model gives the outputs itself, linear where it gives embeddings of another width."""
    if name == "none" or (name == "auto" and in_channels == out_channels):
        return None
    return VertexDecoder(in_channels, out_channels, hidden if name == "mlp" else None)


def pair_decoder(name: PairDecoderName, in_channels: int, out_channels: int, hidden: int) -> PairDecoder:
    """This makes the decoder of that name."""
    if name == "dot":
        return DotDecoder(in_channels, out_channels)
    if name == "bilinear":
        return BilinearDecoder(in_channels, out_channels)
    return PairMLP(in_channels, out_channels, hidden)
