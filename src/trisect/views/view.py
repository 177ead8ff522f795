"""`View`: what a layer may ask about other rows, other steps and chance. One process is one view, a layout another.

A layer is a plain module, `forward(x, g)`. x is [rows, channels] on a static graph, [steps, rows, channels] on a
timeline; `g` is a view of the own rows and steps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trisect.errors import ConfigError
from trisect.graph.adjacency import Adjacency
from trisect.graph.build import Normalisation
from trisect.nn.temporal.recurrent import recurrent
from trisect.noise import Noise
from trisect.ops.dropout import dropout
from trisect.ops.norm import normalise
from trisect.ops.spmm.grouping import Snapshots
from trisect.views.aggregate import Aggregation, run_aggregation
from trisect.views.alone import Alone
from trisect.views.along import Along, BlockEndedError
from trisect.views.ending import Ending
from trisect.views.fetch import Lists, fetch_rows
from trisect.views.gather import Flight, arrive, depart, gather_rows, scatter_rows, total_rows
from trisect.views.halo import Halo
from trisect.views.local import Local
from trisect.views.rows import each_frame, no_rows, required, stacked
from trisect.views.rowwise import dense
from trisect.views.running import AtOnce, Running, Tracking
from trisect.views.spatial import Spatial
from trisect.views.token import new_token, tie
from trisect.views.top import top_rows
from trisect.views.turn import State
from trisect.views.verbs import AGGREGATE, FETCH, GATHER, RECUR, SCATTER, SUM, TOP

if TYPE_CHECKING:
    from trisect.views.relations import Relation


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The rows that own rows read at one step, as `View.gather` gives them.

    Attributes:
        block: own rows × the rows that they read; row i itself is column `block.self_start` + i.
        vertices: the user's ids of the columns; None where these are the positions of the rows themselves.
        draw: returns the noise.
    """

    block: Adjacency
    vertices: Tensor | None
    draw: Callable[[], Noise | None]

    @property
    def noise(self) -> Noise | None:
        """Chance at this step, of the own rows; None in evaluation. To ask for it is a use of chance."""
        return self.draw()


