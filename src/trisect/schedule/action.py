"""`Action`: one thing that a rank does, small enough to print in a cell of a grid."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from trisect.errors import LayoutError


class Verb(Enum):
    """What is done. The value is the letter in the action's text."""

    FORWARD = "F"
    AGAIN = "A"
    BACKWARD = "B"
    POST = "P"
    EXPECT = "E"
    WAIT = "W"
    REDUCE = "G"
    STEP = "U"


class Pass(Enum):
    """Which pass over the data an action belongs to. The value ends the action's text; training has none."""

    TRAIN = ""
    AGAIN = "a"
    EVALUATE = "e"
    REFRESH = "r"


COMPUTE = frozenset({Verb.FORWARD, Verb.AGAIN, Verb.BACKWARD, Verb.STEP})
TRANSFER = frozenset({Verb.POST, Verb.EXPECT, Verb.WAIT})


@dataclass(frozen=True)
class Letter:
    """What a schedule knows of the exchange that a letter stands for.

    Attributes:
        axis: the mesh axis that it goes along.
        paired: whether it is between two ranks; otherwise all ranks along the axis take part.
    """

    name: str
    axis: str
    paired: bool = False


# The classes of `trisect.views.exchange` declare themselves here as they are defined.
EXCHANGES: dict[str, Letter] = {}


def declare(letter: str, meaning: Letter) -> None:
    """Let a letter stand for an exchange in the text of actions."""
    if EXCHANGES.setdefault(letter, meaning) != meaning:
        other = EXCHANGES[letter].name
        raise RuntimeError(f"internal error: {letter!r} stands for a {other} and for a {meaning.name}")


_TEXT = re.compile(
    r"(?P<stage>\d+)(?P<verb>[FABPEWGU])(?:(?P<exchange>[a-z])(?P<back>[FB]))?(?P<chunk>\d+)"
    r"(?:\.(?P<first>\d+)(?:-(?P<last>\d+))?)?(?:@(?P<block>\d+))?(?:(?P<direction>[<>])(?P<peer>\d+))?"
    r"(?:~(?P<pass>[aer]))?"
)


@dataclass(frozen=True)
class Action:
    """One thing that one rank does, as a value.

    Its text is stage, letter, chunk, and what else it needs: `2F0` (stage 2, forward, chunk 0), `0F0.4-6` (a piece of
    that, layers 4 to 6, between two crossings), `0PhF0.5` (halo rows that layer 5 reads leave), `0WhF0.5` (those of the
    others are here), `0PbF3>1` (the activations of chunk 3 go to rank 1), `1EbF3<0` (rank 1 makes room for them) and
    `1WbF3<0` (has them), `0PcB1.3@4>1` (the gradient of a carry of layer 3, rows of chunk 1, block 4, goes to rank 1),
    `0A0@4~a` (block 4 again, since nothing of it was kept), `0F0~e` (evaluation), `0G0` (add up gradients), `0U0`
    (step). A cell is computed in pieces between what it posts and waits for; several may have the same text.

    Attributes:
        stage: which run of layers.
        chunk: which vertices; 0 where they are not cut.
        first, last: the layers that a piece computes; of a transfer, `first` is the layer whose verb it is of. None:
            the whole cell, or what crosses between stages.
        block: which block of snapshots (of a transfer along time: the reader's); None on a static graph.
        exchange: of a transfer, the letter of its exchange.
        back: of a transfer, whether gradients cross.
        peer: the other rank of a transfer between two.
        incoming: whether this rank receives from its peer.
        works, call, width: what planning knows of it besides: the work of a piece, the verb that a transfer is of, and
            how many channels of a row cross. They take no part in comparisons.
    """

    verb: Verb
    stage: int = 0
    chunk: int = 0
    first: int | None = None
    last: int | None = None
    block: int | None = None
    exchange: str | None = None
    back: bool = False
    peer: int | None = None
    incoming: bool = False
    pass_: Pass = Pass.TRAIN
    works: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    call: Any = field(default=None, compare=False, repr=False)
    width: int = field(default=0, compare=False, repr=False)

    def __post_init__(self) -> None:
        if (self.exchange is not None) != (self.verb in TRANSFER):
            raise LayoutError(
                f"an action of verb {self.verb.name.lower()} "
                + ("needs the letter of its exchange" if self.verb in TRANSFER else "has no exchange")
            )
        if self.exchange is not None and self.exchange not in EXCHANGES:
            raise LayoutError(f"{self.exchange!r} is no exchange; use one of {', '.join(EXCHANGES)}")
        if self.exchange is not None and (self.peer is not None) != EXCHANGES[self.exchange].paired:
            name = EXCHANGES[self.exchange].name
            raise LayoutError(f"a {name} " + ("needs a" if self.peer is None else "has no") + " single peer")
        name = self.verb.name.lower()
        if self.exchange is None and (self.back or self.peer is not None):
            raise LayoutError(f"an action of verb {name} carries nothing, and so has no direction and no peer")
        if self.incoming != (self.peer is not None and self.verb is not Verb.POST):
            raise LayoutError(
                f"an action of verb {name} " + ("cannot be" if self.incoming else "must be") + " incoming"
            )
        if self.last is not None and (self.first is None or self.exchange is not None):
            raise LayoutError(
                f"an action of verb {name} names a last layer, and no layers are computed from a first one"
            )

    @property
    def other(self) -> int:
        """The rank that a transfer between two goes to or comes from."""
        if self.peer is None:
            raise RuntimeError(f"internal error: {self} names no peer")
        return self.peer

    @cached_property
    def message(self) -> tuple[object, ...]:
        """What a transfer carries: equal on both sides of it, and on all ranks that take part in it."""
        # two ranks may be of different stages; all that take part along an axis are of one
        stage = self.stage if self.peer is None else None
        return (self.exchange, self.back, stage, self.chunk, self.first, self.block, self.pass_)

    @cached_property
    def text(self) -> str:
        """The action as text, made once."""
        text = f"{self.stage}{self.verb.value}"
        if self.exchange is not None:
            text += self.exchange + ("B" if self.back else "F")
        text += str(self.chunk)
        if self.first is not None:
            text += f".{self.first}" + ("" if self.last is None else f"-{self.last}")
        text += "" if self.block is None else f"@{self.block}"
        text += "" if self.peer is None else f"{'<' if self.incoming else '>'}{self.peer}"
        return text + (f"~{self.pass_.value}" if self.pass_.value else "")

    def __str__(self) -> str:
        return self.text

    @classmethod
    def parse(cls, text: str) -> Action:
        """Give the action that prints as `text`."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise LayoutError(f"{text!r} is not an action: write stage, letter and chunk, such as 2F0 or 0PbF3>1")

        def number(name: str) -> int | None:
            return None if match[name] is None else int(match[name])

        return cls(
            verb=Verb(match["verb"]),
            stage=int(match["stage"]),
            chunk=int(match["chunk"]),
            first=number("first"),
            last=number("last"),
            block=number("block"),
            exchange=match["exchange"],
            back=match["back"] == "B",
            peer=number("peer"),
            incoming=match["direction"] == "<",
            pass_=Pass(match["pass"] or ""),
        )
