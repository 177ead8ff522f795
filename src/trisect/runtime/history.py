"""What a chunk reads of chunks that are not done yet: the recipe, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trisect.errors import ConfigError
from trisect.noise import Noise


@dataclass(frozen=True)
class History:
    """How the pipeline over chunks of a static graph deals with staleness.

    Attributes:
        start: `exact`: the first epoch reads no history and fills the buffers; `zero`: they begin empty.
        period: history is fixed for so many epochs, then refreshed; 1: it is what the last epoch left.
        shuffle: the order of chunks is drawn anew in each epoch, the same on all ranks.
        scale: the gradient of rows that other chunks read fresh is multiplied by it.
    """

    start: Literal["exact", "zero"] = "exact"
    period: int = 1
    shuffle: bool = True
    scale: float = 1.0

    def is_exact(self, epoch: int) -> bool:
        """Whether an epoch (1, 2, …) runs over all rows at once."""
        return self.start == "exact" and epoch == 1

    def order(self, chunks: int, seed: int, epoch: int) -> list[int]:
        """In which order chunks go forward."""
        if not self.shuffle:
            return list(range(chunks))
        place = Noise(seed, epoch)
        return sorted(range(chunks), key=lambda chunk: place.at(layer=chunk).key("chunk order"))


PRESETS = {
    "default": History(),
    "gnnpipe": History(start="zero", period=23, shuffle=True, scale=2.0),
}


def preset(name: str) -> History:
    """The recipe of that name."""
    if name not in PRESETS:
        raise ConfigError(f"layout.history is {name!r}; use {', '.join(PRESETS)} or exact.")
    return PRESETS[name]
