"""EvolveGCN, Pareja et al., "EvolveGCN: Evolving Graph Convolutional Networks for Dynamic Graphs" (1902.10191)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from trisect import ops
from trisect.nn.activation import Activation, activate_rows, slope_of
from trisect.nn.base import State
from trisect.nn.initial import Drawn
from trisect.nn.norm import Norm, norm_of, normalised
from trisect.nn.temporal.dynamic import DynamicLayer

if TYPE_CHECKING:
    from trisect.views.view import View

_UPDATE_BIAS = -4.0


@torch.no_grad()
def _almost_closed(bias: Tensor) -> None:
    """Fill with zero, but for the update gate with -4.

    The authors' bias is zero, and their weights start anew for every ten steps. Along a whole timeline such a state
    fades to zero (about 0.8 a step); with a gate that is almost closed it begins as a lasting one.
    """
    bias.zero_()[0] = _UPDATE_BIAS


class MatrixGRU(Drawn):
    """A GRU whose state Q and input x are matrices [rows, columns]:

    Z = sig(W_z x + U_z Q + B_z), R = sig(W_r x + U_r Q + B_r), H = tanh(W_h x + U_h (R∘Q) + B_h), Q' = (1-Z)∘Q + Z∘H.

    Shapes: weight_x, weight_q [3, rows, rows] for the gates z, r, h; bias [3, rows, columns].
    """

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight_x = self.drawn("weight_x", 3, rows, rows)
        self.weight_q = self.drawn("weight_q", 3, rows, rows)
        self.bias = self.drawn("bias", 3, rows, columns, start=_almost_closed)

    def forward(self, x: Tensor, q: Tensor) -> Tensor:
        """Do one step: Q' from the input x and the state Q."""
        from_x = self.weight_x @ x + self.bias
        from_q = self.weight_q[:2] @ q
        update = torch.sigmoid(from_x[0] + from_q[0])
        reset = torch.sigmoid(from_x[1] + from_q[1])
        new = torch.tanh(from_x[2] + self.weight_q[2] @ (reset * q))
        return torch.lerp(q, new, update)


class TopSummary(Drawn):
    """The k rows of x with the highest score x·p/‖p‖, each times tanh(score), as a matrix [channels, k].

    Rows of equal score are taken in the order of rows. Where x has fewer than k rows, the last one taken is repeated.
    """

    def __init__(self, channels: int, k: int) -> None:
        super().__init__()
        self.k = k
        self.scorer = self.drawn("scorer", channels)

    def candidates(self, x: Tensor) -> Tensor:
        """Return the best min(k, rows) rows of x, best first; those of all parts contain the best of all rows."""
        with torch.no_grad():
            chosen = _highest(x @ self.scorer, min(self.k, x.shape[0]))
        return x[chosen]

    def forward(self, candidates: Tensor) -> Tensor:
        """rows or, parts in order, the candidates of all of them, [any number, channels] → [channels, k]."""
        rows = self.candidates(candidates)
        if rows.shape[0] < self.k:
            rows = torch.cat([rows, rows[-1:].expand(self.k - rows.shape[0], -1)])
        score = (rows @ self.scorer) / self.scorer.norm()
        return (rows * torch.tanh(score)[:, None]).t()


def _highest(score: Tensor, k: int) -> Tensor:
    """Return where the k highest scores are, highest first, ties in order of position (topk leaves ties open)."""
    if k == 0:
        return torch.empty(0, dtype=torch.int64, device=score.device)
    bound = torch.topk(score, k).values[-1]
    able = torch.nonzero(score >= bound).flatten()
    order = torch.sort(score[able], descending=True, stable=True).indices
    return able[order[:k]]


class Evolving(DynamicLayer):
    """H_t = dropout(σ(norm(Â_t·X_t·W_t))), W_t = GRU(x_t, W_{t-1}); W evolves before it is used, from a trainable W_0.

    The state is (W_t,), alone. Variant O: the GRU's input is W_{t-1} itself. Variant H: a top-k summary of X_t, k =
    out_channels (all vertices compete; the authors' mask of absent vertices is not applied).

    Args:
        in_channels, out_channels: widths.
        variant: `"O"` or `"H"`.
        activation: the authors use `rrelu`; `leaky` is its mean and draws nothing.
        dropout: probability.
        norm: `none`, `layer` or `batch`.

    Shapes: x [..., rows, in_channels] → [..., rows, out_channels]; weight (W_0) [in_channels, out_channels].
    """

    summary: TopSummary | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        variant: str = "O",
        activation: Activation = "leaky",
        dropout: float = 0.0,
        norm: Norm = "none",
    ) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.variant = variant
        self.activation: Activation = activation
        self.dropout = dropout
        self.norm = norm_of(norm, out_channels)
        self.weight = self.drawn("weight", in_channels, out_channels)
        self.gru = MatrixGRU(in_channels, out_channels)
        self.summary = TopSummary(in_channels, out_channels) if variant == "H" else None

    def forward(self, x: Tensor, g: View) -> Tensor:
        """x [steps, rows, in_channels] → [steps, rows, out_channels]."""
        weights = g.recur(Evolution(self), self.read(x, g))
        slope = None if self.norm is not None else slope_of(self.activation, training=g.training)
        if self.out_channels <= self.in_channels and not g.keeps(x):
            y = g.aggregate(ops.product_steps(x, weights), slope=slope)
        else:
            y = ops.product_steps(g.aggregate(x), weights, slope=slope)
        y = normalised(y, self.norm, g)
        # the activation is done where it is a leaky relu
        return activate_rows(y, self.activation if slope is None else "none", self.dropout, g)

    def read(self, x: Tensor, g: View) -> Tensor:
        """Return what the GRU reads of each step: [steps, in_channels, out_channels], or for O [steps, in_channels, 0].

        Of x the whole steps count, with the rows of all parts.
        """
        if self.summary is None:
            return x.new_empty(len(x), self.in_channels, 0)
        once = x[:1] if len(x) > 1 and x.stride(0) == 0 else x
        with torch.no_grad():
            scores = once @ self.summary.scorer
        candidates = g.top(once, scores, self.summary.k).unbind()
        if not candidates:
            return x.new_empty(0, self.in_channels, self.out_channels)
        summaries = torch.stack([self.summary(rows) for rows in candidates])
        return summaries if once is x else summaries.expand(len(x), -1, -1)

    def __repr__(self) -> str:
        return f"Evolving({self.in_channels}, {self.out_channels}, variant={self.variant})"


@dataclass(frozen=True, eq=False)
class Evolution:
    """How the weight of a layer evolves, as a module for `View.recur`: summaries in, the weight of each step out."""

    layer: Evolving

    state_kind: ClassVar = "weight"

    def initial_state(self, rows: int, *, dtype: torch.dtype, device: torch.device) -> State:
        """Return W_0, the parameter itself, so that gradients reach it."""
        return (self.layer.weight,)

    def __call__(self, frames: Sequence[Tensor], state: State, first_step: int) -> tuple[Tensor, State]:
        """frames: ([steps, in_channels, out_channels or 0],) → (weights [steps, in_channels, out_channels], state)."""
        layer, weight, weights = self.layer, state[0], []
        for summary in frames[0]:
            weight = layer.gru(weight if layer.summary is None else summary, weight)
            weights.append(weight)
        return torch.stack(weights), (weight,)

    def __repr__(self) -> str:
        return repr(self.layer)
