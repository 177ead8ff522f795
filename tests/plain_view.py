"""`PlainView`: what a view is, in dense matrices and plain operations of torch.

Tests compare ranks and exchanges with them. Autograd does all gradients. Random numbers come from the torch oracle; the
kernels that a layer calls itself (attention, recurrent modules) are those of the library.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trisect.graph.adjacency import Adjacency
from trisect.graph.build import adjacency_from_edges, normalise
from trisect.noise import Noise
from trisect.ops.dropout import dropout_torch
from trisect.views.view import Neighbours

Then = Callable[[Tensor, Tensor, Neighbours], Tensor]


def dense_of(matrix: Adjacency, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return a matrix with all its zeros, [rows, columns]."""
    values = matrix.edge_weight()
    entries = torch.ones(matrix.entries, dtype=dtype) if values is None else values.to(dtype)
    return torch.zeros(matrix.shape, dtype=dtype).index_put(matrix.coordinates(), entries, accumulate=True)


class PlainView:
    """The whole graph, or all steps of a timeline from step 0 on. Verbs and attributes are those of `View`.

    Args:
        matrices: of each step, square; row i is vertex i.
        noise: where chance comes from; None in evaluation.
        features: x of the first layer, where its sum over neighbours is kept: there is no product before that sum.
        relations: what the relations of edges are called.
    """

    token, stale = None, False

    def __init__(
        self,
        matrices: Sequence[Adjacency],
        noise: Noise | None = None,
        *,
        features: Tensor | None = None,
        relations: Sequence[str] = (),
    ) -> None:
        self.relations = tuple(relations)
        self.matrices, self.noise, self.steps = list(matrices), noise, range(len(matrices))
        self.rows = self.total_rows = self.vertices = self.matrices[0].rows
        self.shared: dict[str, Tensor] = {}
        self._features = features
        self.enter(0)

    # The layer at work

    def enter(self, layer: int, *, draws: bool = True) -> None:
        """Begin a layer, which may draw random numbers or not."""
        self.layer, self._chancy = layer, draws
        self._calls, self._draws = 0, dict[str, int]()

    def tie(self, out: Tensor) -> Tensor:
        """Return the output: there is nobody to meet in backward."""
        return out

    def frames(self, x: Tensor) -> Tensor:
        """Return x as [steps, rows, channels], whether or not it has a dim of steps."""
        return x if x.dim() == 3 else x[None]

    # Rows of others

    def aggregate(
        self,
        x: Tensor,
        weight: Tensor | None = None,
        *,
        root: Tensor | None = None,
        bias: Tensor | None = None,
        add: Tensor | None = None,
        alpha: float = 0.0,
        theta: float = 1.0,
        relu: bool = False,
        slope: float | None = None,
        p: float = 0.0,
        relation: str | None = None,
    ) -> Tensor:
        """Return dropout(relu(((1-alpha)·Â·x + alpha·add)·wᵀ + x·rootᵀ + bias)), w = theta·weight + (1-theta)·I.

        Without alpha, `add` is added behind the product. Rows read x·wᵀ where the product does not widen x, else x.
        """
        if relation is not None:
            return self.related(relation).aggregate(x, weight, root=root, bias=bias, add=add)
        message = x
        if weight is not None and alpha == 0.0 and theta == 1.0 and weight.shape[0] <= weight.shape[1]:
            message, weight = x @ weight.t(), None
        y = (self._exact_sums if self.keeps(x) else self._sums)(self.frames(message)).view(message.shape)
        if alpha != 0.0 and add is not None:
            y, add = (1.0 - alpha) * y + alpha * add, None
        if weight is not None:
            y = y @ _mixed(weight, theta).t()
        if root is not None:
            y = y + x @ root.t()
        return self._ended(y, bias, add, 0.0 if relu and slope is None else slope, p)

    def related(self, relation: str, normalisation: Any = "none", *, self_loops: bool = False) -> PlainView:
        """Return the view of the graph that has the edges of one relation alone."""
        number, other = self.relations.index(relation), copy.copy(self)
        other.matrices = []
        for matrix in self.matrices:
            row, column = matrix.coordinates()
            features = matrix.edge_attributes()
            assert features is not None
            edge = features[:, number] != 0
            weight = features[edge, number]
            alone = adjacency_from_edges(column[edge], row[edge], weight, matrix.rows, dtype=weight.dtype)
            other.matrices.append(normalise(alone, normalisation, self_loops))
        return other

    def each_relation(self, x: Tensor, forms: Sequence[tuple[str, Any, bool]]) -> list[PlainView]:
        """Return the views of several relations."""
        return [self.related(name, kind, self_loops=loops) for name, kind, loops in forms]

    def keeps(self, x: Tensor) -> bool:
        """Whether the sum of x over neighbours is kept."""
        return x is self._features

    def _exact_sums(self, message: Tensor) -> Tensor:
        """Return Â·message of all steps, [steps, rows, channels]."""
        return torch.stack([dense_of(a, m.dtype) @ m for a, m in zip(self.matrices, message, strict=True)])

    def _sums(self, message: Tensor) -> Tensor:
        """Return the sums of the rows that are read, [steps, rows, channels]."""
        return self._exact_sums(message)

    def gather(
        self,
        x: Tensor,
        weight: Tensor | None = None,
        *,
        then: Then | None = None,
        width: int | None = None,
        relation: str | None = None,
    ) -> Any:
        """Return the rows of x·weightᵀ, or what `then` makes of them and of x at each step."""
        if relation is not None:
            return self.related(relation).gather(x, weight, then=then, width=width)
        frames = self.frames(x)
        message = frames if weight is None else frames @ weight.t()
        if then is None:
            return self._columns(message)
        chance = cache(partial(self.chance, "pairs"))
        made = [self._made(t, message[t], frames[t], then, partial(_at, chance, t)) for t in range(len(frames))]
        return torch.stack(made) if x.dim() == 3 else made[0]

    def _columns(self, message: Tensor) -> Any:
        return message[0] if len(message) == 1 else list(message)

    def _made(self, step: int, message: Tensor, own: Tensor, then: Then, draw: Callable[[], Noise | None]) -> Tensor:
        """Return what `then` makes of the rows that are read at a step, [rows, outputs]."""
        return then(message, own, Neighbours(self.matrices[step], None, draw))

    def sum(self, x: Tensor, partial: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Return the sum over all rows of each step of x, or of what `partial` makes of it: [..., 1, channels]."""
        if partial is None:
            return x.sum(-2, keepdim=True)
        sums = partial(self.frames(x))
        return sums if x.dim() == 3 else sums[0]

    def update(self, norm: Any, found: Tensor) -> None:
        """Leave running statistics alone."""

    def top(self, x: Tensor, scores: Tensor, k: int) -> Tensor:
        """Return the best min(k, rows) rows of each step, best first, ties in order: [..., candidates, channels]."""
        best = torch.sort(scores.detach(), dim=-1, descending=True, stable=True).indices[..., :k]
        return x.gather(-2, best[..., None].expand(*best.shape, x.shape[-1]))

    def fetch(self, x: Tensor, lists: Any) -> list[Tensor]:
        """Return the rows of each step: there are no other parts."""
        return list(self.frames(x))

    @property
    def block(self) -> Adjacency:
        """The matrix of a static graph."""
        return self.matrices[0]

    # Other steps

    def recur(self, module: Any, *frames: Tensor) -> Tensor:
        """Return what a recurrent module makes of all steps, from the state before step 0."""
        first = frames[0]
        state = module.initial_state(first.shape[1], dtype=first.dtype, device=first.device)
        out: Tensor = module(frames, state, 0)[0]
        return out

    # Chance

    @property
    def trains(self) -> bool:
        """Whether norms take the statistics of the rows."""
        return self.noise is not None

    @property
    def training(self) -> bool:
        """Whether anything is dropped."""
        return self.noise is not None and self._chancy

    def chance(self, purpose: str = "dropout") -> Sequence[Noise] | None:
        """Return the noise of each step for one use; uses of a layer are counted for each purpose."""
        if self.noise is None or not self._chancy:
            return None
        use = self._draws[purpose] = self._draws.get(purpose, -1) + 1
        return [self.noise.at(layer=self.layer + (use << 32), step=step) for step in self.steps]

    def by_step(self, call: Callable[[Tensor, Noise], Tensor], x: Tensor, noises: Sequence[Noise]) -> Tensor:
        """Call a function of rows and noise for each step."""
        made = torch.stack([call(frame, noise) for frame, noise in zip(self.frames(x), noises, strict=True)])
        return made if x.dim() == 3 else made[0]

    def dropout(self, x: Tensor, p: float) -> Tensor:
        """Zero each element of x [..., rows, channels] with probability p, and scale the rest by 1/(1-p)."""
        noises = self.chance() if p > 0.0 else None
        if noises is None:
            return x
        dropped = [dropout_torch(frame, p, noise) for frame, noise in zip(self.frames(x), noises, strict=True)]
        return torch.stack(dropped).view(x.shape)

    def normalise(self, x: Tensor, norm: nn.LayerNorm, *, relu: bool = False, p: float = 0.0) -> Tensor:
        """Return dropout(relu(norm(x))) of x [..., rows, channels]."""
        y: Tensor = norm(x)
        return self.dropout(torch.relu(y) if relu else y, p)

    def dense(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        add: Tensor | None = None,
        relu: bool = False,
        p: float = 0.0,
        theta: float = 1.0,
    ) -> Tensor:
        """Return dropout(relu(x·wᵀ + add + bias)), w = theta·weight + (1-theta)·I."""
        return self._ended(x @ _mixed(weight, theta).t(), bias, add, 0.0 if relu else None, p)

    def _ended(self, y: Tensor, bias: Tensor | None, add: Tensor | None, slope: float | None, p: float) -> Tensor:
        y = y if add is None else y + add
        y = y if bias is None else y + bias
        return self.dropout(y if slope is None else functional.leaky_relu(y, slope), p)


def _mixed(weight: Tensor, theta: float) -> Tensor:
    return weight if theta == 1.0 else theta * weight + (1.0 - theta) * torch.eye(len(weight), dtype=weight.dtype)


def _at(chance: Callable[[], Sequence[Noise] | None], step: int) -> Noise | None:
    noises = chance()
    return None if noises is None else noises[step]
