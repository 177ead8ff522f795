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

SIZE = 2
"""Steps of a group: with more of them a row holds more zeros, and two gain almost as much as four."""

_WIDEST = 64
"""Bytes of a step's row beyond which a gather costs more than what stands around it."""

_AFTER = 8
"""How often the same snapshots come together before they are laid over each other. Making a group costs what it saves
in 20 to 150 epochs: a short run shall not pay for it, and a long one not wait."""

_SHARE = 0.8
"""Entries of a group against those of its snapshots, beyond which too little is shared."""


def fits(x: Tensor) -> bool:
    """Whether features [steps, columns, features] are aggregated by the kernels for groups at all."""
    return packs(x) and 0 < x.shape[2] * x.element_size() <= _WIDEST


def worthwhile(features: int, dtype: torch.dtype, share: float, size: int, budget: int) -> bool:
    """Whether groups are worth making for snapshots that are kept.

    Args:
        features: of a step's row.
        share: entries of a group / entries of its snapshots, between 1/steps (all in common) and 1 (nothing).
        size: bytes of all groups, transposes included.
        budget: bytes that they may have.
    """
    return features * dtype.itemsize <= _WIDEST and share <= _SHARE and size <= budget


@dataclass(eq=False)
class _Sight:
    """What is known of some snapshots that were seen together; kept with the first of them."""

    others: tuple[weakref.ref[Adjacency], ...]
    times: int = 0
    group: Group | None = None
    refused: bool = False

    def of(self, members: Sequence[Adjacency]) -> bool:
        """Whether it is about these very objects."""
        return len(self.others) == len(members) - 1 and all(
            known() is member for known, member in zip(self.others, members[1:], strict=True)
        )


class Snapshots(Protocol):
    """A sequence of adjacencies, which may be made on demand."""

    def __len__(self) -> int:
        """How many steps."""
        ...

    def __getitem__(self, step: int, /) -> Adjacency:
        """The adjacency of a step, counted from the start of the sequence."""
        ...


def grouped(snapshots: Snapshots, features: int, dtype: torch.dtype) -> Iterator[Group]:
    """The snapshots in order, in groups of up to `SIZE`.

    Snapshots are laid over each other when the same objects have come often enough: those that are made anew for every
    epoch never are.
    """
    for first in range(0, len(snapshots), SIZE):
        members = [snapshots[step] for step in range(first, min(first + SIZE, len(snapshots)))]
        found = _together(members, features, dtype, -(-len(snapshots) // SIZE))
        if found is not None:
            yield found
        else:
            for member in members:
                yield Group.of([member], dtype)


def prepare(snapshots: Sequence[Adjacency], features: int, dtype: torch.dtype) -> None:
    """Make the groups of snapshots that are known to be read many times, and their transposes, now."""
    for first in range(0, len(snapshots) - SIZE + 1, SIZE):
        members = snapshots[first : first + SIZE]
        _sight(members, dtype).times = _AFTER
        found = _together(members, features, dtype, -(-len(snapshots) // SIZE))
        if found is not None:
            found.transpose()


def _together(members: Sequence[Adjacency], features: int, dtype: torch.dtype, count: int) -> Group | None:
    if len(members) < SIZE or len({member.shape for member in members}) > 1:
        return None
    sight = _sight(members, dtype)
    sight.times += 1
    if sight.group is None and not sight.refused and sight.times >= _AFTER:
        sight.group = make(members, features, dtype, count)
        sight.refused = sight.group is None
    return sight.group


def _sight(members: Sequence[Adjacency], dtype: torch.dtype) -> _Sight:
    name = f"several_{dtype}"
    found = members[0]._cache.get(name)
    if not isinstance(found, _Sight) or not found.of(members):
        found = members[0]._cache[name] = _Sight(tuple(weakref.ref(member) for member in members[1:]))
    return found


def make(members: Sequence[Adjacency], features: int, dtype: torch.dtype, count: int = 1) -> Group | None:
    """The group, where one of `count` such groups is worth making."""
    laid = Overlay(members, dtype)
    lengths = laid.lengths()
    entries, apart = int(lengths.sum()), sum(member.entries for member in members)
    size = 2 * count * entries * (4 + dtype.itemsize * len(members))
    if not worthwhile(features, dtype, entries / max(apart, 1), size, free_bytes(torch.device("cpu")) // 4):
        return None
    return laid.group(lengths)
