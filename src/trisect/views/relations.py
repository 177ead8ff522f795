"""One relation of a view: its sums, and the rows that it reads, over rows that cross once for several relations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from trisect import ops
from trisect.errors import ConfigError
from trisect.graph.adjacency import Adjacency
from trisect.graph.build import NORMALISATIONS, Normalisation, inverse_root, row_sums
from trisect.graph.relations import find_relation, relation_of
from trisect.views.aggregate import behind
from trisect.views.ending import Ending
from trisect.views.rows import each_frame, no_rows, stacked
from trisect.views.view import Neighbours, View, at_step


@dataclass(frozen=True)
class Relation:
    """The form in which the matrix of one relation is read.

    Attributes:
        number: which of the data's relations.
        normalisation: of this relation alone: `row` makes sums means, `symmetric` is that of GCN.
        self_loops: whether each vertex reads itself by a loop of weight 1, where it has none in this relation.
    """

    number: int
    normalisation: Normalisation = "none"
    self_loops: bool = False

    @classmethod
    def of(
        cls,
        relation: str | int | tuple[str, ...],
        names: Sequence[str],
        normalisation: Normalisation,
        self_loops: bool,
    ) -> Relation:
        """Return the relation of this name, of those that the data have."""
        if normalisation not in NORMALISATIONS:
            raise ConfigError(f"normalisation is {normalisation!r}; choose one of {', '.join(NORMALISATIONS)}.")
        return cls(find_relation(relation, names), normalisation, self_loops)

    def matrix(self, block: Adjacency) -> Adjacency:
        """Return its matrix in a block; the factors of a symmetric normalisation are not in it."""
        return relation_of(block, self.number, row=self.normalisation == "row", self_loops=self.self_loops)

    def factors(self, block: Adjacency, like: Tensor) -> Tensor:
        """Return 1 / sqrt(sum) of each row, [rows, 1]."""
        return inverse_root(row_sums(self.matrix(block))).to(like)[:, None]


@dataclass(frozen=True, eq=False)
class Read:
    """Rows that own rows read, which crossed once, for all relations.

    Attributes:
        x: [..., rows, channels], of which they are.
        near: of each step, [columns, channels].
        blocks: of each step, the matrix of all relations.
        factors: of each relation with a symmetric normalisation, those of the columns, of each step [columns, 1].
    """

    x: Tensor
    near: Sequence[Tensor]
    blocks: Sequence[Adjacency]
    factors: dict[Relation, list[Tensor]]


def read_rows(g: View, x: Tensor, relations: Sequence[Relation]) -> Read:
    """Let the rows of x cross once, which these relations read.

    The factors of symmetric normalisations cross beside them, a channel each.
    """
    frames, sides = g.frames(x), [one for one in dict.fromkeys(relations) if one.normalisation == "symmetric"]
    blocks = [g.spatial.blocks[step] for step in range(len(frames))] if len(frames) else []
    sent = frames
    if sides:
        own = [torch.cat([one.factors(block, frames) for one in sides], 1) for block in blocks]
        beside = stacked(own) if own else frames.new_empty(0, frames.shape[1], len(sides))
        sent = torch.cat([frames, beside], 2)
    found: Any = g.gather(sent if x.dim() == 3 else sent[0])
    near = list(found) if isinstance(found, (list, tuple)) else [found] if found.dim() == 2 else each_frame(found)
    width = frames.shape[2]
    factors = {one: [rows[:, width + k, None] for rows in near] for k, one in enumerate(sides)}
    return Read(x, [rows[:, :width] for rows in near] if sides else near, blocks, factors)


class RelationView:
    """A view of one relation: `aggregate` and `gather` read its edges alone, and all else is the whole view's.

    Args:
        g: the view of all relations.
        read: rows that have crossed; of others, each verb lets rows cross anew.
    """

    def __init__(self, g: View, relation: Relation, read: Read | None = None) -> None:
        self._g, self._relation, self._read = g, relation, read

    @classmethod
    def of(cls, g: View, relation: Relation, read: Read | None = None) -> View:
        """Return it as a layer asks it."""
        return cast("View", cls(g, relation, read))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._g, name)

    def keeps(self, x: Tensor) -> bool:
        """Whether the rows of x are here, so that `aggregate` of x itself moves none."""
        return self._read is not None and x is self._read.x

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
    ) -> Tensor:
        """Return the sum over the relation's edges, and what follows; see `View.aggregate`."""
        g = self._g
        if slope is not None:
            y = self.aggregate(x, weight, root=root, bias=bias, add=add, alpha=alpha, theta=theta)
            return g.dropout(functional.leaky_relu(y, slope), p)
        first = weight if weight is not None and g.narrows(weight, alpha, theta) else None
        if self._read is not None and x is self._read.x:
            read, near = self._read, self._read.near
            if first is not None:
                near = [g.dense(rows, first) for rows in near]
        else:
            read = read_rows(g, x if first is None else g.dense(x, first), [self._relation])
            near = read.near
        y = g.frames(self._sums(read, near, x.shape[-1] if first is None else first.shape[0]))
        ending = Ending(relu, p, g.chance() if p > 0.0 else None)
        weight, beside = weight if first is None else None, None if add is None else g.frames(add)
        out = behind(y, g.frames(x), weight, root, bias, beside, alpha, theta, ending)
        return out if x.dim() == 3 else out[0]

    def _sums(self, read: Read, near: Sequence[Tensor], width: int) -> Tensor:
        """Return the sums of all steps, `width` wide, with as many dims as x."""
        one, results = self._relation, []
        for step, (rows, block) in enumerate(zip(near, read.blocks, strict=True)):
            if one in read.factors:
                own = one.factors(block, rows)
                results.append(ops.aggregate(rows * read.factors[one][step], one.matrix(block)) * own)
            else:
                results.append(ops.aggregate(rows, one.matrix(block)))
        return self._stacked(read.x, results, width)

    def gather(
        self,
        x: Tensor,
        weight: Tensor | None = None,
        *,
        then: Callable[[Tensor, Tensor, Neighbours], Tensor] | None = None,
        width: int | None = None,
    ) -> Any:
        """Return what `then` makes of the rows that the relation's edges read; see `View.gather`."""
        g, one = self._g, self._relation
        if then is None:
            raise ConfigError("gather of one relation gives what a function makes of its rows; give then=.")

        def related(near: Tensor, own: Tensor, at: Neighbours) -> Tensor:
            matrix = one.matrix(at.block) if at.block.features is not None else at.block
            return then(near, own, Neighbours(matrix, at.vertices, at.draw))

        if self._read is None or x is not self._read.x:
            return g.gather(x, weight, then=related, width=width)
        chance, results = cache(partial(g.chance, "pairs")), []
        for step, (rows, own) in enumerate(zip(self._read.near, each_frame(g.frames(x)), strict=True)):
            near = rows if weight is None else g.dense(rows, weight)
            ids = g.spatial.column_ids(step)
            results.append(related(near, own, Neighbours(self._read.blocks[step], ids, partial(at_step, chance, step))))
        if width is None and not results:
            none = x.new_empty(0, x.shape[-1])
            near = none if weight is None else none @ weight.t()
            width = then(near, none, Neighbours(no_rows(x.device), None, lambda: None)).shape[1]
        return self._stacked(x, results, width or 0)

    def _stacked(self, x: Tensor, results: Sequence[Tensor], width: int) -> Tensor:
        if x.dim() == 2:
            return results[0]
        if results:
            return stacked(results)
        # with a gradient, as where there are rows: other ranks meet this one in backward
        return x.new_empty(0, self._g.rows, width).requires_grad_(torch.is_grad_enabled())
