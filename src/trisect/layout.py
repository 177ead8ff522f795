"""`Layout`: how the box of work (time × layers × vertices) is cut. A frozen value that is passed along."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Temporal = Literal["auto", "redistribute", "carry", "halo"]
Wire = Literal["float32", "bfloat16", "int8"]
Transport = Literal["auto", "network"]

AXES = ("time", "layer", "vertex")


@dataclass(frozen=True)
class Layout:
    """The degrees of the three cuts and how each is carried out. Ranks are numbered vertex fastest, time slowest.

    Attributes:
        blocks: of a timeline, between saved states; 0 (`auto`): as many as the free memory asks for.
        transport: `auto`: ranks of one host hand rows over in shared memory; `network`: they do not.
    """

    time: int = 1
    layer: int = 1
    vertex: int = 1
    chunks: int = 1
    blocks: int = 1
    temporal: Temporal = "auto"
    wire: Wire = "float32"
    transport: Transport = "auto"

    @property
    def world(self) -> int:
        """How many ranks the layout needs."""
        return self.time * self.layer * self.vertex
