"""Pairs of vertices: those that exist in a step, and sampled ones that do not.

What is sampled is a function of a key and the user's vertex ids, so that neither reordering nor cutting changes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from trisect.noise import bits_at, mix64, random_bits, row_keys
from trisect.ops.draw import can_draw, draw_pairs, table_of
from trisect.tasks.metrics import sort_integers

_TRIES = 4
_TABLE = 16  # codes for each that is looked up, up to which a table of all is made


@dataclass(frozen=True, eq=False)
class Pairs:
    """Distinct pairs of rows, ascending by src · vertices + dst. src, dst: int64 [pairs]."""

    src: Tensor
    dst: Tensor
    codes: Tensor

    @classmethod
    def of(cls, src: Tensor, dst: Tensor, vertices: int) -> Pairs:
        """This keeps each of the pairs once."""
        codes = torch.unique(src.long() * vertices + dst.long())
        return cls.from_codes(codes, vertices)

    @classmethod
    def from_codes(cls, codes: Tensor, vertices: int) -> Pairs:
        """This reads pairs from their codes, which are distinct and ascend."""
        return cls(torch.div(codes, vertices, rounding_mode="floor"), codes % vertices, codes)

    def __len__(self) -> int:
        return self.codes.numel()

    @cached_property
    def _tables(self) -> dict[int, tuple[Tensor, int]]:
        return {}

    def table(self, vertices: int) -> tuple[Tensor, int]:
        """Give where codes begin, as the kernel that draws pairs reads it; made once."""
        if vertices not in self._tables:
            self._tables[vertices] = table_of(self.codes, vertices)
        return self._tables[vertices]

    def contains(self, codes: Tensor) -> Tensor:
        """Say for each code whether its pair is among these: bool [codes]."""
        return self.positions(codes) >= 0

    def positions(self, codes: Tensor) -> Tensor:
        """Return for each code the position of its pair among these, int64 [codes]; -1 where it is not."""
        if not len(self) or not codes.numel():
            return torch.full_like(codes, -1)
        largest = max(int(codes.max()), int(self.codes[-1]))
        if largest < _TABLE * codes.numel():  # a table of all codes is filled and read sooner than bisections are done
            table = torch.full((largest + 1,), -1, dtype=torch.int32, device=codes.device)
            table[self.codes] = torch.arange(len(self), dtype=torch.int32, device=codes.device)
            return table[codes].long()
        position = torch.searchsorted(self.codes, codes).clamp_(max=len(self) - 1)
        return torch.where(self.codes[position] == codes, position, -1)

    def inside(self, sources: slice, vertices: int) -> slice:
        """The pairs with these sources lie at these consecutive positions."""
        ends = torch.tensor([sources.start * vertices, sources.stop * vertices], device=self.codes.device)
        first, last = torch.searchsorted(self.codes, ends).tolist()
        return slice(first, last)


@dataclass(frozen=True, eq=False)
class Memory:
    """The pairs of the last steps, and two numbers about each: log(1 + how often it occurred), and 1 / (1 + age), where
    age is how many steps ago it did last. features: float32 [pairs, 2].
    """

    pairs: Pairs
    features: Tensor

    @classmethod
    def gather(cls, steps: Sequence[Tensor], vertices: int) -> Memory:
        """From the codes of the events of some steps, the newest step first."""
        codes, pair_index = torch.unique(torch.cat([*steps]), return_inverse=True)
        age = torch.cat([torch.full_like(step, k) for k, step in enumerate(steps)])
        newest = torch.full_like(codes, len(steps)).scatter_reduce_(0, pair_index, age, "amin")
        often = torch.bincount(pair_index, minlength=codes.numel())
        features = torch.stack([torch.log1p(often.float()), 1 / (1 + newest.float())], 1)
        return cls(Pairs.from_codes(codes, vertices), features)

    def of(self, codes: Tensor) -> Tensor:
        """Give the two numbers of these pairs, zeros where nothing is remembered: [codes, 2]."""
        numbers = self.features.new_zeros(codes.numel(), 2)
        position = self.pairs.positions(codes)
        held = torch.nonzero(position >= 0)[:, 0]
        numbers[held] = self.features[position[held]]
        return numbers


@dataclass(frozen=True, eq=False)
class Candidates:
    """The vertices that sampled pairs are made of.

    Attributes:
        vertices: how many the graph has.
        rows: int64 [candidates], the row of each, in the order of the user's ids.
    """

    vertices: int
    rows: Tensor

    @property
    def size(self) -> int:
        """Give the number of vertices that pairs are drawn from."""
        return self.rows.numel()

    def draw(self, key: int, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Give the pair number `index` of the stream `key`, for each index: rows (src, dst)."""
        bits = random_bits(key, indices, 2)
        chosen = self.rows[(bits * self.size) >> 32]
        return chosen[:, 0], chosen[:, 1]


def sample(key: int, count: int, among: Candidates, existing: Pairs) -> tuple[Tensor, Tensor]:
    """`count` pairs that are neither loops nor existing, with repetition; for training.

    A draw that is a loop or exists is repeated a few times; on a nearly complete graph some such pairs remain, which
    training tolerates.
    """
    keys = [key, *(mix64(key ^ attempt) for attempt in range(1, _TRIES))]
    if can_draw(among.rows):
        return draw_pairs(keys, count, among.rows, among.vertices, existing.codes, existing.table(among.vertices))
    return sample_torch(keys, count, among, existing)


