"""`Door`: a rank's transport as exchanges use it, which gives every message its number, its rounding and its event."""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trisect.comm.mesh import Mesh
from trisect.comm.rows import Rows, Shape
from trisect.comm.transport import Transport
from trisect.layout import Wire
from trisect.noise import Noise
from trisect.views.exchange import Exchange
from trisect.views.verbs import Asked, number_of, words_of


class Crossing(NamedTuple):
    """A post or a wait, as observers are told of it.

    Attributes:
        verb: "post" or "wait".
        exchange: its name; `call` which verb of which layer it is part of.
        peer: the other rank of a message between two.
        block: of a message between two, the cell that reads it.
    """

    verb: str
    exchange: str
    call: Asked | None
    back: bool
    peer: int | None
    block: int


# whose name events have
Named = Exchange | type[Exchange]
# for so many messages between two ranks there is room at a time
AHEAD = 8
# told(crossing, start, seconds), start of `time.perf_counter`
Told = Callable[[Crossing, float, float], None]


@dataclass(frozen=True, eq=False)
class Posted:
    """Rows on their way along an axis, or (`peer`, `block`) a message from another rank."""

    door: Door
    pending: Any
    exchange: str
    call: Asked | None
    back: bool
    peer: int | None = None
    block: int | None = None

    def wait(self) -> Any:
        """Wait; return what each rank of the axis gave, [rows, width] each, or the message."""
        with self.door.event("wait", self.exchange, self.call, back=self.back, peer=self.peer, block=self.block):
            return self.pending.wait()


class Arriving:
    """Messages that come one after the other; for `AHEAD` of them there is room at a time."""

    def __init__(self, messages: Iterable[Posted]) -> None:
        self._messages, self._coming = iter(messages), deque[Posted]()
        self._expect()

    def _expect(self) -> None:
        self._coming.extend(islice(self._messages, AHEAD - len(self._coming)))

    def __iter__(self) -> Arriving:
        return self

    def __next__(self) -> Tensor:
        """Wait for the next one."""
        if not self._coming:
            raise StopIteration
        message: Tensor = self._coming.popleft().wait()
        self._expect()
        return message


