"""Which steps of a timeline are aggregated together, and when their entries are laid over each other.

The kernels for groups give a step the same sums to the bit alone and in a group, so that this is a matter of time and
memory only. What decides stands in `worthwhile` and follows `trisect bench several`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.ops.memory import free_bytes
from trisect.ops.several import Group, Overlay, packs

_WIDEST = {2: 64, 4: 24}
"""By steps of a group, bytes of a step's row beyond which a gather costs more than what stands around it."""

_SHARE = {2: 0.8, 4: 0.45}
"""By steps of a group, entries of it against those of its snapshots beyond which too little is shared: a row of a group
holds a zero for each snapshot that has no such entry. Eight are never better than four."""

_AFTER = 8
"""How often the same snapshots come together before they are laid over each other. Making a group costs what it saves
in 20 to 150 epochs: a short run shall not pay for it, and a long one not wait."""


def fits(x: Tensor) -> bool:
    """Whether features [steps, columns, features] are aggregated by the kernels for groups at all."""
    return packs(x) and 0 < x.shape[2] * x.element_size() <= _WIDEST[2]


def worthwhile(features: int, dtype: torch.dtype, steps: int, share: float, size: int, budget: int) -> bool:
    """Whether groups are worth making for snapshots that are kept.

    Args:
        features: of a step's row.
        steps: of a group, 2 or 4.
        share: entries of a group / entries of its snapshots, between 1/steps (all in common) and 1 (nothing).
        size: bytes of all groups, transposes included.
        budget: bytes that they may have.
    """
    return features * dtype.itemsize <= _WIDEST[steps] and share <= _SHARE[steps] and size <= budget


@dataclass(eq=False)
class _Sight:
    """What is known of some snapshots that were seen together.

    Attributes:
        others: all of them but the first.
        times: how often they came together.
        group: them laid over each other, where that was worth making.
        refused: whether it was not.
    """

    others: tuple[weakref.ref[Adjacency], ...]
    times: int = 0
    group: Group | None = None
    refused: bool = False

    def of(self, members: Sequence[Adjacency]) -> bool:
        """Tell whether it is about these very objects."""
        return len(self.others) == len(members) - 1 and all(
            other() is member for other, member in zip(self.others, members[1:], strict=True)
        )


_SIGHTS: weakref.WeakKeyDictionary[Adjacency, dict[tuple[int, torch.dtype], _Sight]] = weakref.WeakKeyDictionary()
"""By the first of some snapshots, with which it goes, and by their number and the type of their values."""


class Snapshots(Protocol):
    """A sequence of adjacencies, which may be made on demand."""

    def __len__(self) -> int:
        """Count the steps."""
        ...

    def __getitem__(self, step: int, /) -> Adjacency:
        """Give the adjacency of a step, counted from the start of the sequence."""
        ...


def grouped(snapshots: Snapshots, features: int, dtype: torch.dtype) -> Iterator[Group]:
    """The snapshots in order, in groups of four or two where those are worth it.

    Snapshots are laid over each other when the same objects have come often enough: those that are made anew for every
    epoch never are, and no more than two of them are held at a time.
    """
    count, first = len(snapshots), 0
    while first < count:
        members = [snapshots[step] for step in range(first, min(first + 2, count))]
        if first + 4 <= count and _fours(features, dtype) and _seen(members, dtype):
            members += [snapshots[step] for step in range(first + 2, first + 4)]
        yield from _groups(members, features, dtype, count)
        first += len(members)


def prepare(snapshots: Sequence[Adjacency], features: int, dtype: torch.dtype) -> None:
    """Make the groups of snapshots that are known to be read many times, and their transposes, now."""
    for first in range(0, len(snapshots) - 1, 2):
        _sight(snapshots[first : first + 2], dtype).times = _AFTER
    for group in grouped(snapshots, features, dtype):
        if group.steps > 1:
            group.transpose()


def _groups(members: Sequence[Adjacency], features: int, dtype: torch.dtype, count: int) -> Iterator[Group]:
    """Up to four snapshots as one group, as two, or one by one; `count` are all of the sequence."""
    group = _together(members, features, dtype, count // len(members)) if len(members) in _WIDEST else None
    if group is not None:
        yield group
    elif len(members) > 2:
        yield from _groups(members[:2], features, dtype, count)
        yield from _groups(members[2:], features, dtype, count)
    else:
        for member in members:
            yield Group.of([member], dtype)


def _fours(features: int, dtype: torch.dtype) -> bool:
    return features * dtype.itemsize <= _WIDEST[4]


def _seen(members: Sequence[Adjacency], dtype: torch.dtype) -> bool:
    """Whether these very objects have come before."""
    return _sight(members, dtype).times > 0


def _together(members: Sequence[Adjacency], features: int, dtype: torch.dtype, count: int) -> Group | None:
    if len({member.shape for member in members}) > 1:
        return None
    sight = _sight(members, dtype)
    if sight.times == 0 and len(members) > 2:
        # as often as the first two, which were seen before it was known that they come again
        sight.times = _sight(members[:2], dtype).times
    sight.times += 1
    if sight.group is None and not sight.refused and sight.times >= _AFTER:
        sight.group = make(members, features, dtype, count)
        sight.refused = sight.group is None
    return sight.group


def _sight(members: Sequence[Adjacency], dtype: torch.dtype) -> _Sight:
    sights = _SIGHTS.setdefault(members[0], {})
    sight = sights.get((len(members), dtype))
    if sight is None or not sight.of(members):
        sight = sights[len(members), dtype] = _Sight(tuple(weakref.ref(member) for member in members[1:]))
    return sight


def make(members: Sequence[Adjacency], features: int, dtype: torch.dtype, count: int = 1) -> Group | None:
    """The group, where one of `count` such groups is worth making."""
    laid = Overlay(members, dtype)
    lengths = laid.lengths()
    entries, apart = int(lengths.sum()), sum(member.entries for member in members)
    size = 2 * count * entries * (4 + dtype.itemsize * len(members))
    budget = free_bytes(torch.device("cpu")) // 4
    if not worthwhile(features, dtype, len(members), entries / max(apart, 1), size, budget):
        return None
    return laid.group(lengths)
