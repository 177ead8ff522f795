"""Pairs of vertices: scores and probabilities of those that are asked for, or the best of all, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from trisect.data.ids import positions_of
from trisect.data.ingest.columns import Ids
from trisect.data.ingest.sources import open_source
from trisect.data.records import Names, TimelineRecord
from trisect.errors import ConfigError, DataError
from trisect.graph.timeline.timeline import Timeline
from trisect.tasks.base import Task
from trisect.tasks.decoders import PairDecoder, Remembering
from trisect.tasks.edge_classification import EdgeClassification
from trisect.tasks.link_prediction import LinkPrediction
from trisect.tasks.pairs import Memory, Pairs
from trisect.train.outputs.calibration import Calibration

Per = Literal["all", "source"]
_PAIRS = 1 << 18  # that are scored at a time
_SCORES = 1 << 22  # of a block of sources by a block of targets


class Embeddings(Protocol):
    """Rows of embeddings of one step, in the user's vertex order, read as they are needed."""

    @property
    def vertices(self) -> int:
        """Give the number of vertices, a row each."""

    def rows(self, start: int, stop: int) -> Tensor:
        """Give the embeddings of the vertices start .. stop-1."""

    def take(self, vertices: Tensor) -> Tensor:
        """Give the embeddings of these vertices, which ascend."""


@dataclass(frozen=True, eq=False)
class HeldEmbeddings:
    """Embeddings in memory: [vertices, channels]."""

    z: Tensor

    @property
    def vertices(self) -> int:
        """Give the number of vertices, a row each."""
        return self.z.shape[0]

    def rows(self, start: int, stop: int) -> Tensor:
        """Give the embeddings of the vertices start .. stop-1."""
        return self.z[start:stop]

    def take(self, vertices: Tensor) -> Tensor:
        """Give the embeddings of these vertices."""
        return self.z[vertices]


@dataclass(frozen=True, eq=False)
class LinkScorer:
    """Scores pairs from the embeddings of one step.

    Attributes:
        memory: what is remembered of pairs, in the user's vertex order, where the task has a memory.
        calibration: from scores to probabilities; None for classes of edges, which need none.
        calibrated: whether the probabilities hold at this step.
    """

    decoder: PairDecoder
    embeddings: Embeddings
    memory: Memory | None = None
    calibration: Calibration | None = None
    calibrated: bool = True

    @torch.no_grad()
    def score(self, src: Tensor, dst: Tensor) -> Tensor:
        """[pairs, outputs] of pairs of vertices; only the rows that they name are read, some pairs at a time."""
        if src.numel() != dst.numel():
            raise DataError(f"src has {src.numel():,} ids and dst {dst.numel():,}; give as many of each.")
        return torch.cat([self._score(a, b) for a, b in pair_blocks(src, dst)])

    def _score(self, src: Tensor, dst: Tensor) -> Tensor:
        wanted, place = torch.unique(torch.cat([src, dst]), return_inverse=True)
        z = self.embeddings.take(wanted)
        ends = place[: src.numel()], place[src.numel() :]
        if isinstance(self.decoder, Remembering):
            codes = src * self.embeddings.vertices + dst
            return self.decoder(z, *ends, memory=self.memory, codes=codes)  # type: ignore[no-any-return]
        return self.decoder(z, *ends)  # type: ignore[no-any-return]

    def columns(self, scores: Tensor) -> dict[str, Tensor]:
        """Return what the user gets for scores [pairs, outputs]: a score, a probability and whether that is calibrated;
        or a class and the probability of each.
        """
        if self.calibration is None:
            return {"class": scores.argmax(1), "probability": torch.softmax(scores, 1)}
        holds = torch.full((len(scores),), self.calibrated and self.calibration.is_fitted)
        return {"score": scores[:, 0], "probability": self.calibration(scores[:, 0]), "calibrated": holds}

    @torch.no_grad()
    def top_k(self, k: int, per: Per, leave_out: Pairs | None) -> tuple[Tensor, Tensor, Tensor]:
        """Give src, dst and score of the best pairs, a vertex with itself excepted: of all, or of each source.

        Blocks of sources meet blocks of targets, so that memory is that of a block of scores and of the result.
        Where scores are equal, the pair with the lower numbers comes first.

        Args:
            leave_out: pairs that are not wanted, such as those that are linked already.
        """
        vertices = self.embeddings.vertices
        side = max(1, min(vertices, int(_SCORES**0.5)))
        best = _Best(k)
        for start in range(0, vertices, side):
            sources = range(start, min(start + side, vertices))
            for first in range(0, vertices, side):
                targets = range(first, min(first + side, vertices))
                best.add(*self._block(sources, targets, leave_out), sources if per == "source" else None)
        scores, codes = best.finish()
        return torch.div(codes, vertices, rounding_mode="floor"), codes % vertices, scores

    def _block(self, sources: range, targets: range, leave_out: Pairs | None) -> tuple[Tensor, Tensor]:
        """Scores [sources, targets] of a block and their codes; a pair that is left out has -inf."""
        vertices = self.embeddings.vertices
        left = self.embeddings.rows(sources.start, sources.stop)
        right = self.embeddings.rows(targets.start, targets.stop)
        # a decoder scores rows of one matrix: those of the sources, then those of the targets
        z = torch.cat([left, right])
        inner = self.decoder.decoder if isinstance(self.decoder, Remembering) else self.decoder
        scores = inner.blocks(z)(slice(0, len(sources)))[:, len(sources) :].contiguous()
        src = torch.arange(sources.start, sources.stop, device=scores.device)
        dst = torch.arange(targets.start, targets.stop, device=scores.device)
        codes = src[:, None] * vertices + dst[None, :]
        if isinstance(self.decoder, Remembering) and self.memory is not None and len(self.memory.pairs):
            added = self.memory.features.to(scores) @ self.decoder.weight[0]
            where, inside = _inside(self.memory.pairs, sources, targets, vertices)
            scores.view(-1)[where] += added[inside]
        if leave_out is not None and len(leave_out):
            scores.view(-1)[_inside(leave_out, sources, targets, vertices)[0]] = -torch.inf
        scores[src[:, None] == dst[None, :]] = -torch.inf
        return scores, codes