class Door:
    """All that leaves a rank and comes in, in one pass.

    Attributes:
        block: the number of the cell at work, of chunks or of blocks of steps.
        noise: of the pass, for rounding at random on the wire.
        told: is called for every post and wait; None: nobody is.
        rare: whether messages of this size come seldom, so that no memory is kept for them.
        heed: is called in every verb; see `Spatial`.

    Args:
        layers: of this rank, by number, as errors name them.
    """

    def __init__(
        self,
        transport: Transport,
        dtype: torch.dtype = torch.float32,
        layers: Mapping[int, nn.Module] = MappingProxyType({}),
    ) -> None:
        self.transport, self.dtype = transport, dtype
        self.calls = transport.mesh.calls
        if self.calls is not None:
            self.calls.words = partial(words_of, layers=layers)
        self.block = 0
        self.noise: Noise | None = None
        self.told: Told | None = None
        self.rare = False
        self.heed: Callable[[], None] | None = None

    @property
    def mesh(self) -> Mesh:
        """Where the rank stands among the others."""
        return self.transport.mesh

    def key(self, name: str, call: object) -> int:
        """Return where random rounding of a message begins; 0 where nothing is rounded at random."""
        if self.transport.wire != "int8" or self.noise is None:
            return 0
        return self.noise.at(step=self.block).key(f"{name} {call}")

    def number(self, call: Asked, columns: int, dtype: torch.dtype, *, back: bool, crossing: int = 0) -> int:
        """Return the number of an exchange, which is the same on all ranks that take part."""
        return number_of(call, self.block, columns, dtype.itemsize, back=back, crossing=crossing)

    def meet(self, call: Asked, columns: int, dtype: torch.dtype, *, back: bool) -> None:
        """Note a verb in which all runs take part, by messages between two of them."""
        if self.calls is not None:
            self.calls.note("time", self.number(call, columns, dtype, back=back))

    def swap(
        self,
        exchange: Named,
        call: Asked,
        outgoing: Sequence[Tensor | Rows],
        targets: Sequence[Tensor | Shape],
        kind: str,
        *,
        back: bool,
        key: str | None = None,
        columns: int | None = None,
        crossing: int = 0,
        stay: bool = False,
    ) -> Posted:
        """Post rows to all ranks along an axis, and go on at once; see `Transport.begin_swap`.

        Args:
            key: what tells its random rounding from that of others; None: its rows cross exactly.
            columns: of the verb, where ranks give different ones.
            crossing: which of those of a verb that crosses twice.
        """
        width = int(targets[0].shape[1]) if columns is None else columns
        number = self.number(call, width, targets[0].dtype, back=back, crossing=crossing)
        with self.event("post", exchange.name, call, back=back):
            swap = self.transport.begin_swap(
                outgoing,
                targets,
                kind,
                0 if key is None else self.key(key, call),
                axis="time" if exchange.axis == "time" else "vertex",
                wire=_EXACT if key is None else None,
                once=self.rare,
                stay=stay,
                call=number,
            )
        return Posted(self, swap, exchange.name, call, back)

    def deal(
        self, exchange: Named, call: Asked, pieces: Sequence[Tensor], rows: Sequence[int], kind: str, *, back: bool
    ) -> list[Tensor]:
        """Give each part its piece [rows, width], exact; return what each gives, own one included, which stays.

        Args:
            rows: that come from each part.
        """
        part, width, dtype = self.mesh.part_index, pieces[0].shape[1], pieces[0].dtype
        outgoing = [piece[: 0 if q == part else None] for q, piece in enumerate(pieces)]
        shapes = [Shape(0 if q == part else count, width, dtype) for q, count in enumerate(rows)]
        received = list(self.swap(exchange, call, outgoing, shapes, kind, back=back).wait())
        received[part] = pieces[part]
        return received

    def trade(
        self,
        exchange: Named,
        call: Asked,
        index: int,
        pieces: Sequence[Sequence[Tensor]],
        places: Sequence[Sequence[Tensor]],
        kind: str,
        *,
        back: bool,
        key: str,
        columns: int | None = None,
        crossing: int = 0,
    ) -> None:
        """Give each rank along the axis its pieces, and put what each gives in its places, own ones included.

        Args:
            index: of this rank.
            pieces, places: for each rank [steps, rows, ·] tensors that cross side by side.
        """
        outgoing: list[Tensor] = []
        targets: list[Tensor | Shape] = []
        for q, (parts, into) in enumerate(zip(pieces, places, strict=True)):
            (steps, rows, _), width = into[0].shape, sum(place.shape[2] for place in into)
            # what has no columns does not cross, either way
            goes = q != index and any(part.shape[2] for part in parts)
            given = parts if goes else [part[:0] for part in parts]
            outgoing.append((given[0] if len(given) == 1 else torch.cat(list(given), 2)).flatten(0, 1))
            comes = q != index and width > 0
            direct = comes and len(into) == 1 and (steps == 1 or into[0].is_contiguous())
            shape = Shape(steps * rows if comes else 0, width, into[0].dtype)
            targets.append(into[0].flatten(0, 1) if direct else shape)
        posted = self.swap(
            exchange, call, outgoing, targets, kind, back=back, key=key, columns=columns, crossing=crossing
        )
        _put(pieces[index], places[index])
        for into, target, received in zip(places, targets, posted.wait(), strict=True):
            if isinstance(target, Shape) and received.numel():
                _put([received.view(*into[0].shape[:2], -1)], into)

    def send(
        self,
        exchange: Named,
        call: Asked | None,
        message: Tensor,
        peer: int,
        kind: str,
        *,
        back: bool,
        block: int,
        chunk: int = 0,
        exact: bool = False,
        mark: int = 0,
        once: bool = False,
    ) -> None:
        """Begin to send rows to another rank; see `Transport.send`.

        Args:
            block: the cell that reads them; `chunk`: of its messages.
            exact: whether they cross as they are.
        """
        tag = self.tag(exchange.name, call, chunk, block, back=back)
        with self.event("post", exchange.name, call, back=back, peer=peer, block=block):
            key, wire = (0, _EXACT) if exact else (self.key(exchange.name, (tag, peer)), None)
            self.transport.send(message, peer, tag, exchange.axis, kind, key, wire=wire, mark=mark, once=once)

    def receive(
        self,
        exchange: Named,
        call: Asked | None,
        shape: Shape,
        peer: int,
        *,
        back: bool,
        block: int,
        chunk: int = 0,
        exact: bool = False,
    ) -> Posted:
        """Begin to receive what another rank sends."""
        tag, wire = self.tag(exchange.name, call, chunk, block, back=back), _EXACT if exact else None
        incoming = self.transport.receive(shape.rows, shape.width, shape.dtype, peer, tag, wire=wire)
        return Posted(self, incoming, exchange.name, call, back, peer, block)

    @staticmethod
    def tag(name: str, call: Asked | None, chunk: int, block: int, *, back: bool) -> int:
        """Return the number of a message between two ranks: both sides make the same of its name and place.

        0 is for exchanges along a whole axis.
        """
        return 1 + (zlib.crc32(f"{name} {call} {chunk} {block} {back}".encode()) & 0x3FFFFFFF)

    def event(
        self,
        verb: str,
        exchange: str,
        call: Asked | None,
        *,
        back: bool,
        peer: int | None = None,
        block: int | None = None,
    ) -> AbstractContextManager[None]:
        """Tell how long something took."""
        if self.told is None:
            return _UNTOLD
        return _Timed(self.told, Crossing(verb, exchange, call, back, peer, self.block if block is None else block))


def _put(pieces: Sequence[Tensor], places: Sequence[Tensor]) -> None:
    """Copy [steps, rows, ·] tensors that lie side by side into others, however either are cut."""
    if len(places) == 1:
        places = torch.split(places[0], [piece.shape[2] for piece in pieces], 2)
    elif len(pieces) == 1:
        pieces = torch.split(pieces[0], [place.shape[2] for place in places], 2)
    for place, piece in zip(places, pieces, strict=True):
        place.copy_(piece)


_UNTOLD = nullcontext()
_EXACT: Wire = "float32"


class _Timed(AbstractContextManager[None]):
    """Tells how long its body took, unless the body raises."""

    __slots__ = ("_crossing", "_start", "_told")

    def __init__(self, told: Told, crossing: Crossing) -> None:
        self._told, self._crossing = told, crossing

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self._told(self._crossing, self._start, time.perf_counter() - self._start)
