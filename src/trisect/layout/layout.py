"""`Layout` is how the box of work is cut: the degrees of the three cuts, and how each is carried out."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ValidationInfo
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticKnownError

from trisect.errors import LayoutError
from trisect.layout.history import Exact, History, HistoryField
from trisect.settings.section import CLOSED, Flag, Positive, section

# The words by which `spatial` and `temporal` ask for an exchange; each class of `trisect.views.exchange` adds its own.
EXCHANGES = {"spatial": ["auto", "halo", "redistribute"], "temporal": ["auto", "redistribute", "carry", "halo"]}
Wire = Literal["float32", "bfloat16", "int8"]
TransportKind = Literal["auto", "network"]
Partitioner = Literal["metis", "hypergraph", "stream"]
Auto = Literal["auto"]

AXES = ("time", "layer", "vertex")


def _exchange(value: Any, field: ValidationInfo) -> Any:
    words = EXCHANGES[field.field_name or ""]
    if isinstance(value, str) and value in words:
        return value
    raise PydanticKnownError("literal_error", {"expected": ", ".join(map(repr, words))})


def _blocks(value: Any) -> Any:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError(f"is {value!r}, but must be a whole number of at least 1, or auto")


def _pack(value: Any) -> Any:
    if value == "auto" or isinstance(value, bool):
        return value
    raise ValueError(f"is {value!r}, but must be true, false or auto")


@section("layout", LayoutError)
@dataclass(frozen=True, config=CLOSED)
class Layout:
    """The degrees of the three cuts and how each is carried out. Ranks are numbered vertex fastest, time slowest.

    `str(layout)` is a text such as `layer=2,vertex=2`, which `parse_layout` reads back to an equal layout.

    Attributes:
        auto: the choice is left to the planner.
        time: how many runs of snapshots a timeline is cut into, a rank each.
        layer: how many stages the layers are cut into.
        vertex: how many parts the vertices are cut into.
        chunks: how many chunks of vertices move through the pipeline one after another.
        blocks: how many blocks a timeline is cut into to save memory, or `auto`: as many as the free memory asks for.
        temporal: how state crosses ranks along time.
        spatial: how rows cross parts: a halo, or redistributed by feature columns.
        recompute: cells are computed again in backward, so that their activations need not be kept.
        pack: activations wait for backward without their zeros; `auto`: where chunks read history.
        history: what a chunk reads of chunks that are not done yet, or `exact`: chunks read no history.
        wire: how numbers are written when they cross ranks.
        transport: what carries rows between ranks of one host: `auto`, shared memory where that is possible, or
            `network`.
        partition: what cuts the vertices: METIS (`stream` where that would take more memory than is free), `stream` in
            memory that is linear in the vertices, or of a timeline Mt-KaHyPar on the hypergraph of its snapshots.
    """

    auto: Flag = False
    time: Positive = 1
    layer: Positive = 1
    vertex: Positive = 1
    chunks: Positive = 1
    blocks: Annotated[int | Auto, BeforeValidator(_blocks)] = 1
    temporal: Annotated[str, BeforeValidator(_exchange)] = "auto"
    spatial: Annotated[str, BeforeValidator(_exchange)] = "auto"
    recompute: Flag = False
    pack: Annotated[bool | Auto, BeforeValidator(_pack)] = "auto"
    history: Annotated[History | Exact, HistoryField] = History()
    wire: Wire = "float32"
    transport: TransportKind = "auto"
    partition: Partitioner = "metis"

    @property
    def world(self) -> int:
        """Tell how many ranks the layout needs."""
        return self.time * self.layer * self.vertex

    @property
    def block_count(self) -> int:
        """Tell how many blocks there are, once that is chosen."""
        if isinstance(self.blocks, str):
            raise LayoutError("internal error: layout.blocks is auto where its number is needed")
        return self.blocks

    @property
    def recipe(self) -> History | None:
        """Give the recipe for history; None where nothing is stale: one chunk, or `exact`."""
        return self.history if isinstance(self.history, History) and self.chunks > 1 else None

    def plain(self) -> dict[str, Any]:
        """Give every setting but `auto` as plain data; a recipe that is used with all its parts."""
        plain = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "auto"}
        if isinstance(self.history, History):
            plain["history"] = self.history.short() if self.recipe is None else self.history.parts()
        return plain

    def __str__(self) -> str:
        from trisect.layout.text import layout_text  # which makes layouts

        return layout_text(self)
