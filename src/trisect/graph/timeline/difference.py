"""What is sent so that a device that holds one snapshot gets the next: three encodings, each exact and reversible.

- `full`: every entry as two int64 and its value: 20 B in float32.
- `difference`: the indices that only one of the two has, as two int64 each, and all values of the new one.
- `compact`: int32 positions of what goes, int32 indices of what comes, and values only where they are not what the
  device expects: unchanged, or 1 for a new entry. Meant for counts and weights before normalisation, which the device
  does itself; where a window slides, not even the matrix is sent but the raw events that enter (`entering`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from trisect.errors import DataError
from trisect.graph.adjacency import Adjacency
from trisect.graph.timeline.timeline import Timeline

Encoding = Literal["full", "difference", "compact"]
ENCODINGS: tuple[Encoding, ...] = ("full", "difference", "compact")


@dataclass(frozen=True, eq=False)
class Message:
    """Tensors that are sent, and what they stand for.

    Attributes:
        encoding: see the module.
        shape: rows and columns of the matrix.
        weighted: whether the matrix has values.
        dtype: of its values.
        whole: nothing of an old matrix is needed.
        tensors: what crosses.
    """

    encoding: Encoding
    shape: tuple[int, int]
    self_start: int
    weighted: bool
    dtype: torch.dtype
    complete: bool
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Count the bytes of all tensors."""
        return sum(array.numel() * array.element_size() for array in self.tensors.values())

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Message:
        """Give the same message on another device."""
        moved = {name: array.to(device, non_blocking=non_blocking) for name, array in self.tensors.items()}
        return replace(self, tensors=moved)


def full_bytes(matrix: Adjacency) -> int:
    """Count the bytes of the matrix in the encoding `full`, the features of its edges included."""
    edge = 0 if matrix.features is None else matrix.edge_channels * matrix.features.element_size()
    return matrix.entries * (2 * torch.int64.itemsize + matrix.dtype.itemsize + edge)


def difference(old: Adjacency | None, new: Adjacency, encoding: Encoding = "compact") -> Message:
    """What turns `old` into `new`; without an old one, or where that is less, all of the new one."""
    if encoding not in ENCODINGS:
        raise DataError(f"encoding is {encoding!r}; choose one of {', '.join(ENCODINGS)}.")
    new = new.compact()
    old = None if old is None else old.compact()
    if new.entries >= 2**31 or (old is not None and old.entries >= 2**31):
        raise DataError(f"A snapshot of {new.entries} entries is too large for positions of 32 bits; cut it by vertex.")
    if encoding == "compact":
        everything = _compact_snapshot(new)
        if old is None:
            return everything
        part = _compact(old, new)
        return part if part.bytes < everything.bytes else everything
    if encoding == "full" or old is None:
        row, column = new.coordinates()
        return _message(encoding, new, True, index=torch.stack([row, column]), values=_values(new))
    here, there = _keys(old), _keys(new)
    matched, position = _matched(here, there)
    lost = torch.ones(here.numel(), dtype=torch.bool, device=here.device)
    lost[position] = False
    return _message(
        encoding,
        new,
        False,
        removed=_pairs(here[lost], old.columns),
        added=_pairs(there[~matched], new.columns),
        values=_values(new),
    )


def apply(message: Message, old: Adjacency | None = None) -> Adjacency:
    """The matrix that a message stands for, given the one that it was made against."""
    tensors = message.tensors
    columns = message.shape[1]
    if message.complete:
        row, column = tensors["index"] if "index" in tensors else (tensors["row"], tensors["column"])
        keys = row.long() * columns + column.long()
        if message.encoding != "compact":
            return _matrix(message, keys, tensors["values"])
        return _matrix(message, keys, _patched(message, keys.new_ones(keys.numel(), dtype=message.dtype)))
    if old is None:
        raise DataError("The message holds a difference; give the snapshot that it was made against.")
    old = old.compact()
    here = _keys(old)
    stays = torch.ones(here.numel(), dtype=torch.bool, device=here.device)
    if message.encoding == "difference":
        removed, added = (tensors[name][0] * columns + tensors[name][1] for name in ("removed", "added"))
        stays[_matched(here, removed)[1]] = False
    else:
        added = tensors["row"].long() * columns + tensors["column"].long()
        stays[tensors["removed"].long()] = False
    kept = here[stays]
    position = torch.searchsorted(kept, added) + torch.arange(added.numel(), device=added.device)
    is_new = torch.zeros(kept.numel() + added.numel(), dtype=torch.bool, device=here.device)
    is_new[position] = True
    keys = torch.empty_like(is_new, dtype=torch.int64)
    keys[is_new], keys[~is_new] = added, kept
    if message.encoding == "difference":
        return _matrix(message, keys, tensors["values"])
    values = torch.ones(keys.numel(), dtype=message.dtype, device=here.device)
    if old.values is not None:
        values[~is_new] = old.values[stays].to(message.dtype)
    return _matrix(message, keys, _patched(message, values))


