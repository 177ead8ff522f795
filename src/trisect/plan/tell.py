"""A plan as people read it: a table of the best layouts, why the first leads, what does not fit, what it rests on."""

from __future__ import annotations

from collections.abc import Iterator

from trisect.plan.cluster import DISTURBED, GUESSED, MEASURED, PRESET, QUICK
from trisect.plan.estimate import AXES, Estimate
from trisect.plan.quantities import show_seconds, show_size
from trisect.plan.search import PlanChoice, too_large

_REFUSED = 5
_WORTH_A_LINE = 1 << 28  # bytes


def tell(choice: PlanChoice) -> Iterator[str]:
    """Give the lines of a plan."""
    cluster = choice.cluster
    yield (
        f"{choice.devices} device{'s' if choice.devices > 1 else ''} of {cluster.name} ({_source(choice)}), "
        f"{choice.tried} layouts looked at."
    )
    for number, each in enumerate(choice.best, 1):
        yield from _lines(number, each)
    if choice.best:
        yield choice.reason
    for each in choice.refused[:_REFUSED]:
        yield f"Does not fit: {_name(each)} {too_large(each)}."
    if len(choice.refused) > _REFUSED:
        yield f"Nor do {len(choice.refused) - _REFUSED} other cuts."
    yield "This rests on:"
    yield from (f"- {sentence}" for sentence in choice.assumptions)


def _source(choice: PlanChoice) -> str:
    sources = {
        MEASURED: "measured",
        QUICK: "measured for some seconds",
        DISTURBED: "measured, but disturbed",
        PRESET: "a preset, not measured",
        GUESSED: "guessed, not measured",
    }
    return sources.get(choice.cluster.source, "from its file")


def _name(each: Estimate) -> str:
    return "one rank" if str(each.layout) == "vertex=1" else str(each.layout)


def _lines(number: int, each: Estimate) -> Iterator[str]:
    seconds = each.seconds
    if seconds is None:
        return
    kind = "exact" if each.exact else "approximate"
    yield (
        f"{number}. {_name(each)}: {show_seconds(seconds.total)} an epoch on {each.layout.world} "
        f"rank{'s' if each.layout.world > 1 else ''}, {kind}"
    )
    yield (
        f"   time    compute {show_seconds(seconds.compute)}, exposed communication "
        f"{show_seconds(seconds.communication)}, bubble {show_seconds(seconds.bubble)}, overhead "
        f"{show_seconds(seconds.overhead)}"
    )
    if each.layout.world > 1:
        moved = [f"{axis} {show_size(each.bytes_by_axis[axis])}" for axis in AXES if each.bytes_by_axis[axis]]
        yield f"   bytes   {show_size(each.total_bytes)} an epoch{'' if each.exact_bytes else ' (estimated)'}: " + (
            ", ".join(moved) or "none"
        )
    parts = ", ".join(f"{name} {show_size(size)}" for name, size in each.memory.largest(6))
    yield (
        f"   memory  {show_size(each.memory.total)} of {show_size(each.room)} a device: libraries "
        f"{show_size(each.memory.libraries)}, {parts}"
    )
    if each.launch >= _WORTH_A_LINE:
        yield f"   launch  {show_size(each.launch)} to cut the vertices, once, before the ranks start"
