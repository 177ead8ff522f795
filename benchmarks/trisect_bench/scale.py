"""Whole epochs over a timeline of a billion smoothed edges, on one rank and on two, and how the cost grows.

The timeline is made in the manner of AML-Sim: accounts that pay each other, edges that live some steps. With `doubling`
a smaller one is measured beside the same with twice the steps and with twice the vertices and edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trisect.data.generators.generate import generate
from trisect.data.records import TimelineRecord
from trisect.errors import DataError
from trisect.graph.timeline.timeline import Timeline
from trisect_bench._runs import rank_gib, timeline_config, together_gib, train


def run(
    vertices: int = 1_000_000,
    steps: int = 200,
    transactions: float = 1.02,
    life: int = 10,
    model: str = "cd-gcn",
    layers: int = 2,
    hidden: int = 6,
    epochs: int = 1,
    layouts: Sequence[str] = ("blocks=auto", "time=2,blocks=auto"),
    doubling: bool = False,
    threads: int | None = None,
    memory: str | None = None,
) -> dict[str, Any]:
    """Measure each layout; with `doubling`, the growth from a fifth of the vertices and a quarter of the steps.

    Args:
        memory: that a run may plan with, such as `16GiB`; what is free, by default. With `doubling` 256 MiB:
            otherwise the smaller timeline keeps more of its snapshots and features between epochs, which is less work.
    """
    memory = "256MiB" if memory is None and doubling else memory
    sizes = {"vertices": vertices, "steps": steps, "transactions": transactions}
    cases: list[tuple[str, dict[str, Any], str]] = []
    if doubling:
        small = {**sizes, "vertices": vertices // 5, "steps": steps // 4}
        cases.append(("base", small, layouts[0]))
        cases.append(("twice the steps", {**small, "steps": 2 * small["steps"]}, layouts[0]))
        # accounts pay the same partners again, so that more payments of the same accounts are not as many more edges
        cases.append(("twice the graph", {**small, "vertices": 2 * small["vertices"]}, layouts[0]))
    else:
        cases = [(layout, sizes, layout) for layout in layouts]
    runs = []
    counted: dict[str, int] = {}
    for name, size, layout in cases:
        key = str(size)
        if key not in counted:
            counted[key] = smoothed_edges(life=life, **size)
        config = timeline_config(
            life=life, model=model, layers=layers, hidden=hidden, epochs=epochs, threads=threads, **size
        )
        summary = train(config, layout, memory=memory)
        runs.append(
            {
                "name": name,
                **size,
                "smoothed_edges": counted[key],
                "seconds": summary["seconds_per_epoch"]["best"],
                "rank_gib": rank_gib(summary),
                "together_gib": together_gib(summary),
                "blocks": summary["layout"]["blocks"],
                "loss": summary["loss"],
            }
        )
    return {"life": life, "model": model, "layers": layers, "hidden": hidden, "memory": memory, "runs": runs}


def smoothed_edges(*, vertices: int, steps: int, transactions: float, life: int) -> int:
    """Entries of all snapshots together, without loops: counted, not estimated."""
    record = generate("laundering", vertices=vertices, steps=steps, transactions=transactions)
    if not isinstance(record, TimelineRecord):
        raise DataError("the generator laundering makes timelines.")
    timeline = Timeline.from_arrays(
        record.src,
        record.dst,
        record.offsets,
        vertices=vertices,
        smoothing={"kind": "edge-life", "length": life},
    )
    return sum(timeline.snapshot(step).entries for step in range(timeline.steps))


def show(result: dict[str, Any]) -> None:
    """Print the figures as a table."""
    print(f"{result['model']}, {result['layers']} layers of {result['hidden']}, edges live {result['life']} steps")
    print("GiB: the peak of the largest rank; of all ranks together, where a page that they share counts once")
    print(f"{'run':<18} {'edges':>13} {'blocks':>6} {'epoch s':>8} {'GiB a rank':>10} {'together':>8} {'time':>6}")
    first = result["runs"][0]["seconds"]
    for row in result["runs"]:
        print(
            f"{row['name']:<18} {row['smoothed_edges']:>13,} {row['blocks']!s:>6} {row['seconds']:>8.1f}"
            f" {row['rank_gib']:>10.2f} {row['together_gib']:>8.2f} {row['seconds'] / first:>6.2f}"
        )
