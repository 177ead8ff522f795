"""Which exchange each layer uses on the vertex and the time axis: what the layout asks for, or the fewest bytes.

The catalogue is gone through: an exchange says itself which layers it refuses and how many bytes it moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trisect.errors import LayoutError
from trisect.exchanges.base import Exchange
from trisect.exchanges.catalogue import CATALOGUE, volume
from trisect.exchanges.facts import NONE, Facts, LayerFacts
from trisect.exchanges.rank_block import RankBlock
from trisect.nn.halves import Half, HalfKind
from trisect.plan.build import schedule_of
from trisect.schedule.action import Pass, Verb


def options_on(axis: str) -> list[Exchange]:
    """Give the exchanges that a layout may ask for on an axis."""
    return [exchange for exchange in CATALOGUE if exchange.axis == axis and exchange.option]


def sums_apart(spatial: str) -> bool:
    """Say whether an exchange between parts, by its word in a layout, sums up neighbours in a half of its own."""
    return any(exchange.sums_apart for exchange in options_on("vertex") if exchange.option == spatial)


def check_asked(layers: Sequence[LayerFacts], layout_key: str, asked: str, axis: str) -> None:
    """Raise a LayoutError where the exchange that a layout asks for refuses a layer."""
    able = options_on(axis)
    for number, layer in enumerate(layers):
        for exchange in able:
            refusal = exchange.refusal(layer) if exchange.option == asked else None
            if refusal is not None:
                others = [other.option for other in able if other.refusal(layer) is None]
                raise LayoutError(
                    f"layout.{layout_key} is {asked}, but layer {number} of the model cannot use it: {refusal}; use "
                    f"{', '.join(others)} or auto."
                )


def check_history(spatial: str) -> None:
    """Raise a LayoutError where the exchange between parts that a layout asks for does not go with history."""
    if any(exchange.option == spatial and not exchange.allows_history for exchange in options_on("vertex")):
        raise LayoutError(
            f"layout.spatial is {spatial}, but chunks read history of whole rows; set layout.chunks to 1,"
            " layout.history to exact, or layout.spatial to halo."
        )


def choose_across(facts: Facts) -> Facts:
    """Decide how the rows of all layers cross parts: by one exchange, since the data are cut for it."""
    if facts.parts == 1:
        return facts
    asked = facts.layout.spatial
    reading = [layer for number, layer in enumerate(facts.layers) if _reads(facts, number)]
    if asked == "auto":
        fitting = [e for e in options_on("vertex") if e.allows_history or not facts.stale]
        able = [e for e in fitting if all(e.refusal(layer) is None for layer in reading)]
    else:
        check_asked(reading, "spatial", asked, "vertex")
        able = [exchange for exchange in options_on("vertex") if exchange.option == asked]
        if facts.stale:
            check_history(asked)
    choices = [(exchange, _with_across(facts, exchange)) for exchange in able]
    if len(choices) == 1:
        return choices[0][1]
    costs = [_bytes_across(chosen, exchange) for exchange, chosen in choices]
    return choices[costs.index(min(costs))][1]


def _reads(facts: Facts, number: int) -> bool:
    """Say whether a layer reads rows of neighbours in a pass, and not their sum, which was kept."""
    return facts.layers[number].spatial and not (facts.aggregated and number == 0)


def _with_across(facts: Facts, exchange: Exchange) -> Facts:
    """The same with an exchange for all layers that read neighbours, and the halves in which it sums them up."""
    layers = tuple(
        replace(layer, across=exchange.option) if _reads(facts, number) else layer
        for number, layer in enumerate(facts.layers)
    )
    halves: list[Half] = []
    for half in facts.halves:
        if exchange.sums_apart and half.kind is HalfKind.COMBINE and not half.aggregated:
            halves.append(Half(HalfKind.AGGREGATE, half.layer))
        halves.append(half)
    return replace(facts, layers=layers, halves=tuple(halves))


def _bytes_across(facts: Facts, exchange: Exchange) -> int:
    """Give the bytes that an exchange moves in a pass forward, all chunks at once, by its formula."""
    posts = [
        (0, exchange.crossing(Verb.POST, RankBlock(facts, 0, block, Pass.EVALUATE), half, 0, back=False))
        for block in range(facts.blocks)
        for half in range(len(facts.halves))
        if exchange.stands_before(facts, half)
    ]
    return sum(exchange.volume(facts, posts, ()).values())


def choose_along(facts: Facts) -> Facts:
    """Decide for every layer by itself how its state crosses runs."""
    if facts.layout.time == 1:
        return facts
    asked = facts.layout.temporal
    # a state that every rank makes for itself (EvolveGCN-O) does not cross
    crossing = [layer.state is not None and (layer.state != "weight" or layer.summarises) for layer in facts.layers]
    if asked != "auto":
        # a weight has no rows to choose an exchange for
        check_asked([layer for layer in facts.layers if layer.state in ("vertex", "window")], "temporal", asked, "time")
    chosen = []
    for number, layer in enumerate(facts.layers):
        able = [exchange.option for exchange in options_on("time") if exchange.refusal(layer) is None]
        able = able if asked == "auto" or layer.state == "weight" else [asked]
        costs = [_bytes_along(facts, number, option) for option in able] if crossing[number] and len(able) > 1 else [0]
        chosen.append(able[costs.index(min(costs))] if crossing[number] else NONE)
    layers = tuple(replace(layer, along=along) for layer, along in zip(facts.layers, chosen, strict=True))
    return replace(facts, layers=layers)


def _bytes_along(facts: Facts, number: int, option: str) -> int:
    """Give the bytes that cross the time axis for one layer, where all others exchange nothing."""
    layers = tuple(
        replace(layer, along=option if k == number else NONE, across=NONE) for k, layer in enumerate(facts.layers)
    )
    alone = replace(facts, layers=layers, bounds=(0, len(layers)), fetches=False, recompute=False)
    alone = replace(alone, layout=replace(facts.layout, layer=1, vertex=1), rows=(facts.vertices,))
    alone = replace(alone, chunk_rows=((0, facts.vertices),))
    return sum(size for (axis, _), size in volume(alone, schedule_of(alone)).items() if axis == "time")
