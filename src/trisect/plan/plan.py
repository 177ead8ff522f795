"""`make_facts`: from a model, sizes of the data and a layout to all that the schedule is built from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from trisect.exchanges.facts import NONE, Facts, LayerFacts, Runs, facts_of
from trisect.layout import Layout
from trisect.nn.base import Layer
from trisect.nn.halves import AnyLayer, Half, HalfKind, halves_of
from trisect.plan.choose import choose_across, choose_along

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

    `layout.temporal` and `layout.spatial` are resolved where they are `auto`: of the exchanges that fit, the one that
    moves the fewest bytes. A weight that every rank evolves for itself (EvolveGCN-O) needs no exchange along time.

    Args:
        layers: of the whole model; of those of other stages, widths alone are read.
        bounds: stage s has the layers bounds[s] .. bounds[s+1]-1.
        runs: runs[block][run].
        rows: of each part; `chunk_rows` where its chunks begin.
        remote: for each step, the rows that all parts together read of others.
        extra: the numbers that the task trains.
    """
    outline = _counted_once(layers)
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
    facts = choose_along(choose_across(facts))
    if head is None and facts.fetches and facts.parts > 1 and facts.layers[-1].along != NONE:
        # what the last temporal half gives crosses twice: back to its steps, and to the parts whose loss reads it
        facts = replace(facts, halves=(*facts.halves[:-1], Half(HalfKind.LOCAL, len(layers)), facts.halves[-1]))
    return facts


def _counted_once(layers: Sequence[AnyLayer]) -> list[LayerFacts]:
    """Return the facts of layers; a parameter that several share counts with the first of them."""
    facts, seen = [], set[int]()
    for layer in layers:
        trained = {id(p): p.numel() for p in layer.parameters() if p.requires_grad}
        again = sum(size for key, size in trained.items() if key in seen)
        seen.update(trained)
        own = facts_of(layer)
        facts.append(replace(own, parameters=own.parameters - again) if again else own)
    return facts


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


def runs_split(runs: Runs, at: int) -> Runs:
    """Give the runs with a block that begins at the step `at`."""
    cut = [
        tuple(range(max(run.start, low), min(run.stop, high)) for run in block)
        for block in runs
        for low, high in ((0, at), (at, max(at, *(run.stop for run in block))))
    ]
    return tuple(block for block in cut if any(block))
