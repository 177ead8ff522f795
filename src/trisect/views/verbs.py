"""Numbers of exchanges: which verb of which layer, forward or backward, and of how many columns.

All ranks of an axis begin the same exchanges in the same order. A number travels with each, so that a rank whose
`forward` asks something else is noticed (`trisect.comm.calls`). From the lowest bit: verb 4, backward 1, crossing 1 (of
verbs that cross twice), call 12, layer 10, element bytes 3, cell 9, columns 20.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Mapping
from typing import Any

from torch import nn

from trisect.comm.calls import plain_words

AGGREGATE, GATHER, SUM, TOP, FETCH, RECUR, SCATTER = range(1, 8)
_VERBS = ("", "aggregate", "gather", "sum", "top", "fetch", "recur", "scatter")
_LONGEST = 60  # characters of a layer's repr that a sentence has room for


def number_of(call: Hashable, cell: int, columns: int, itemsize: int, *, back: bool, crossing: int = 0) -> int:
    """Return the number of an exchange.

    Args:
        call: (layer, which of its calls, verb).
        cell: number of the chunk or block at work.
        columns, itemsize: of the rows that cross.
    """
    parts: Any = call
    try:
        layer, count, verb = parts
        place: int = count & 0xFFF | (layer & 0x3FF) << 12
    except (TypeError, ValueError):
        verb, place = 0, zlib.crc32(repr(call).encode()) & 0x3FFFFF
    size = itemsize.bit_length() & 7
    return (
        int(verb)
        | back << 4
        | crossing << 5
        | place << 6
        | size << 28
        | (cell & 0x1FF) << 31
        | (columns & 0xFFFFF) << 40
    )


def words_of(number: int, layers: Mapping[int, nn.Module], *, fully: bool = False) -> str:
    """Describe the number of an exchange, such as "asked aggregate 2 of layer 1 (GCNLayer(16, 3))".

    Args:
        layers: of this rank, by number.
        fully: add the columns, bytes of an element and cell.
    """
    verb = number & 15
    if not 0 < verb < len(_VERBS):
        return plain_words(number)
    layer = number >> 18 & 0x3FF
    name = f" ({layer_name(layers[layer])})" if layer in layers else ""
    words = f"asked {_VERBS[verb]} {number >> 6 & 0xFFF} of layer {layer}{name}"
    if number >> 4 & 1:
        words += " in backward"
    if fully:
        size, cell, columns = number >> 28 & 7, number >> 31 & 0x1FF, number >> 40
        words += f" with {columns} columns of {(1 << size) >> 1} bytes in chunk or block {cell}"
    return words


def layer_name(layer: nn.Module) -> str:
    """Return the repr of a layer where it is short, else its class; of a wrapped module, the module's."""
    wrapped = getattr(layer, "module", None)
    if isinstance(wrapped, nn.Module):
        return layer_name(wrapped)
    name = repr(layer)
    return name if "\n" not in name and len(name) <= _LONGEST else type(layer).__name__
