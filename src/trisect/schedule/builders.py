"""Schedules for one process. Those of the cuts stand beside them, one file a cut."""

from __future__ import annotations

from trisect.errors import LayoutError
from trisect.schedule.action import Action, Kind
from trisect.schedule.schedule import Schedule


def single(chunks: int = 1, blocks: int | None = None) -> Schedule:
    """Forward over all chunks (or all blocks of a timeline), backward in exactly the reverse order, one step."""
    work = _work(chunks, blocks)
    forward = [Action(Kind.FORWARD, chunk=chunk, block=block) for chunk, block in work]
    backward = [Action(Kind.BACKWARD, chunk=chunk, block=block) for chunk, block in reversed(work)]
    return Schedule(((*forward, *backward, Action(Kind.STEP)),))


def evaluation(chunks: int = 1, blocks: int | None = None) -> Schedule:
    """Forward alone."""
    return Schedule((tuple(Action(Kind.FORWARD, chunk=chunk, block=block) for chunk, block in _work(chunks, blocks)),))


def _work(chunks: int, blocks: int | None) -> list[tuple[int, int | None]]:
    for name, value in (("chunks", chunks), ("blocks", blocks)):
        if value is not None and value < 1:
            raise LayoutError(f"layout.{name} is {value}; it must be at least 1")
    moments: list[int | None] = [None] if blocks is None else list(range(blocks))
    return [(chunk, block) for block in moments for chunk in range(chunks)]
