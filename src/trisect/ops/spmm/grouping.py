"""This decides which steps of a timeline are aggregated together as a `Group`, and when the group is made.

The kernels for groups give a step the same sums to the bit alone and in a group, so that this is a matter of time and
memory only. `worthwhile` decides, by limits that `trisect bench several` measures.
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
from trisect.ops.spmm.several import Group, Overlay, packs

_WIDEST = {2: 64, 4: 24}
"""By steps of a group, the width of a row in bytes above which gathering costs more than reading indices."""

_LARGEST_RATIO = {2: 0.8, 4: 0.45}
"""By steps of a group, the largest ratio of its entries to those of its snapshots for which a group pays: it holds a
zero for each snapshot that has no such entry. Groups of eight were never better than groups of four."""

_AFTER = 8
"""How often the same snapshots come together before they are laid over each other. Making a group costs what it saves
in 20 to 150 epochs: a short run shall not pay for it, and a long one not wait."""


def fits(x: Tensor) -> bool:
    """Whether features [steps, columns, features] are aggregated by the kernels for groups at all."""
    return packs(x) and 0 < x.shape[2] * x.element_size() <= _WIDEST[2]


def worthwhile(features: int, dtype: torch.dtype, steps: int, ratio: float, size: int, budget: int) -> bool:
    """Whether groups are worth making for snapshots that are kept.

    Args:
        features: of a step's row.
        steps: of a group, 2 or 4.
        ratio: entries of a group / entries of its snapshots, between 1/steps (all in common) and 1 (nothing).
        size: bytes of all groups, transposes included.
        budget: bytes that they may have.
    """
    return features * dtype.itemsize <= _WIDEST[steps] and ratio <= _LARGEST_RATIO[steps] and size <= budget


@dataclass(eq=False)
class _Sighting:
    """How often some snapshots came together, and the group that was made of them.

    Attributes:
        others: all of the snapshots but the first.
        times: how often they came together.
        group: the group of these snapshots, where it was worth making.
        refused: whether the group was not worth making.
    """

    others: tuple[weakref.ref[Adjacency], ...]
    times: int = 0
    group: Group | None = None
    refused: bool = False

    def of(self, members: Sequence[Adjacency]) -> bool:
        """Whether the sighting is of these very objects."""
        return len(self.others) == len(members) - 1 and all(
            other() is member for other, member in zip(self.others, members[1:], strict=True)
        )


_SIGHTINGS: weakref.WeakKeyDictionary[Adjacency, dict[tuple[int, torch.dtype], _Sighting]] = weakref.WeakKeyDictionary()
"""Sightings by the first snapshot, and by how many came together and the type of their values. They go with it."""


class Snapshots(Protocol):
    """A sequence of adjacencies, which may be made on demand."""

    def __len__(self) -> int:
        """Count the steps of the sequence."""
        ...

    def __getitem__(self, step: int, /) -> Adjacency:
        """Return the adjacency of a step, counted from the start of the sequence."""
        ...


def grouped(snapshots: Snapshots, features: int, dtype: torch.dtype) -> Iterator[Group]:
    """Return the snapshots in order, in groups of four or two where those are worth it.

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
        _sighting(snapshots[first : first + 2], dtype).times = _AFTER
    for group in grouped(snapshots, features, dtype):
        if group.steps > 1:
            group.transpose()


def _groups(members: Sequence[Adjacency], features: int, dtype: torch.dtype, count: int) -> Iterator[Group]:
    """Return up to four snapshots as one group, as two, or one by one; the sequence has `count` of them."""
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
    return _sighting(members, dtype).times > 0


def _together(members: Sequence[Adjacency], features: int, dtype: torch.dtype, count: int) -> Group | None:
    if len({member.shape for member in members}) > 1:
        return None
    sighting = _sighting(members, dtype)
    if sighting.times == 0 and len(members) > 2:
        # as often as the first two, which were seen before it was known that they come again
        sighting.times = _sighting(members[:2], dtype).times
    sighting.times += 1
    if sighting.group is None and not sighting.refused and sighting.times >= _AFTER:
        sighting.group = make(members, features, dtype, count)
        sighting.refused = sighting.group is None
    return sighting.group


def _sighting(members: Sequence[Adjacency], dtype: torch.dtype) -> _Sighting:
    sightings = _SIGHTINGS.setdefault(members[0], {})
    sighting = sightings.get((len(members), dtype))
    if sighting is None or not sighting.of(members):
        sighting = sightings[len(members), dtype] = _Sighting(tuple(weakref.ref(member) for member in members[1:]))
    return sighting


def make(members: Sequence[Adjacency], features: int, dtype: torch.dtype, count: int = 1) -> Group | None:
    """Make the group of these snapshots, or None where `count` such groups are not worth their memory."""
    laid = Overlay(members, dtype)
    lengths = laid.lengths()
    entries, apart = int(lengths.sum()), sum(member.entries for member in members)
    size = 2 * count * entries * (4 + dtype.itemsize * len(members))
    budget = free_bytes(torch.device("cpu")) // 4
    if not worthwhile(features, dtype, len(members), entries / max(apart, 1), size, budget):
        return None
    return laid.group(lengths)