class View:
    """A view of some rows and steps of the graph.

    Every verb is differentiable, and exact under every cut except that chunks of a pipeline may read history.

    Args:
        spatial: how rows of other vertices are read.
        along: how other steps are read; None on a static graph.
        steps: of the timeline, those that frames are of.
        vertices: how many there are in all parts.
        noise: where chance comes from, of the own rows; None in evaluation.
        features: the data's features as the first layer gets them, and their sums over neighbours, which have no
            trained part and are kept.
        last: (layer, number) of the use of `recur` behind which nothing is wanted; it ends the pass by a
            `BlockEndedError`.
        trains: whether norms over rows take the statistics of these, and not running ones; None: where there is noise.
        running: takes the statistics of each step; None: running ones are left alone.
        relations: what the relations of edges are called; none where edges are of one kind.

    Attributes:
        layer: the number of the layer that is at work; it tells the random numbers of layers apart.
        shared: what earlier layers wrote for later ones, by name.
    """

    def __init__(
        self,
        spatial: Spatial,
        along: Along | None = None,
        *,
        steps: range = range(1),
        vertices: int | None = None,
        noise: Noise | None = None,
        features: tuple[Tensor, Tensor] | None = None,
        last: Hashable = None,
        trains: bool | None = None,
        running: Running | None = None,
        relations: Sequence[str] = (),
    ) -> None:
        self.spatial, self.along, self.steps = spatial, along, steps
        self.relations = tuple(relations)
        self.vertices = spatial.rows if vertices is None else vertices
        self.noise, self.running = noise, running
        self.trains = noise is not None if trains is None else trains
        self.shared: dict[str, Tensor] = {}
        self._features, self._last = features, last
        # whether a spatial verb must be met in backward even where no row here has a loss
        self._meets = spatial.moves or spatial.stale
        meets = self._meets or along is not None
        self._token: Tensor | None = new_token() if meets and torch.is_grad_enabled() else None
        self._frozen = torch.zeros(())
        self.layer, self._calls, self.recurrences, self._chancy = 0, 0, 0, True
        self._draws: dict[str, int] = {}

    @classmethod
    def whole(
        cls,
        matrices: Adjacency | Snapshots,
        noise: Noise | None = None,
        *,
        features: tuple[Tensor, Tensor] | None = None,
        states: Mapping[Hashable, State] | None = None,
        first_step: int = 0,
        relations: Sequence[str] = (),
    ) -> View:
        """Return the view of one process: of all rows of a graph, or of consecutive steps of a timeline.

        Args:
            matrices: the graph's, or that of each step, [rows, rows].
            noise: where chance comes from; None: evaluation. With it, each call of a norm updates running statistics.
            features: x as the model is called with it, and its sums over neighbours, where these are known.
            states: of recurrent modules before the first step, as `view.along.after` has them behind the last one.
            first_step: where in the timeline the first step stands.
            relations: `Graph.relations` or `Timeline.relations`.
        """
        more: dict[str, Any] = {"noise": noise, "features": features, "relations": relations}
        more["running"] = None if noise is None else AtOnce()
        if isinstance(matrices, Adjacency):
            return cls(Local([matrices], matrices.rows), **more)
        rows, steps = matrices[0].rows, range(first_step, first_step + len(matrices))
        along = Alone(states, first_step)
        return cls(Local(matrices, rows), along, steps=steps, **more)

    # The layer at work

    def enter(self, layer: int, *, draws: bool = True) -> None:
        """Begin a layer: its calls and random numbers are counted from here.

        Args:
            draws: whether it may draw random numbers; the head of a dynamic model may not.
        """
        self.layer, self._calls, self.recurrences, self._chancy = layer, 0, 0, draws
        self._draws.clear()

    def _call(self, verb: int) -> Hashable:
        """Return (layer, number, verb); counted where nothing moves too, so that ranks without steps count alike."""
        if self.spatial.heed is not None:
            self.spatial.heed()
        self._calls += 1
        return self.layer, self._calls, verb

    @property
    def token(self) -> Tensor | None:
        """A number from which backward reaches every verb that moves rows or keeps states; None where none did."""
        return self._token

    def tie(self, out: Tensor) -> Tensor:
        """Return the output of a cell, whose backward goes through all of its exchanges."""
        return tie(out, self._token)

    # Shapes

    @property
    def rows(self) -> int:
        """Own rows of a step."""
        return self.spatial.rows

    @property
    def total_rows(self) -> int:
        """Rows of a step in all parts together."""
        return self.vertices

    @property
    def stale(self) -> bool:
        """Whether verbs read rows of an earlier pass."""
        return self.spatial.stale

    def frames(self, x: Tensor) -> Tensor:
        """Return x as [steps, rows, channels], whether or not it has a dim of steps."""
        return x if x.dim() == 3 else x.unsqueeze(0)

    def _back(self, frames: Tensor, like: Tensor) -> Tensor:
        return frames if like.dim() == 3 else frames.squeeze(0)

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
        relation: str | int | tuple[str, ...] | None = None,
    ) -> Tensor:
        """Return dropout(relu(((1-alpha)·Â·x + alpha·add)·wᵀ + x·rootᵀ + bias)), w = theta·weight + (1-theta)·I.

        Without alpha, `add` is added behind the product: Â·x·wᵀ + x·rootᵀ + add + bias. The product goes before the sum
        where it narrows the rows, so that the narrower of the two crosses ranks and is summed.

        Args:
            x: [..., rows, inputs].
            weight: [outputs, inputs]; None: the sum alone.
            root: [outputs, inputs], the weight of a row itself.
            bias: [outputs].
            add: [..., rows, outputs], with alpha [..., rows, inputs].
            relu: whether a relu follows.
            slope: of a leaky relu in place of it.
            p: with which probability each number is dropped behind that; none is in evaluation.
            relation: sum over the edges of this relation alone, by their weights; see `related`.

        Returns: [..., rows, outputs].
        """
        if relation is not None:
            more: dict[str, Any] = {"alpha": alpha, "theta": theta, "relu": relu, "slope": slope, "p": p}
            return self.related(relation).aggregate(x, weight, root=root, bias=bias, add=add, **more)
        narrows = weight is None or self.narrows(weight, alpha, theta)
        if slope is not None and (p > 0.0 or not narrows or self.keeps(x)):
            # no kernel does a leaky relu behind a product, or with dropout
            y = self.aggregate(x, weight, root=root, bias=bias, add=add, alpha=alpha, theta=theta)
            return self.dropout(functional.leaky_relu(y, slope), p)
        ending, call = self._ending(relu, p, slope), self._call(AGGREGATE)
        if self.keeps(x):
            beside = None if add is None else self.frames(add)
            return self._back(self._of_kept(self.frames(x), weight, root, bias, beside, alpha, theta, ending), x)
        spec = Aggregation(self.spatial, call, ending, narrows, alpha, theta)
        out, token = run_aggregation(spec, self._token if self._meets else None, x, weight, root, bias, add)
        self._take(token)
        return out

    @staticmethod
    def narrows(weight: Tensor, alpha: float = 0.0, theta: float = 1.0) -> bool:
        """Whether `aggregate` multiplies by a weight before it sums."""
        return alpha == 0.0 and theta == 1.0 and weight.shape[0] <= weight.shape[1]

    def keeps(self, x: Tensor) -> bool:
        """Whether the sum of x over neighbours is kept: `aggregate` of x itself moves no rows then."""
        return self._features is not None and x is self._features[0]

    def _of_kept(
        self,
        frames: Tensor,
        weight: Tensor | None,
        root: Tensor | None,
        bias: Tensor | None,
        add: Tensor | None,
        alpha: float,
        theta: float,
        ending: Ending,
    ) -> Tensor:
        """Do an aggregation whose sum is kept."""
        sums = self.frames(required(self._features)[1])
        if alpha != 0.0 and add is not None:
            sums, add = torch.lerp(sums, add, alpha), None
        if root is not None:
            rooted = dense(frames, root)
            add = rooted if add is None else rooted + add
        if weight is None:
            y = sums if add is None else sums + add
            return ending.after(y if bias is None else y + bias)
        return dense(sums, weight, bias, add, ending, theta)

    def gather(
        self,
        x: Tensor,
        weight: Tensor | None = None,
        *,
        then: Callable[[Tensor, Tensor, Neighbours], Tensor] | None = None,
        width: int | None = None,
        relation: str | int | tuple[str, ...] | None = None,
    ) -> Any:
        """Return the rows of x·weightᵀ that own rows read: [columns, channels].

        Args:
            x: [..., rows, inputs].
            weight: [channels, inputs]; None: the rows of x.
            then: is called once for each step as then(near [columns, channels], x [rows, inputs], neighbours) and
                gives [rows, outputs]; see `Neighbours`. Needed on a timeline, whose steps have other columns.
            width: how many outputs `then` gives. Where it is not known, `then` is called with no rows on a rank without
                steps.
            relation: give `then` the matrix of this relation alone; see `related`.

        Returns: near, or what `then` gave, [..., rows, outputs].
        """
        if relation is not None:
            return self.related(relation).gather(x, weight, then=then, width=width)
        frames, call = self.frames(x), self._call(GATHER)
        if then is not None and isinstance(self.spatial, Halo) and self.spatial.interior is not None:
            return self._back(self._beside(self.spatial, call, frames, weight, then), x)
        if not self.spatial.moves and not self.spatial.stale:
            columns = each_frame(frames if weight is None else dense(frames, weight))
        else:
            columns, token = gather_rows(self.spatial, call, self._next_token(), frames, weight)
            self._take(token)
        if then is None:
            return columns[0] if len(columns) == 1 else columns
        blocks, results, chance = self.spatial.blocks, [], cache(partial(self.chance, "pairs"))
        for step, (near, own) in enumerate(zip(columns, each_frame(frames), strict=True)):
            neighbours = Neighbours(blocks[step], self.spatial.column_ids(step), partial(at_step, chance, step))
            results.append(then(near, own, neighbours))
        if x.dim() == 2:
            return results[0]
        if results:
            return stacked(results)
        if width is None:  # a rank without steps: no rows, of the right width
            none = frames.new_empty(0, frames.shape[2])
            near = none if weight is None else none @ weight.t()
            width = then(near, none, Neighbours(no_rows(frames.device), None, lambda: None)).shape[1]
        return frames.new_empty(0, self.rows, width)

    def _beside(
        self,
        halo: Halo,
        call: Hashable,
        frames: Tensor,
        weight: Tensor | None,
        then: Callable[[Tensor, Tensor, Neighbours], Tensor],
    ) -> Tensor:
        """Do a gather: `then` is called for interior rows while the halo is on its way, and then for the others."""
        flight, low, chance = Flight(halo, call), required(halo.interior), cache(partial(self.chance, "pairs"))
        own, token = depart(flight, self._next_token(), frames, weight)
        inner, outer = [], []
        for step, (rows, x) in enumerate(zip(each_frame(own), each_frame(frames), strict=True)):
            ids, draw = halo.column_ids(step), partial(at_step, chance, step, low, self.rows)
            at = Neighbours(halo.sides(step, low)[1], None if ids is None else ids[: self.rows], draw)
            inner.append(then(rows, x[low:], at))
        columns, token = arrive(flight, token, own)
        self._take(token)
        for step, (near, x) in enumerate(zip(columns, each_frame(frames), strict=True)):
            at = Neighbours(halo.sides(step, low)[0], halo.column_ids(step), partial(at_step, chance, step, 0, low))
            outer.append(then(near, x[:low], at))
        return stacked([torch.cat(both) for both in zip(outer, inner, strict=True)])

    def related(
        self,
        relation: str | int | tuple[str, ...],
        normalisation: Normalisation = "none",
        *,
        self_loops: bool = False,
    ) -> View:
        """Return the view of one relation, whose `aggregate` and `gather` read its edges alone.

        Args:
            relation: its name in `relations`, or its number.
            normalisation: of its weights: `none` sums, `row` takes means, `symmetric` is that of GCN.
            self_loops: whether each vertex reads itself by a loop of weight 1, where it has none.
        """
        from trisect.views.relations import RelationView  # builds on this module

        return RelationView.of(self, self.relation(relation, normalisation, self_loops))

    def relation(
        self, relation: str | int | tuple[str, ...], normalisation: Normalisation, self_loops: bool
    ) -> Relation:
        """Return the form in which a relation is read; see `related`."""
        from trisect.views.relations import Relation  # builds on this module

        return Relation.of(relation, self.relations, normalisation, self_loops)

    def each_relation(
        self, x: Tensor, forms: Sequence[tuple[str | int | tuple[str, ...], Normalisation, bool]]
    ) -> list[View]:
        """Return the views of several relations, whose verbs on x read rows that cross once for all of them.

        Args:
            x: [..., rows, channels].
            forms: of each, the arguments of `related`: its name, normalisation and self_loops.
        """
        from trisect.views.relations import RelationView, read_rows  # builds on this module

        relations = [self.relation(*form) for form in forms]
        read = read_rows(self, x, relations)
        return [RelationView.of(self, relation, read) for relation in relations]

    def scatter(self, near: Tensor) -> Tensor:
        """Return for each own row the sum of what all parts made for it, of a static graph: the transpose of `gather`.

        Args:
            near: [columns, channels], in the order of the rows that `gather` gives.

        Returns: [rows, channels].
        """
        call = self._call(SCATTER)
        if not self.spatial.moves and not self.spatial.stale:
            return near
        own, token = scatter_rows(self.spatial, call, self._next_token(), near)
        self._take(token)
        return own

    def sum(self, x: Tensor, partial: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Return the sum of x over all rows of each step, those of other parts included: [..., 1, channels].

        Args:
            x: [..., rows, channels].
            partial: makes of some rows, [steps, rows, channels], what is summed, float64 [steps, 1, sums]; None: their
                sum. It crosses in float64.
        """
        frames, call, pieces = self.frames(x), self._call(SUM), self.spatial.pieces
        sums = [
            some.sum(1, keepdim=True) if partial is None else partial(some)
            for some in (torch.split(frames, list(pieces), 1) if len(pieces) > 1 else (frames,))
        ]
        if not self.spatial.moves and not self.spatial.stale:
            return self._back(sums[0], x)
        total, token = total_rows(self.spatial, call, self._next_token(), torch.cat(sums, 1))
        self._take(token)
        return self._back(total[:, None], x)

    def update(self, norm: Tracking, found: Tensor) -> None:
        """Let running statistics of a norm take in those of the own steps, [steps, 2, channels], once in a pass."""
        if self.running is not None:
            self.running.add(norm, (self.layer, self._calls), self.steps, found)

    def top(self, x: Tensor, scores: Tensor, k: int) -> Tensor:
        """Return rows of each step among which the k best of all rows are, those of other parts included.

        They are the best min(k, rows) of each part, best first, parts in order: to take the best k of them by the same
        scores, ties in order, is to take the best k of all rows.

        Args:
            x: [..., rows, channels].
            scores: [..., rows], which get no gradient.

        Returns: [..., candidates, channels].
        """
        frames = self.frames(x)
        found, token = top_rows(
            self.spatial, self._call(TOP), self._next_token(), frames, scores.reshape(frames.shape[:2]), k
        )
        self._take(token)
        return self._back(found, x)

    def fetch(self, x: Tensor, lists: Lists) -> list[Tensor]:
        """Return of each step the rows and behind them those of other parts that a loss reads, by owner.

        Args:
            x: [..., rows, channels].
            lists: `lists[step][reader][owner]` are positions among the owner part's rows, all different; none of own
                ones. They are not read where vertices are not cut.

        Returns: of each step [rows + fetched rows, channels].
        """
        frames, call = self.frames(x), self._call(FETCH)
        if not self.spatial.moves:
            return list(frames.unbind())
        door = required(self.spatial.door)
        fetched, token = fetch_rows(door, call, self._next_token(), frames, lists)
        self._take(token)
        return fetched

    @property
    def block(self) -> Adjacency:
        """The matrix of a static graph: own rows × the columns that `gather` gives."""
        return self.spatial.blocks[0]

    @property
    def edge_index(self) -> Tensor:
        """The entries of a static graph's matrix, int64 [2, entries]: rows of what `gather` gives, and own rows."""
        return self.block.edge_index()

    @property
    def column_vertices(self) -> Tensor:
        """The user's ids of the rows that `gather` gives on a static graph, int64 [columns]."""
        ids = self.spatial.column_ids(0)
        if ids is None and self.noise is not None:
            ids = self.noise.vertices
        return torch.arange(self.block.columns, device=self.block.device) if ids is None else ids

    @property
    def edge_weight(self) -> Tensor | None:
        """The value of each entry, in the order of `edge_index`; None where all are 1."""
        return self.block.edge_weight()

    # Other steps

    def recur(self, module: Any, *frames: Tensor) -> Tensor:
        """Return what a recurrent module makes of frames along the steps, [steps, rows, channels].

        Args:
            module: `torch.nn.LSTM` or `GRU`, or a `trisect.nn.Temporal`: module(frames, state, first step) → (output,
                state after).
            frames: [steps, rows, channels] each, read side by side.
        """
        if self.along is None:
            raise ConfigError(f"{module} works along steps, and the data are a graph without any; give a timeline.")
        module = recurrent(module)
        self.recurrences += 1
        ends = (self.layer, self.recurrences) == self._last
        out, token = self.along.recur(self._call(RECUR), self._next_token(), module, frames, ends=ends)
        self._take(token)
        if ends:
            raise BlockEndedError
        return out

    # Chance

    @property
    def training(self) -> bool:
        """Whether anything is dropped."""
        return self.noise is not None and self._chancy

    def chance(self, purpose: str = "dropout") -> Sequence[Noise] | None:
        """Return the noise of each step for one use: a function of seed, epoch, layer, use, step and vertex.

        Args:
            purpose: uses of each are counted by themselves, since the numbers that they draw differ anyway.
        """
        if self.noise is None or not self._chancy:
            return None
        use = self._draws.get(purpose, 0)
        self._draws[purpose] = use + 1
        layer = self.layer + (use << 32)
        return [self.noise.at(layer=layer, step=step) for step in self.steps]

    def _ending(self, relu: bool, p: float, slope: float | None = None) -> Ending:
        if slope is not None:
            relu = True
        return Ending(relu, p, self.chance() if p > 0.0 else None, slope or 0.0)

    def dropout(self, x: Tensor, p: float) -> Tensor:
        """Zero each element of x [..., rows, channels] with probability p, and scale the rest by 1/(1-p)."""
        noises = self.chance() if p > 0.0 else None
        if noises is None:
            return x
        return self.by_step(lambda frame, noise: dropout(frame, p, noise), x, noises)

    def normalise(self, x: Tensor, norm: nn.LayerNorm, *, relu: bool = False, p: float = 0.0) -> Tensor:
        """Return dropout(relu(norm(x))) of x [..., rows, channels], in one pass over memory."""
        noises = self.chance() if p > 0.0 else None
        return self.by_step(lambda frame, noise: normalise(frame, norm, relu=relu, p=p, noise=noise), x, noises)

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
        """Return dropout(relu(x·wᵀ + add + bias)), w = theta·weight + (1-theta)·I, in one pass over memory.

        Shapes: x [..., rows, inputs]; weight [outputs, inputs]; bias [outputs]; add, result [..., rows, outputs].
        """
        return dense(x, weight, bias, add, self._ending(relu, p), theta)

    def by_step(
        self, call: Callable[[Tensor, Noise | None], Tensor], x: Tensor, noises: Sequence[Noise] | None
    ) -> Tensor:
        """Call a function of rows and noise for all steps at once, or for each where noise tells them apart."""
        if x.dim() == 2:
            return call(x, None if noises is None else noises[0])
        if noises is None and len(x) > 1 and x.stride(0) == 0:
            return call(x[:1].flatten(0, 1), None).expand(x.shape)
        if not noises or len(x) == 1:
            return call(x.flatten(0, 1), noises[0] if noises else None).view(x.shape)
        return stacked([call(frame, noise) for frame, noise in zip(x.unbind(), noises, strict=True)])

    # The token

    def _next_token(self) -> Tensor:
        """Return the token for a verb that must be met; one without gradient where there is none."""
        return self._frozen if self._token is None else self._token

    def _take(self, token: Tensor | None) -> None:
        if self._token is not None and token is not None:
            self._token = token


def at_step(
    chance: Callable[[], Sequence[Noise] | None], step: int, low: int = 0, high: int | None = None
) -> Noise | None:
    """Return the noise of a step, of all rows or of some."""
    noises = chance()
    return None if noises is None else noises[step] if high is None else noises[step].rows(low, high)
