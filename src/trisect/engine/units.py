"""The halves of a stage as units of autograd: what each reads that another made, and what others read of it.

A unit ends where a gradient has to be handed on by hand: where rows cross ranks, and behind a prepare, whose result
other cells read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from trisect.exchanges.catalogue import LETTERS
from trisect.exchanges.facts import NONE, Facts
from trisect.nn.halves import HalfKind
from trisect.plan.segments import Segment, segments_of

# A value: its name, and the half that made it. -1: it came from the stage before (or is a feature of the data).
Ref = tuple[str, int]


@dataclass(frozen=True)
class Step:
    """One half, or a prepare and a combine that nothing comes between: what it reads and writes.

    Attributes:
        fused: whether the half is a combine that also prepares.
        board: whether a prepare's message goes to the layer's board, or a combine's comes from there.
        fetched: of an output, whether rows of other parts stand behind the own ones of each step.
    """

    half: int
    kind: HalfKind
    layer: int
    x: Ref
    out: Ref
    fused: bool = False
    aggregated: bool = False
    board: bool = False
    fetched: bool = False
    message: Ref | None = None
    beside: Ref | None = None
    weights: Ref | None = None
    shared: tuple[tuple[str, Ref], ...] = ()


@dataclass(frozen=True)
class Unit:
    """Steps that are one graph of autograd.

    Attributes:
        reads: values that it reads and another unit (or an exchange) made; `writes`: those that others read of it.
        frees: values that nobody reads after it in forward.
        last_reads: for each step, the values that it is the last of the unit to read.
    """

    index: int
    first: int
    last: int
    steps: tuple[Step, ...]
    reads: tuple[Ref, ...] = ()
    writes: tuple[Ref, ...] = ()
    frees: tuple[Ref, ...] = ()
    last_reads: tuple[frozenset[Ref], ...] = ()


@dataclass(frozen=True)
class Span:
    """The units of some consecutive halves of one segment, which an action computes.

    Attributes:
        after: the segment behind theirs; None where the stage ends.
        board_reads: for each unit, the layer whose board its combine reads, or None.
        board_writes: for each unit, the layer on whose board its prepare ends, or None.
    """

    segment: Segment
    after: Segment | None
    units: tuple[Unit, ...]
    board_reads: tuple[int | None, ...]
    board_writes: tuple[int | None, ...]


@dataclass(frozen=True)
class Crossed:
    """Values that cross before a half: `sources` as they were made, `targets` as they are read.

    `frees` are those of the sources that nobody reads in forward once they have crossed.
    """

    sources: tuple[Ref, ...]
    targets: tuple[Ref, ...]
    frees: tuple[Ref, ...] = ()


@dataclass
class StageUnits:
    """All units of a stage.

    Attributes:
        crossed: by half, the values that an exchange before it moves.
        enters, leaves: the values that come from the stage before and go to the one after: rows, then shared inputs.
        apart: the steps of temporal halves that are done apart, by half.
        kept: the values that a group of units reads which is computed again in backward.
    """

    units: list[Unit]
    crossed: dict[int, Crossed]
    enters: tuple[Ref, ...]
    leaves: tuple[Ref, ...]
    apart: dict[int, Step]
    segments: tuple[Segment, ...] = field(default=())
    kept: frozenset[Ref] = frozenset()
    _spans: dict[tuple[int, int], Span] = field(default_factory=dict, repr=False)

    def span(self, first: int, last: int) -> Span:
        """Give what an action computes from its first to its last half, made once."""
        span = self._spans.get((first, last))
        if span is None:
            index = next(k for k, s in enumerate(self.segments) if s.first <= first <= s.last)
            after = self.segments[index + 1] if index + 1 < len(self.segments) else None
            units = tuple(self.truncated(first, last))
            reads = tuple(
                next((s.layer for s in unit.steps if s.kind is HalfKind.COMBINE and s.board), None) for unit in units
            )
            writes = tuple(
                unit.steps[-1].layer if unit.steps[-1].kind is HalfKind.PREPARE and unit.steps[-1].board else None
                for unit in units
            )
            span = self._spans[first, last] = Span(self.segments[index], after, units, reads, writes)
        return span

    def truncated(self, first: int, last: int) -> list[Unit]:
        """Give the units of some consecutive halves; of one that goes on behind them, its steps up to the last."""
        units = []
        for unit in self.units:
            if unit.first >= first and unit.last <= last:
                units.append(unit)
            elif first <= unit.first <= last:
                steps = tuple(step for step in unit.steps if step.half <= last)
                if steps:
                    units.append(replace(unit, last=last, steps=steps, writes=(), frees=()))
        return units


def units_of(facts: Facts, stage: int, boards: Sequence[int]) -> StageUnits:
    """Cut a stage into units.

    Args:
        boards: layers whose messages go through a board.
    """
    segments = segments_of(facts, stage)
    first, last_stage = facts.bounds[stage], stage == len(facts.bounds) - 2
    names = facts.shared_across(first) if stage > 0 else ()
    scan = _Scan(facts, set(boards), {segment.first: segment for segment in segments}, names)
    for half in facts.stage_halves(stage):
        scan.half(half)
    scan.close()
    if segments[-1].last < segments[-1].first:
        scan.cross(segments[-1].first, segments[-1])
    leaving = () if last_stage else facts.shared_across(facts.bounds[stage + 1])
    enters = (("x", -1), *((name, -1) for name in names))
    leaves = () if last_stage else (scan.x, *(scan.shared[name] for name in leaving))
    units, kept = _with_values(scan.groups, scan.crossed, leaves, scan.apart, segments)
    crossed = _with_frees(scan.crossed, units, {*leaves, *_read_apart(scan.apart), *kept})
    return StageUnits(units, crossed, enters, leaves, scan.apart, segments, frozenset(kept))


class _Scan:
    """Goes over the halves of a stage and notes which value is which."""

    def __init__(self, facts: Facts, boards: set[int], starts: dict[int, Segment], names: Sequence[str]) -> None:
        self.facts, self.boards, self.starts = facts, boards, starts
        self.x: Ref = ("x", -1)
        self.shared: dict[str, Ref] = {name: (name, -1) for name in names}
        self.inputs: dict[int, Ref] = {}
        self.message: Ref | None = None
        self.candidates: Ref | None = None
        self.weights: Ref | None = None
        self.groups: list[list[Step]] = []
        self.current: list[Step] = []
        self.crossed: dict[int, Crossed] = {}
        self.apart: dict[int, Step] = {}

    def close(self) -> None:
        if self.current:
            self.groups.append(self.current)
        self.current = []

    def half(self, k: int) -> None:
        half = self.facts.halves[k]
        number = half.layer
        segment = self.starts.get(k)
        if segment is not None:
            self.close()
            if segment.arrives and LETTERS[segment.arrives].moves != "board":
                self.cross(k, segment)
        self.inputs.setdefault(number, self.x)
        if half.kind is HalfKind.PREPARE:
            self._prepare(k, number)
        elif half.kind is HalfKind.AGGREGATE:
            out: Ref = ("total", k)
            self._add(Step(k, half.kind, number, self.x, out, message=self.message))
            self.message = out
        elif half.kind is HalfKind.COMBINE:
            self._combine(k, number, half.aggregated)
        elif half.kind is HalfKind.SUMMARY:
            self.candidates = ("candidates", k)
            self._add(Step(k, half.kind, number, self.x, self.candidates))
        elif half.kind is HalfKind.TEMPORAL:
            self._temporal(k, number, segment)
        elif half.kind is HalfKind.OUTPUT:
            fetched = segment is not None and bool(segment.arrives) and LETTERS[segment.arrives].moves == "output"
            self._add(Step(k, half.kind, number, self.x, ("output", k), fetched=fetched))
        else:
            out = ("x", k)
            self._add(Step(k, half.kind, number, self.x, out, shared=self._shared_of(number)))
            self._made(number, out)

    def cross(self, k: int, segment: Segment) -> None:
        """Note what an exchange before a half moves, and read it under another name from here on."""
        moves = LETTERS[segment.arrives].moves
        if moves == "message" and self.message is not None:
            self.crossed[k] = Crossed((self.message,), (("crossed message", k),))
            self.message = self.crossed[k].targets[0]
        elif moves == "candidates" and self.candidates is not None:
            self.crossed[k] = Crossed((self.candidates,), (("crossed candidates", k),))
            self.candidates = self.crossed[k].targets[0]
        elif segment.temporal is not None:
            sources, targets = [self.x], [("crossed x", k)]
            if self._beside(segment.temporal):
                sources.append(self.inputs[segment.temporal])
                targets.append(("crossed beside", k))
            self.crossed[k] = Crossed(tuple(sources), tuple(targets))
            self.x = targets[0]
        else:
            self.crossed[k] = Crossed((self.x,), (("crossed x", k),))
            self.x = self.crossed[k].targets[0]

    def _beside(self, number: int) -> bool:
        return self.facts.layers[number].concat

    def _prepare(self, k: int, number: int) -> None:
        layer = self.facts.layers[number]
        if layer.across == NONE and number not in self.boards:
            return  # the combine does both
        board = number in self.boards
        self.message = None if board else ("message", k)
        self._add(
            Step(k, HalfKind.PREPARE, number, self.x, ("message", k), board=board, weights=self._weights_of(number))
        )
        self.close()

    def _combine(self, k: int, number: int, aggregated: bool) -> None:
        layer = self.facts.layers[number]
        board = number in self.boards and not aggregated
        if board:
            self.close()
        fused = not aggregated and not board and layer.across == NONE
        out: Ref = ("x", k)
        self._add(
            Step(
                k,
                HalfKind.COMBINE,
                number,
                self.inputs[number],
                out,
                fused=fused,
                aggregated=aggregated,
                board=board,
                message=None if board or fused or aggregated else self.message,
                beside=None if board or fused or aggregated else self._own_message(number),
                weights=self._weights_of(number),
                shared=self._shared_of(number),
            )
        )
        self._made(number, out)

    def _own_message(self, number: int) -> Ref:
        """What a layer that is summed up by columns knows of its own rows: as they were prepared."""
        return "message", self.facts.half_index(HalfKind.PREPARE, number)

    def _temporal(self, k: int, number: int, segment: Segment | None) -> None:
        layer = self.facts.layers[number]
        apart = segment is not None and segment.temporal is not None
        if layer.state == "weight":
            out: Ref = ("weights", k)
            step = Step(k, HalfKind.TEMPORAL, number, self.x, out, message=self.candidates)
            self.weights, self.candidates = out, None
        else:
            out = ("x", k)
            beside = None
            if layer.concat:
                crossed = self.crossed.get(k)
                beside = self.inputs[number] if crossed is None else crossed.targets[1]
            step = Step(k, HalfKind.TEMPORAL, number, self.x, out, beside=beside)
            self.x = out
        if apart:
            self.apart[k] = step
        else:
            self._add(step)

    def _weights_of(self, number: int) -> Ref | None:
        return self.weights if self.facts.layers[number].state == "weight" else None

    def _shared_of(self, number: int) -> tuple[tuple[str, Ref], ...]:
        if number >= len(self.facts.layers):
            return ()
        return tuple((name, self.shared[name]) for name in self.facts.layers[number].reads)

    def _made(self, number: int, out: Ref) -> None:
        self.x = out
        if number < len(self.facts.layers) and self.facts.layers[number].writes is not None:
            self.shared[str(self.facts.layers[number].writes)] = out

    def _add(self, step: Step) -> None:
        self.current.append(step)


def _read_by(step: Step) -> list[Ref]:
    """What a step reads. (A prepare, a summary and the like read the rows; an aggregation and an evolution do not.)"""
    reads = [ref for ref in (step.message, step.beside, step.weights) if ref is not None]
    reads += [ref for _, ref in step.shared]
    if step.kind is not HalfKind.AGGREGATE and not (step.kind is HalfKind.TEMPORAL and step.out[0] == "weights"):
        reads.append(step.x)
    return reads


def _with_values(
    groups: Sequence[Sequence[Step]],
    crossed: dict[int, Crossed],
    leaves: Sequence[Ref],
    apart: dict[int, Step],
    segments: Sequence[Segment],
) -> tuple[list[Unit], set[Ref]]:
    """Say of each unit what it reads of others, what others read of it, and what it is the last to read.

    Give beside the units the values that are kept for those that are computed again.
    """
    made = [{step.out for step in group} for group in groups]
    read = [{ref for step in group for ref in _read_by(step)} for group in groups]
    kept = _kept_for_later(groups, made, read, segments)
    units = []
    for index, group in enumerate(groups):
        outside = read[index] - made[index]
        later = set().union(*read[index + 1 :]) if index + 1 < len(groups) else set()
        elsewhere = later | _crossing_after(crossed, group[-1].half) | {*leaves, *_read_apart(apart)}
        units.append(
            Unit(
                index,
                group[0].half if not group[0].fused else group[0].half - 1,
                group[-1].half,
                tuple(group),
                tuple(sorted(outside)),
                tuple(ref for ref in (step.out for step in group) if ref in elsewhere),
                tuple(sorted(outside - elsewhere - kept)),
                _last_reads(group),
            )
        )
    return units, kept


def _read_apart(apart: Mapping[int, Step]) -> set[Ref]:
    """Give what steps read that are done apart."""
    return {ref for step in apart.values() for ref in _read_by(step)}


def _crossing_after(crossed: Mapping[int, Crossed], half: int) -> set[Ref]:
    """Give the values that cross behind a half."""
    return {ref for k, values in crossed.items() if k > half for ref in values.sources}


def _with_frees(crossed: Mapping[int, Crossed], units: Sequence[Unit], held: set[Ref]) -> dict[int, Crossed]:
    """Say of each crossing which of its sources nobody reads after it; `held` are never let go by one."""
    freeing = {}
    for k, values in crossed.items():
        later = {ref for unit in units if unit.first >= k for ref in unit.reads} | _crossing_after(crossed, k)
        freeing[k] = replace(values, frees=tuple(ref for ref in values.sources if ref not in later | held))
    return freeing


def _last_reads(steps: Sequence[Step]) -> tuple[frozenset[Ref], ...]:
    """Give for each step what it reads or makes and no later one reads."""
    touched = [{*_read_by(step), step.out} for step in steps]
    later = [set().union(*(_read_by(step) for step in steps[index + 1 :])) for index in range(len(steps))]
    return tuple(frozenset(mine - others) for mine, others in zip(touched, later, strict=True))


def _kept_for_later(
    groups: Sequence[Sequence[Step]],
    made: Sequence[set[Ref]],
    read: Sequence[set[Ref]],
    segments: Sequence[Segment],
) -> set[Ref]:
    """Give the values that a group of units begins with which is computed again in backward."""
    of_unit = [next(s.group for s in segments if s.first <= group[-1].half <= s.last) for group in groups]
    kept: set[Ref] = set()
    for number in range(segments[-1].group):
        mine = [index for index, group in enumerate(of_unit) if group == number]
        inside = set().union(*(made[index] for index in mine)) if mine else set()
        kept |= {ref for index in mine for ref in read[index]} - inside
    return kept
