"""Peak memory and time of an epoch as a timeline is cut into more and more blocks.

Each run is a process of its own, so that its peak is its own: the library, the timeline and its features included.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trisect_bench._runs import rank_gib, timeline_config, train


def run(
    blocks: Sequence[int] = (1, 2, 4, 8, 16),
    vertices: int = 100_000,
    steps: int = 64,
    transactions: float = 0.5,
    life: int = 10,
    model: str = "cd-gcn",
    layers: int = 2,
    hidden: int = 6,
    epochs: int = 3,
    threads: int | None = None,
    plot: str | None = None,
    memory: str | None = None,
) -> dict[str, Any]:
    """Measure all candidates.

    Args:
        plot: an SVG file to draw.
        memory: that a run may plan with, such as `1GiB`: what is kept between epochs, which blocks do not change, is
            within a part of it. What is free, by default.
    """
    config = timeline_config(
        vertices=vertices,
        steps=steps,
        transactions=transactions,
        life=life,
        model=model,
        layers=layers,
        hidden=hidden,
        epochs=epochs,
        threads=threads,
    )
    rows = []
    for count in blocks:
        summary = train(config, f"blocks={count}", memory=memory)
        rows.append(
            {
                "blocks": count,
                "peak_gib": rank_gib(summary),
                "seconds": summary["seconds_per_epoch"]["best"],
                "loss": summary["loss"][-1],
            }
        )
    result = {"config": config, "blocks": rows}
    if plot is not None:
        Path(plot).write_text(draw(rows), encoding="utf-8")
        result["plot"] = plot
    return result


def show(result: dict[str, Any]) -> None:
    """Print the figures as a table."""
    rows = result["blocks"]
    first = rows[0]
    print(f"{'blocks':>6} {'peak GiB':>9} {'seconds':>8} {'memory':>7} {'time':>6} {'loss':>10}")
    for row in rows:
        memory, seconds = row["peak_gib"] / first["peak_gib"], row["seconds"] / first["seconds"]
        print(
            f"{row['blocks']:>6} {row['peak_gib']:>9.2f} {row['seconds']:>8.2f} {memory:>7.2f} {seconds:>6.2f}"
            f" {row['loss']:>10.6f}"
        )
    if "plot" in result:
        print(f"Plot: {result['plot']}")


def draw(rows: Sequence[dict[str, Any]]) -> str:
    """Bars of memory and a line of seconds over the number of blocks, as an SVG page."""
    width, height, left, bottom, top = 640, 320, 60, 50, 40
    room, tall = width - 2 * left, height - bottom - top
    memory, seconds = max(row["peak_gib"] for row in rows) * 1.1, max(row["seconds"] for row in rows) * 1.1
    slot = room / len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{left}" y="22" fill="#2b6cb0">peak memory, GiB (bars)</text>',
        f'<text x="{width - left}" y="22" text-anchor="end" fill="#c05621">seconds an epoch (line)</text>',
    ]
    points = []
    for k, row in enumerate(rows):
        x = left + slot * (k + 0.5)
        tall_bar, rise = tall * row["peak_gib"] / memory, tall * row["seconds"] / seconds
        base = height - bottom
        points.append(f"{x:.1f},{base - rise:.1f}")
        parts.append(
            f'<rect x="{x - slot * 0.3:.1f}" y="{base - tall_bar:.1f}" width="{slot * 0.6:.1f}" '
            f'height="{tall_bar:.1f}" fill="#90cdf4"/>'
        )
        parts.append(f'<text x="{x:.1f}" y="{base - 6:.1f}" text-anchor="middle">{row["peak_gib"]:.2f}</text>')
        parts.append(
            f'<text x="{x:.1f}" y="{base - rise - 8:.1f}" text-anchor="middle" fill="#c05621">'
            f"{row['seconds']:.1f}</text>"
        )
        label = html.escape(f"{row['blocks']} block" + ("" if row["blocks"] == 1 else "s"))
        parts.append(f'<text x="{x:.1f}" y="{base + 18}" text-anchor="middle">{label}</text>')
    parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="#c05621" stroke-width="2"/>')
    return "\n".join([*parts, "</svg>", ""])