def sample_torch(keys: Sequence[int], count: int, among: Candidates, existing: Pairs) -> tuple[Tensor, Tensor]:
    """Do the same by torch's operations: for other devices, and the oracle of the kernel."""
    drawn = torch.arange(count, device=among.rows.device)
    src, dst = among.draw(keys[0], drawn)
    for key in keys[1:]:
        unwanted = (src[drawn] == dst[drawn]) | existing.contains(src[drawn] * among.vertices + dst[drawn])
        drawn = drawn[unwanted]
        if drawn.numel() == 0:
            break
        src[drawn], dst[drawn] = among.draw(key, drawn)
    return src, dst


def sample_destinations(
    key: int, each: int, among: Candidates, existing: Pairs, vertices: Tensor | None
) -> tuple[Tensor, Tensor]:
    """For every existing pair `each` others with its source and another destination; as `sample`, for training.

    Args:
        vertices: the user's id of each row, or None where rows are vertices; what is drawn for a pair follows them.
    """
    ends = existing.src, existing.dst
    source, target = ends if vertices is None else (vertices[end] for end in ends)
    keys = row_keys(key, source * among.vertices + target).repeat_interleave(each)
    column = torch.arange(each, device=keys.device).repeat(len(existing))
    src = existing.src.repeat_interleave(each)
    dst = among.rows[(bits_at(keys, column) * among.size) >> 32]
    for attempt in range(1, _TRIES):
        bad = torch.nonzero((src == dst) | existing.contains(src * among.vertices + dst))[:, 0]
        if bad.numel() == 0:
            break
        dst[bad] = among.rows[(bits_at(keys[bad], column[bad] + attempt * each) * among.size) >> 32]
    return src, dst


def sample_distinct(key: int, count: int, among: Candidates, existing: Pairs) -> tuple[Tensor, Tensor]:
    """`count` different pairs that are neither loops nor existing (or all there are); for evaluation."""
    vertices, size = among.vertices, among.size
    inside = torch.zeros(vertices, dtype=torch.bool, device=among.rows.device)
    inside[among.rows] = True
    taken = int((inside[existing.src] & inside[existing.dst] & (existing.src != existing.dst)).sum())
    available = size * (size - 1) - taken
    count = min(count, available)
    if 2 * count > available:
        codes = torch.cat([(src * vertices + dst)[~held] for src, dst, held in every_pair(among, existing)])
        # the random order of a pair must follow the user's ids, not the rows
        candidate_index = torch.empty(vertices, dtype=torch.int64, device=codes.device)
        candidate_index[among.rows] = torch.arange(size, device=codes.device)
        src, dst = torch.div(codes, vertices, rounding_mode="floor"), codes % vertices
        ids = candidate_index[src] * size + candidate_index[dst]
        chosen = codes[torch.argsort(row_keys(key, ids), stable=True)[:count]]
        return torch.div(chosen, vertices, rounding_mode="floor"), chosen % vertices
    drawn = count + count // 4 + 64
    while True:
        src, dst = _stream(key, drawn, among)
        codes, first = _first_positions(src * vertices + dst, vertices**2)
        new = (torch.div(codes, vertices, rounding_mode="floor") != codes % vertices) & ~existing.contains(codes)
        wanted = torch.zeros(drawn, dtype=torch.bool, device=codes.device)
        wanted[first[new]] = True
        kept = torch.nonzero(wanted)[:count, 0]  # in the order in which they were drawn
        if kept.numel() == count:
            return src[kept], dst[kept]
        drawn *= 2


def _stream(key: int, count: int, among: Candidates) -> tuple[Tensor, Tensor]:
    """Return the first pairs of the stream `key`."""
    if can_draw(among.rows):
        none = Pairs.from_codes(among.rows[:0], among.vertices)
        return draw_pairs([key], count, among.rows, among.vertices, none.codes, none.table(among.vertices))
    return among.draw(key, torch.arange(count, device=among.rows.device))


def _first_positions(codes: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Return the distinct codes, ascending, and the position of the first of each. Codes are below `limit`."""
    position = torch.arange(codes.numel(), device=codes.device)
    bits = codes.numel().bit_length()
    if codes.device.type == "cpu" and limit.bit_length() + bits < 64:
        keys = sort_integers((codes << bits) | position)
        ordered, position = keys >> bits, keys & ((1 << bits) - 1)
    else:
        position = torch.argsort(codes, stable=True)
        ordered = codes[position]
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first], position[first]


def every_pair(among: Candidates, existing: Pairs, budget: int = 1 << 22) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Give all pairs of candidates except loops, some sources at a time: (src, dst, whether the pair exists)."""
    block = max(1, budget // max(among.size, 1))
    for start in range(0, among.size, block):
        sources = among.rows[start : start + block]
        src = sources.repeat_interleave(among.size)
        dst = among.rows.repeat(sources.numel())
        proper = src != dst
        src, dst = src[proper], dst[proper]
        yield src, dst, existing.contains(src * among.vertices + dst)
