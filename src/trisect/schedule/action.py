"""`Action`: one thing that a rank does, small enough to print in a cell of a grid."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from trisect.errors import LayoutError


class Kind(Enum):
    """What is done. The value is the letter in the action's text."""

    FORWARD = "F"
    BACKWARD = "B"
    RECOMPUTE = "A"
    SEND = "S"
    RECEIVE = "R"
    POST = "P"
    HALO = "H"
    CARRY = "C"
    REDISTRIBUTE = "X"
    REDUCE = "G"
    STEP = "U"


class Phase(Enum):
    """Which way a transfer goes: activations in the forward pass or their gradients in the backward pass."""

    FORWARD = "F"
    BACKWARD = "B"


class Half(Enum):
    """Which piece of a dynamic layer is worked on, or crosses; the letter follows the layer in the action's text."""

    PREPARE = "p"
    SPATIAL = "s"
    TEMPORAL = "t"
    SUMMARY = "m"
    OUTPUT = "o"
    LOSS = "l"


class Side(Enum):
    """Which rows of a chunk: those that other ways read or that read other ways, or the rest."""

    BOUNDARY = "b"
    INTERIOR = "i"


COMPUTE = frozenset({Kind.FORWARD, Kind.BACKWARD, Kind.RECOMPUTE, Kind.STEP})
COLLECTIVE = frozenset({Kind.HALO, Kind.REDISTRIBUTE, Kind.REDUCE})
POINT_TO_POINT = frozenset({Kind.SEND, Kind.RECEIVE, Kind.CARRY})
_PHASED = frozenset({Kind.SEND, Kind.RECEIVE, Kind.POST, Kind.HALO, Kind.CARRY, Kind.REDISTRIBUTE})

_TEXT = re.compile(
    r"(?P<stage>\d+)(?P<kind>[FBASRPHCXGU])(?P<phase>[FB])?(?P<chunk>\d+)"
    r"(?:\.(?P<layer>\d+)(?P<half>[pstmol])?(?P<side>[bi])?)?(?:@(?P<block>\d+))?(?:(?P<way>[<>])(?P<peer>\d+))?"
)


@dataclass(frozen=True)
class Action:
    """One action of one rank.

    Its text is stage, letter, chunk, and what else it needs: `2F0` (stage 2, forward, chunk 0), `0SF3>1` (stage 0 sends
    the activations of chunk 3 to rank 1), `1RF3<0` (and rank 1 receives them), `0HB0.2` (halo gradients of layer 2),
    `0PB0.2` (those are on their way from now on; `0HB0.2` then only waits), `0F0.2b` (boundary rows of chunk 0 alone),
    `0CF1.0@4>1` (carry of layer 0, vertex chunk 1, block 4, handed to rank 1), `0A1.0t@4` (the temporal half of layer 0
    for vertex chunk 1 again, since block 4 kept nothing), `0G0` (reduce gradients), `0U0` (step).

    Attributes:
        stage: which run of layers.
        chunk: which vertices; 0 where they are not cut.
        layer: the layer inside the stage that a halo, a carry or a redistribution belongs to.
        half: which piece of a dynamic layer; None on a static graph.
        block: which block of snapshots (of a transfer along time: the receiver's); None on a static graph.
        phase: for transfers, activations or gradients.
        peer: the other rank of a point-to-point transfer.
        side: of a forward or backward of one layer, which rows; None: all of the chunk.
        incoming: of a carry, whether this rank receives it. (A send is always outgoing, a receive incoming.)
    """

    kind: Kind
    stage: int = 0
    chunk: int = 0
    layer: int | None = None
    block: int | None = None
    phase: Phase | None = None
    peer: int | None = None
    incoming: bool = False
    half: Half | None = None
    side: Side | None = None

    def __post_init__(self) -> None:
        if (self.phase is not None) != (self.kind in _PHASED):
            raise LayoutError(
                f"an action of kind {self.kind.name.lower()} "
                + ("needs a phase, forward or backward" if self.kind in _PHASED else "has no phase")
            )
        if (self.peer is not None) != (self.kind in POINT_TO_POINT):
            raise LayoutError(
                f"an action of kind {self.kind.name.lower()} "
                + ("needs the rank of its peer" if self.kind in POINT_TO_POINT else "has no peer")
            )
        if self.half is not None and self.layer is None:
            raise LayoutError(f"an action of half {self.half.name.lower()} needs the layer that it belongs to")
        if self.kind is Kind.RECEIVE and not self.incoming:
            object.__setattr__(self, "incoming", True)
        if self.incoming and self.kind not in (Kind.RECEIVE, Kind.CARRY):
            raise LayoutError(f"an action of kind {self.kind.name.lower()} cannot be incoming")
        if self.side is not None and (self.layer is None or self.kind not in (Kind.FORWARD, Kind.BACKWARD)):
            raise LayoutError(f"an action of kind {self.kind.name.lower()} has a side only as a layer's work")

    @property
    def message(self) -> tuple[object, ...]:
        """What a transfer carries: equal on both sides of it."""
        kind = Kind.SEND if self.kind is Kind.RECEIVE else self.kind
        return (kind, self.phase, self.chunk, self.layer, self.half, self.block)

    def __str__(self) -> str:
        text = f"{self.stage}{self.kind.value}{'' if self.phase is None else self.phase.value}{self.chunk}"
        if self.layer is not None:
            text += f".{self.layer}" + "".join(piece.value for piece in (self.half, self.side) if piece is not None)
        if self.block is not None:
            text += f"@{self.block}"
        if self.peer is not None:
            text += f"{'<' if self.incoming else '>'}{self.peer}"
        return text

    @classmethod
    def parse(cls, text: str) -> Action:
        """The action that prints as `text`."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise LayoutError(f"{text!r} is not an action: write stage, letter and chunk, such as 2F0 or 0SF3>1")
        layer, block, peer, phase = match["layer"], match["block"], match["peer"], match["phase"]
        half = match["half"]
        return cls(
            kind=Kind(match["kind"]),
            stage=int(match["stage"]),
            chunk=int(match["chunk"]),
            layer=None if layer is None else int(layer),
            block=None if block is None else int(block),
            phase=None if phase is None else Phase(phase),
            peer=None if peer is None else int(peer),
            incoming=match["way"] == "<",
            side=None if match["side"] is None else Side(match["side"]),
            half=None if half is None else Half(half),
        )
