"""Draw the pictures of docs/images that no run makes: the box of work, and how each axis cuts it.

python docs/pictures.py
"""

from __future__ import annotations

from pathlib import Path

IMAGES = Path(__file__).with_name("images")
COLOURS = ("#3b7dd8", "#e08a3c", "#4aa564", "#b0588f")

# a corner of the box in the plane: vertices go right, layers up, time back
ACROSS, UP, BACK = (150.0, 0.0), (0.0, -110.0), (62.0, -38.0)


def _at(origin: tuple[float, float], vertices: float, layers: float, time: float) -> str:
    x = origin[0] + vertices * ACROSS[0] + layers * UP[0] + time * BACK[0]
    y = origin[1] + vertices * ACROSS[1] + layers * UP[1] + time * BACK[1]
    return f"{x:.1f},{y:.1f}"


def _lighter(colour: str, share: float) -> str:
    """Mix a colour with white."""
    parts = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * share):02x}" for part in parts)


def _block(origin: tuple[float, float], low: tuple[float, ...], high: tuple[float, ...], colour: str) -> str:
    """Draw the three faces of a block that are seen: front, top and right, each lighter than the one before."""
    (v0, l0, t0), (v1, l1, t1) = low, high
    faces = (
        (((v0, l0, t0), (v1, l0, t0), (v1, l1, t0), (v0, l1, t0)), 0.0),
        (((v0, l1, t0), (v1, l1, t0), (v1, l1, t1), (v0, l1, t1)), 0.35),
        (((v1, l0, t0), (v1, l0, t1), (v1, l1, t1), (v1, l1, t0)), 0.55),
    )
    return "".join(
        f'<polygon points="{" ".join(_at(origin, *corner) for corner in corners)}" fill="{_lighter(colour, share)}" '
        f'stroke="#ffffff" stroke-width="1.2"/>'
        for corners, share in faces
    )


def _cut(origin: tuple[float, float], vertex: int, layer: int, time: int, gap: float = 0.1) -> str:
    """Draw a box in parts, the far ones first, each rank in a colour of its own."""
    drawn = []
    for t in reversed(range(time)):
        for s in range(layer):
            for p in range(vertex):
                places = ((p, vertex), (s, layer), (t, time))
                low = [place / degree + (gap / 2 if place else 0) for place, degree in places]
                high = [(place + 1) / degree - (gap / 2 if place + 1 < degree else 0) for place, degree in places]
                rank = (t * layer + s) * vertex + p
                drawn.append(_block(origin, tuple(low), tuple(high), COLOURS[rank % len(COLOURS)]))
    return "".join(drawn)


def box() -> str:
    """Draw the box uncut, cut by each axis, and cut by two."""
    panels = (
        ("one device", (1, 1, 1)),
        ("vertex=2", (2, 1, 1)),
        ("layer=2", (1, 2, 1)),
        ("time=2", (1, 1, 2)),
        ("vertex=2,layer=2", (2, 2, 1)),
    )
    width = 40 + 250 * len(panels)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 260" width="{width}" role="img" '
        'aria-label="The box of work, vertices by layers by time, whole and cut along each axis" '
        'font-family="system-ui, sans-serif" font-size="14">',
        f'<rect width="{width}" height="260" rx="10" fill="#ffffff"/>',
    ]
    for number, (text, degrees) in enumerate(panels):
        origin = (60.0 + 250 * number, 190.0)
        lines.append(_cut(origin, *degrees))
        lines.append(
            f'<text x="{origin[0] + 75:.0f}" y="240" text-anchor="middle" fill="#222222" '
            f'font-family="ui-monospace, monospace">{text}</text>'
        )
    x, y = 60.0, 190.0
    lines.append(f'<text x="{x + 75:.0f}" y="{y + 18:.0f}" text-anchor="middle" fill="#555555">vertices</text>')
    lines.append(
        f'<text x="{x - 10:.0f}" y="{y - 55:.0f}" text-anchor="middle" fill="#555555" '
        f'transform="rotate(-90 {x - 10:.0f} {y - 55:.0f})">layers</text>'
    )
    lines.append(
        f'<text x="{x + 195:.0f}" y="{y - 8:.0f}" text-anchor="middle" fill="#555555" '
        f'transform="rotate(-31 {x + 195:.0f} {y - 8:.0f})">time</text>'
    )
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / "box.svg").write_text(box(), encoding="utf-8")
