"""Carry: the recurrent state goes from the rank of the earlier steps to the next, vertex chunk by vertex chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from trisect.comm.incoming import Incoming
from trisect.exchanges.base import Exchange
from trisect.exchanges.facts import Facts, equal_shares
from trisect.exchanges.port import Port
from trisect.schedule.action import Action


class Carry(Exchange[Incoming]):
    """Exact, since vertices are independent in the recurrent part; ranks work as a pipeline along time."""

    letter: ClassVar[str] = "c"

    def volume(self, facts: Facts, posts: Sequence[tuple[int, Action]], fetched: Sequence[int]) -> dict[str, int]:
        """A state of the chunk's rows a message, forward and back."""
        total = 0
        for rank, action in posts:
            layer = facts.halves[action.half].layer
            rows = _chunk(facts, layer, rank % facts.parts, action.chunk)
            count, width = facts.layers[layer].state_shape(rows.stop - rows.start)
            total += count * width * facts.dtype.itemsize
        return {"carry": total}

    def expect(self, action: Action, port: Port) -> Incoming:
        """Make room for a state."""
        layer = port.facts.layer_of(action.half)
        rows = _chunk(port.facts, layer, port.mesh.part_index, action.chunk)
        count, width = port.facts.layers[layer].state_shape(rows.stop - rows.start)
        return port.transport.receive(count, width, port.dtype, action.other, port.tag(action), wire="float32")

    def post(self, action: Action, port: Port) -> None:
        """Hand a state, or its gradient, on."""
        message = port.states[port.facts.layer_of(action.half)].hand_over(action.chunk, back=action.back)
        port.transport.send(message, action.other, port.tag(action), "time", "carry", wire="float32", mark=port.turn)

    def wait(self, action: Action, port: Port, posted: Incoming) -> None:
        """Begin a chunk with the state, or the gradient, that came."""
        layer = port.facts.layer_of(action.half)
        rows = _chunk(port.facts, layer, port.mesh.part_index, action.chunk)
        count = rows.stop - rows.start
        port.states[layer].take_over(action.block or 0, action.chunk, count, posted.wait(), back=action.back)


def _chunk(facts: Facts, layer: int, part: int, chunk: int) -> slice:
    bounds = equal_shares(facts.rows[part], facts.chunks_of(layer))
    return slice(bounds[chunk], bounds[chunk + 1])
