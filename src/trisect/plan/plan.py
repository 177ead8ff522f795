"""`make_facts`: from a model, sizes of the data and a layout to all that the schedule is built from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from trisect.errors import LayoutError
from trisect.exchanges.catalogue import CATALOGUE, volume
from trisect.exchanges.facts import Across, Along, Facts, LayerFacts, Runs, facts_of
from trisect.exchanges.redistribute_rows import RedistributeRows, crossing_bytes
from trisect.layout import Layout
from trisect.nn.base import Layer
from trisect.nn.halves import AnyLayer, HalfKind, halves_of
from trisect.plan.build import schedule_of

# Chunks of a carry for each rank along time: the more, the shorter a rank waits for the first; each is a message.
CHUNKS_A_RANK = 8


def make_facts(
    layers: Sequence[AnyLayer],
    head: Layer | None,
    layout: Layout,
    *,
    bounds: Sequence[int],
    runs: Runs = ((range(1),),),
    rows: Sequence[int],
    chunk_rows: Sequence[Sequence[int]] | None = None,
    remote: Sequence[int] = (0,),
    timeline: bool = False,
    aggregated: bool = False,
    fixed: bool = False,
    fetches: bool = False,
    symmetric: bool = False,
    stale: bool = False,
    extra: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Facts:
    """Decide for every layer how its rows and its state cross, and put all that exchanges must know together.

    `layout.temporal` is resolved where it is `auto`: a window by its frames, other states by what moves the fewer
    bytes. A state that is a weight has no rows to choose an exchange for: it needs none (EvolveGCN-O), or is carried
    (-H), whatever `layout.temporal` says. `layout.spatial` likewise: the halo, or columns where they are fewer bytes.

    Args:
        layers: of the whole model; of those of other stages, widths alone are read.
        bounds: stage s has the layers bounds[s] .. bounds[s+1]-1.
        runs: runs[block][run].
        rows: of each part; `chunk_rows` where its chunks begin.
        remote: for each step, the rows that all parts together read of others.
        extra: the numbers that the task trains.
    """
    outline = [facts_of(layer) for layer in layers]
    wanted = layout.chunks if layout.chunks > 1 else CHUNKS_A_RANK * layout.time
    chunks = 1 if layout.time == 1 or not timeline else max(1, min(wanted, *rows))
    facts = Facts(
        layout=layout,
        layers=tuple(outline),
        head=None if head is None else sum(p.numel() for p in head.parameters() if p.requires_grad),
        extra=extra,
        out_channels=outline[-1].out_channels if head is None else head.out_channels,
        bounds=tuple(bounds),
        halves=halves_of(layers, head=head is not None, aggregated=aggregated),
        runs=runs,
        rows=tuple(rows),
        chunk_rows=tuple(tuple(starts) for starts in (chunk_rows or [(0, count) for count in rows])),
        carry_chunks=chunks,
        remote=tuple(remote),
        timeline=timeline,
        aggregated=aggregated,
        fixed=fixed,
        fetches=fetches,
        symmetric=symmetric,
        stale=stale,
        recompute=layout.recompute,
        dtype=dtype,
    )
    across = choose_across(facts)
    facts = replace(facts, layers=tuple(replace(k, across=a) for k, a in zip(facts.layers, across, strict=True)))
    columns = [number for number, layer in enumerate(facts.layers) if layer.across == "redistribute"]
    halves = halves_of(layers, head=head is not None, aggregated=aggregated, by_columns=columns)
    facts = _along_time(replace(facts, halves=halves))
    if head is None and facts.fetches and facts.parts > 1 and facts.layers[-1].along != "none":
        # what the last temporal half gives crosses twice: back to its steps, and to the parts whose loss reads it
        halves = halves_of(layers, head=True, aggregated=aggregated, by_columns=columns)
        facts = replace(facts, halves=halves)
    return facts


def choose_across(facts: Facts) -> list[Across]:
    """Give, for every layer, how its rows cross parts."""
    asked = facts.layout.spatial
    reads = [layer.spatial and not (facts.aggregated and number == 0) for number, layer in enumerate(facts.layers)]
    if facts.parts == 1:
        return ["none"] * len(reads)
    exchange: Across = "halo"
    if asked == "redistribute":
        for number, layer in enumerate(facts.layers):
            refusal = RedistributeRows.refusal(layer) if reads[number] else None
            if refusal is not None:
                raise LayoutError(
                    f"layout.spatial is redistribute, but layer {number} of the model cannot be summed up by columns: "
                    f"{refusal}; use halo or auto."
                )
        if facts.stale:
            raise LayoutError(
                "layout.spatial is redistribute, but chunks read history of whole rows; set layout.chunks to 1,"
                " layout.history to exact, or layout.spatial to halo."
            )
        exchange = "redistribute"
    elif (
        asked == "auto"
        and not facts.stale
        and all(
            RedistributeRows.refusal(layer) is None for layer, read in zip(facts.layers, reads, strict=True) if read
        )
    ):
        exchange = "redistribute" if _columns_are_cheaper(facts, reads) else "halo"
    return [exchange if read else "none" for read in reads]


def _columns_are_cheaper(facts: Facts, reads: Sequence[bool]) -> bool:
    """Compare the bytes of a pass forward: a halo of every step, or rows to columns and back."""
    steps = [step for block in facts.runs for run in block for step in run]
    halo = columns = 0
    for number, layer in enumerate(facts.layers):
        if reads[number]:
            halo += sum(facts.wire_bytes(facts.remote[step], layer.message_channels) for step in steps)
            both = crossing_bytes(facts, number, True) + crossing_bytes(facts, number, False)
            columns += both * len(steps)
    return columns < halo


def _along_time(facts: Facts) -> Facts:
    """Decide for every layer how its state crosses runs."""
    options = [_options(layer, number, facts.layout) for number, layer in enumerate(facts.layers)]
    if any(len(able) > 1 for able in options):
        # each layer's choice depends on itself alone
        for number, able in enumerate(options):
            if len(able) > 1:
                costs = [_time_bytes(facts, number, along) for along in able]
                options[number] = [able[costs.index(min(costs))]]
    layers = tuple(replace(layer, along=able[0]) for layer, able in zip(facts.layers, options, strict=True))
    return replace(facts, layers=layers)


def _time_bytes(facts: Facts, number: int, along: Along) -> int:
    """Bytes that cross the time axis for one layer, where all others exchange nothing."""
    layers = tuple(
        replace(layer, along=along if k == number else "none", across="none") for k, layer in enumerate(facts.layers)
    )
    alone = replace(facts, layers=layers, bounds=(0, len(layers)), fetches=False, recompute=False)
    alone = replace(alone, layout=replace(facts.layout, layer=1, vertex=1), rows=(facts.vertices,))
    alone = replace(alone, chunk_rows=((0, facts.vertices),))
    moved = volume(alone, schedule_of(alone))
    return sum(size for (axis, _), size in moved.items() if axis == "time")


def _options(layer: LayerFacts, number: int, layout: Layout) -> list[Along]:
    """Give the exchanges along time that the layout leaves open for a layer."""
    if layer.state is None or layout.time == 1:
        return ["none"]
    if layer.state == "weight":
        return ["carry" if layer.summarises else "none"]
    asked = layout.temporal
    if asked == "auto":
        return ["window"] if layer.state == "window" else ["carry", "redistribute"]
    along: Along = "window" if asked == "halo" else asked
    refusal = next(exchange for exchange in CATALOGUE if exchange.along == along).refusal(layer)
    if refusal is not None:
        raise LayoutError(
            f"layout.temporal is {asked!r}, but layer {number} of the model cannot use it: {refusal}; use carry or"
            " auto."
        )
    return [along]


def hidden(facts: Facts, *, dynamic: bool) -> Facts:
    """The same without what turns embeddings into outputs: a static model's last layer, a dynamic one's head."""
    last = len(facts.layers) - (0 if dynamic else 1)
    if last == 0:
        return facts
    halves = tuple(half for half in facts.halves if half.layer < last or half.kind is HalfKind.OUTPUT)
    return replace(facts, halves=halves)


def forward_only(facts: Facts, runs: Runs | None = None) -> Facts:
    """The same for an exact pass forward: all chunks at once, nothing fetched, nothing computed again."""
    layout = facts.layout if facts.timeline else replace(facts.layout, chunks=1)
    return replace(
        facts, layout=layout, runs=facts.runs if runs is None else runs, fetches=False, recompute=False, stale=False
    )


def without_chunks(facts: Facts) -> Facts:
    """The same for an exact epoch: all chunks at once."""
    return replace(facts, layout=replace(facts.layout, chunks=1))


def runs_until(runs: Runs, steps: int, stop: int) -> Runs:
    """Give the runs of range(stop), for evaluation: those of training, then blocks of about the same length.

    Args:
        runs: of the `steps` training steps.
    """
    times = len(runs[0])
    cut = [tuple(range(min(run.start, stop), min(run.stop, stop)) for run in block) for block in runs]
    length = max(times, -(-steps // len(runs)))
    for start in range(steps, stop, length):
        end = min(start + length, stop)
        cut.append(
            tuple(
                range(start + (end - start) * m // times, start + (end - start) * (m + 1) // times)
                for m in range(times)
            )
        )
    return tuple(block for block in cut if any(block))


def runs_from(runs: Runs, start: int) -> Runs:
    """Give the runs without the steps before `start`."""
    cut = [tuple(range(max(run.start, start), max(run.stop, start)) for run in block) for block in runs]
    return tuple(block for block in cut if any(block))