def entering(timeline: Timeline, step: int) -> Message:
    """The raw events of one step: all that a device needs which holds the rest of the window."""
    src, dst = timeline.events(step)
    weight = timeline.event_weights(step)
    tensors = {"src": src, "dst": dst} if weight is None else {"src": src, "dst": dst, "weight": weight}
    shape = (timeline.vertices, timeline.vertices)
    return Message("compact", shape, 0, weight is not None, torch.float32, True, tensors)


def _compact_snapshot(new: Adjacency) -> Message:
    row, column = new.coordinates()
    expected = torch.ones(new.entries, dtype=new.dtype, device=new.device)
    return _message("compact", new, True, row=row.int(), column=column.int(), **_changes(new, expected))


def _compact(old: Adjacency, new: Adjacency) -> Message:
    here, there = _keys(old), _keys(new)
    matched, position = _matched(here, there)
    lost = torch.ones(here.numel(), dtype=torch.bool, device=here.device)
    lost[position] = False
    expected = torch.ones(new.entries, dtype=new.dtype, device=new.device)
    if old.values is not None:
        expected[matched] = old.values[position].to(new.dtype)
    row, column = _pairs(there[~matched], new.columns)
    return _message(
        "compact",
        new,
        False,
        removed=lost.nonzero()[:, 0].int(),
        row=row.int(),
        column=column.int(),
        **_changes(new, expected),
    )


def _changes(new: Adjacency, expected: Tensor) -> dict[str, Tensor]:
    """Positions and values of the entries that are not what is expected."""
    if new.values is None:
        return {}
    where = (new.values != expected).nonzero()[:, 0]
    return {"changed": where.int(), "values": new.values[where]}


def _patched(message: Message, values: Tensor) -> Tensor:
    if message.weighted:
        values[message.tensors["changed"].long()] = message.tensors["values"]
    return values


def _message(encoding: Encoding, new: Adjacency, complete: bool, **tensors: Tensor) -> Message:
    return Message(encoding, new.shape, new.self_start, new.values is not None, new.dtype, complete, tensors)


def _values(matrix: Adjacency) -> Tensor:
    if matrix.values is None:
        return torch.ones(matrix.entries, dtype=matrix.dtype, device=matrix.device)
    return matrix.values


def _keys(matrix: Adjacency) -> Tensor:
    row, column = matrix.coordinates()
    return row.mul_(matrix.columns).add_(column)


def _pairs(keys: Tensor, columns: int) -> Tensor:
    row = torch.div(keys, max(columns, 1), rounding_mode="floor")
    return torch.stack([row, keys - row * columns])


def _matched(keys: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
    """Which of `asked` are among the ascending keys, and where those stand."""
    position = torch.searchsorted(keys, asked)
    if not keys.numel():
        return torch.zeros_like(asked, dtype=torch.bool), position[:0]
    matched = keys[position.clamp(max=keys.numel() - 1)] == asked
    return matched, position[matched]


def _matrix(message: Message, keys: Tensor, values: Tensor) -> Adjacency:
    rows, columns = message.shape
    row, column = _pairs(keys, columns)
    pointers = torch.zeros(rows + 1, dtype=torch.int64, device=keys.device)
    torch.cumsum(torch.bincount(row, minlength=rows), 0, out=pointers[1:])
    return Adjacency.from_csr(
        pointers, column.to(torch.int32), values if message.weighted else None, columns, message.self_start
    )
