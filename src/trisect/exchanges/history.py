"""History: an exchange with an earlier epoch. Chunks read rows of chunks that are not done yet as that epoch left them.

Nothing crosses ranks: each rank keeps the rows of its own columns (`views.history_rows`), and a halo brings those
of other parts. It is the one exchange that is not exact, and only chunks of a static graph need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from trisect.exchanges.base import Exchange
from trisect.exchanges.facts import Facts, LayerFacts
from trisect.schedule.action import Action


@dataclass(frozen=True)
class HistoryUse:
    """How chunks of a static graph read rows of chunks that are not done yet.

    Attributes:
        scale: by how much the gradient of rows read fresh by other chunks is multiplied (technique 3; 1: not at all).
        apart: whether history is more than what the last epoch left: fixed for some (technique 2), or a mean.
    """

    scale: float = 1.0
    apart: bool = False


class History(Exchange):
    """Each layer that reads neighbours has a board, over whose rows of an earlier epoch chunks write their fresh ones.

    A pass begins by deciding which rows its chunks see and whether the rows that it makes become history; when backward
    begins, history is complete and the memory of the rest is free for gradients; the end leaves history alone.
    """

    name: ClassVar[str] = "history"
    # no axis of the mesh
    axis: ClassVar[str] = "epochs"

    @classmethod
    def fits(cls, facts: Facts) -> bool:
        """Say whether chunks read history under these facts."""
        return facts.stale and not facts.timeline

    @classmethod
    def refusal(cls, layer: LayerFacts) -> str | None:
        """A layer that reads no neighbours has nothing to read of other chunks."""
        return None if layer.spatial else "it reads no rows of other vertices"

    def needs_board(self, facts: Facts, layer: int) -> bool:
        """Every layer that reads neighbours reads those of other chunks."""
        return self.fits(facts) and self.refusal(facts.layers[layer]) is None

    def volume(self, facts: Facts, posts: Sequence[tuple[int, Action]], fetched: Sequence[int]) -> dict[str, int]:
        """No byte leaves a rank, since each keeps its own rows."""
        return {}