def _inside(pairs: Pairs, sources: range, targets: range, vertices: int) -> tuple[Tensor, Tensor]:
    """Give where the pairs of a block of scores lie in it, and which of the pairs these are."""
    span = pairs.inside(slice(sources.start, sources.stop), vertices)
    src, dst = pairs.src[span] - sources.start, pairs.dst[span] - targets.start
    there = (dst >= 0) & (dst < len(targets))
    return src[there] * len(targets) + dst[there], torch.nonzero(there)[:, 0] + span.start


class _Best:
    """The k best pairs of all, or of each source; of equal scores the lower code is the better."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._done: list[tuple[Tensor, Tensor]] = []
        self._group: range | None = None
        self._held: tuple[Tensor, Tensor, Tensor] | None = None  # group, score, code

    def add(self, scores: Tensor, codes: Tensor, sources: range | None) -> None:
        """Take a block of scores [sources, targets]; `sources` where each of them has a list of its own."""
        if sources != self._group:
            self._close()
            self._group = sources
        rows = scores if sources is not None else scores.view(1, -1)
        least = rows.topk(min(self._k, rows.shape[1]), 1).values[:, -1:]
        row, column = torch.nonzero((rows >= least) & (rows > -torch.inf), as_tuple=True)
        block = row, rows[row, column], codes.view(rows.shape)[row, column]
        together = block if self._held is None else tuple(map(torch.cat, zip(self._held, block, strict=True)))
        self._held = self._cut(*together)

    def _cut(self, group: Tensor, score: Tensor, code: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sort by group, then by score, then by code, and keep the first k of each group."""
        order = torch.sort(code, stable=True).indices
        order = order[torch.sort(score[order], descending=True, stable=True).indices]
        order = order[torch.sort(group[order], stable=True).indices]
        group, score, code = group[order], score[order], code[order]
        rank = torch.arange(group.numel(), device=group.device) - torch.searchsorted(group, group)
        first = rank < self._k
        return group[first], score[first], code[first]

    def _close(self) -> None:
        if self._held is not None:
            self._done.append(self._held[1:])
            self._held = None

    def finish(self) -> tuple[Tensor, Tensor]:
        """Give scores and codes of the pairs that were kept."""
        self._close()
        scores, codes = (torch.cat(parts) for parts in zip(*self._done, strict=True))
        return scores, codes


def not_probabilities(far: Mapping[int, str], steps: int = 1) -> str:
    """Return the sentence that says at which steps probabilities do not hold.

    Args:
        far: such steps, and how each differs from those of the fit (see `Calibration.distance`).
        steps: how many were asked for.
    """
    step, distance = list(far.items())[-1]
    others = f" (and {len(far) - 1:,} more of the {steps:,} steps)" if len(far) > 1 else ""
    return (
        f"Step {step} {distance}: that far out{others} scores rank links but are not probabilities, and calibrated is"
        " false."
    )


def require_pairs(task: Task, option: str, *, ranked: bool = False) -> None:
    """Raise where the task has no pairs, or (`ranked`) no score to rank them by."""
    if isinstance(task, LinkPrediction) or (isinstance(task, EdgeClassification) and not ranked):
        return
    kinds = "link-prediction" if ranked else "link-prediction or edge-classification"
    raise ConfigError(f"{option} needs a run of {kinds}, and this one's task is {task.name}; leave {option} out.")


