"""Randomness as a function of (seed, epoch, layer, step, vertex), not of the order of calls.

No layout and no resume can then change a dropout mask or a sampled pair: every rank that computes a vertex draws the
same numbers for it. The element hash is the same in torch (here, the oracle) and in the native kernels.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from trisect.errors import DataError

_MASK64 = (1 << 64) - 1
_MASK32 = (1 << 32) - 1
_GOLDEN64 = 0x9E3779B97F4A7C15
_GOLDEN32 = 0x9E3779B9


def mix64(value: int) -> int:
    """SplitMix64's finaliser on a Python integer."""
    value = (value + _GOLDEN64) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


@lru_cache(maxsize=1024)
def _key(seed: int, epoch: int, layer: int, step: int, purpose: str) -> int:
    key = mix64(seed & _MASK64)
    for part in (epoch, layer, step, zlib.crc32(purpose.encode())):
        key = mix64(key ^ (part & _MASK64))
    return key


def _signed(value: int) -> int:
    """Give the same 64 bits as a signed integer, which is what torch's int64 holds."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Do a logical right shift of int64 (torch's is arithmetic)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def row_keys(key: int, vertices: Tensor) -> Tensor:
    """mix64(key + vertex * golden) for each vertex, as int64 [rows]."""
    x = vertices.to(torch.int64) * _signed(_GOLDEN64) + _signed(key)
    x = x + _signed(_GOLDEN64)
    x = (x ^ _shift_right(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift_right(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift_right(x, 31)


def random_bits(key: int, vertices: Tensor, columns: int) -> Tensor:
    """32 random bits for each (vertex, column), as int64 [rows, columns]; kernels compute the same in registers.

    With lo and hi the halves of the row key:  x = lo + column * 0x9E3779B9;  x ^= x >> 16;  x *= 0x7FEB352D;
    x ^= hi;  x ^= x >> 15;  x *= 0x846CA68B;  x ^= x >> 16   (all modulo 2^32).
    """
    return bits_at(row_keys(key, vertices)[:, None], torch.arange(columns, device=vertices.device)[None, :])


def bits_at(keys: Tensor, columns: Tensor) -> Tensor:
    """Give the same bits for single (vertex, column) pairs: keys are row keys, columns int64; shapes broadcast."""
    low, high = keys & _MASK32, _shift_right(keys, 32)
    x = (low + columns * _GOLDEN32) & _MASK32
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK32
    x = x ^ high
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK32
    return x ^ (x >> 16)


def drop_threshold(p: float) -> int:
    """An element is dropped where its 32 random bits are below this."""
    return min(_MASK32, round(p * (1 << 32)))


@dataclass(frozen=True, eq=False)
class Noise:
    """The seed, epoch, layer and step that a random number belongs to. It is passed along; no layer stores it.

    `vertices` holds the user's vertex id of each row that is computed (None: rows are vertices 0..n-1), so that
    reordering and cutting the graph leave every draw as it was.
    """

    seed: int
    epoch: int = 0
    layer: int = 0
    step: int = 0
    vertices: Tensor | None = None

    def at(self, *, layer: int | None = None, step: int | None = None, vertices: Tensor | None = None) -> Noise:
        """Give the same noise for another layer, step or vertices."""
        # made directly: `replace` takes several times as long, and every layer of every chunk asks
        layer, step = self.layer if layer is None else layer, self.step if step is None else step
        return Noise(self.seed, self.epoch, layer, step, self.vertices if vertices is None else vertices)

    def rows(self, start: int, stop: int) -> Noise:
        """Give the same noise for the rows start..stop-1 of those that this one describes."""
        ids = torch.arange(start, stop) if self.vertices is None else self.vertices[start:stop]
        return self.at(vertices=ids)

    def key(self, purpose: str) -> int:
        """Give a 64-bit key for one use (`"dropout"`, `"negatives"`, …) of this seed, epoch, layer and step."""
        return _key(self.seed, self.epoch, self.layer, self.step, purpose)

    def vertex_ids(self, rows: int, device: torch.device | None = None) -> Tensor:
        """Give the user's vertex ids of the `rows` rows at hand."""
        if self.vertices is None:
            return torch.arange(rows, device=device)
        if self.vertices.numel() != rows:
            raise DataError(f"noise.vertices has {self.vertices.numel()} ids; there are {rows} rows.")
        return self.vertices if device is None else self.vertices.to(device)