def require_top_k(k: int) -> None:
    """Raise where nothing would be ranked."""
    if k < 1:
        raise ConfigError(f"--top-k is {k}; it must be at least 1.")


def read_pairs(table: Any, names: Names | None, vertices: int) -> tuple[Tensor, Tensor]:
    """Read pairs of the user's ids from a table: columns src and dst, or its first two; ids that are unknown are told.

    Args:
        names, vertices: of the vertices that the run predicts on.
    """
    source = open_source(table, [], "the table of pairs")
    columns = [source.pick(name if name in source.names else None, name, k) for k, name in enumerate(("src", "dst"))]
    ids: Any = Ids()
    for batch in source.batches(columns):
        for end, values in zip(("src", "dst"), batch, strict=True):
            read, flaws = ids.read(f"{end} of {source.title}", values)
            if flaws:
                raise DataError(f"{flaws[0].reason} in {int(flaws[0].rows.sum()):,} rows; give both ids of every pair.")
            ids.keep(end, read)
    numbers, own, _ = ids.finish()
    if not len(numbers.get("src", ())):
        raise DataError(f"{source.title} has no rows; give at least one pair.")
    where = positions_of(names, vertices, own)
    if (where < 0).any():
        strange = np.flatnonzero(where < 0)
        examples = ", ".join(str(own[int(k)]) for k in strange[:3])
        more = ", …" if len(strange) > 3 else ""
        raise DataError(
            f"{source.title} has {len(strange):,} ids that are no vertices of the run ({examples}{more}); leave them"
            " out, or give their rows with --data."
        )
    return torch.from_numpy(where[numbers["src"]]), torch.from_numpy(where[numbers["dst"]])


@dataclass(frozen=True, eq=False)
class Linked:
    """Which pairs are linked at each step, in the user's vertex order.

    Attributes:
        events: gives (src, dst) of a step, int64 [events] each.
        undirected: an event links both directions.
    """

    events: Callable[[int], tuple[Tensor, Tensor]]
    vertices: int
    undirected: bool

    @classmethod
    def of_record(cls, record: TimelineRecord) -> Linked:
        """Read the events of a record."""

        def events(step: int) -> tuple[Tensor, Tensor]:
            stretch = slice(int(record.offsets[step]), int(record.offsets[step + 1]))
            src, dst = (np.asarray(end[stretch], np.int64) for end in (record.src, record.dst))
            return torch.from_numpy(src), torch.from_numpy(dst)

        return cls(events, record.vertices, record.undirected)

    @classmethod
    def of_timeline(cls, timeline: Timeline) -> Linked:
        """Read the events of a timeline, whatever the order of its vertices."""

        def events(step: int) -> tuple[Tensor, Tensor]:
            src, dst = (end.long() for end in timeline.events(step))
            order = timeline.order
            return (src.cpu(), dst.cpu()) if order is None else (order[src].cpu(), order[dst].cpu())

        return cls(events, timeline.vertices, timeline.undirected)

    def _codes(self, step: int) -> Tensor:
        src, dst = self.events(step)
        if self.undirected:
            src, dst = torch.cat([src, dst]), torch.cat([dst, src])
        return src * self.vertices + dst

    def at(self, step: int) -> Pairs:
        """Give the pairs that are linked at a step."""
        return Pairs.from_codes(torch.unique(self._codes(step)), self.vertices)

    def memory(self, task: Task, step: int) -> Memory | None:
        """Give what the decoder remembers of pairs at a step; None where the task has no memory."""
        if not isinstance(task, LinkPrediction) or not task.memory:
            return None
        last = range(step, max(-1, step - task.memory), -1)
        return Memory.gather([self._codes(each) for each in last], self.vertices)


def pair_blocks(src: Tensor, dst: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs some at a time; without any, a block of none."""
    for start in range(0, max(1, src.numel()), _PAIRS):
        yield src[start : start + _PAIRS], dst[start : start + _PAIRS]


def decoder_of(
    task: Task, channels: int, outputs: int, parameters: dict[str, Tensor], dtype: torch.dtype
) -> PairDecoder:
    """Make the trained decoder of a task on pairs, from the parameters of a run."""
    decoder = task.make_decoder(channels, outputs)
    if not isinstance(decoder, PairDecoder):
        raise ConfigError(f"scores of pairs need a task on pairs, and this one's is {task.name}.")
    own = {name.removeprefix("decoder."): value for name, value in parameters.items() if name.startswith("decoder.")}
    decoder.load_state_dict(own)
    decoder.to(dtype)
    return decoder
