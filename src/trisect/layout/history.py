"""What a chunk reads of chunks that are not done yet: the recipe, as a value.

How the default was chosen: 15 variants on Cora and a citation-like graph (some on squirrel_filtered), 32-layer GCNII,
32 chunks, one to three seeds each, by exact training loss and test accuracy. Few runs; the figures are in
docs/benchmarks.md, "History", and the grid of all graphs is `trisect bench history`.
- blend 0.8: the history of the last epoch alone stays consistent with exact inference but fits more slowly (2.7 and 3.6
  points behind at epoch 80 of the citation-like graph). Fixed for several epochs it fits faster, and can leave exact
  inference (on Cora with a period of 5 the exact loss was twice the stale one in one of two seeds). A running mean
  came within 0.004 of the exact run's loss on the citation-like graph; on Cora it was up to 0.11 above it.
  0.9 had a lower exact loss than 0.8 in 5 of 5 runs; 0.8 was taken for the test accuracy of one Cora seed.
- scale 1: with 2 the exact loss was higher in 3 of 3 pairs on the citation-like graph, lower in one on Cora.
- An exact first epoch instead of empty buffers, which costs one epoch, was taken over from earlier runs.
- Orders in reversed pairs and a scale by row from the weight that was read fresh were worse on the citation-like graph
  (one seed); an exact pass that refreshes history every ten epochs gained little (two seeds).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, Any, Literal

from pydantic import Field, GetCoreSchemaHandler, ValidatorFunctionWrapHandler
from pydantic.dataclasses import dataclass
from pydantic_core import CoreSchema, core_schema

from trisect.errors import ConfigError
from trisect.settings.nearest import unknown_value
from trisect.settings.section import CLOSED, Flag, Fraction, NotNegative, Positive, PositiveNumber, section

Exact = Literal["exact"]
_NotNegativeNumber = Annotated[float, Field(ge=0, strict=True)]


@section("layout.history", ConfigError)
@dataclass(frozen=True, config=CLOSED)
class History:
    """How the pipeline over chunks of a static graph deals with staleness.

    Attributes:
        start: `exact`: the first epoch reads no history and fills the buffers; `zero`: they begin empty.
        period: history is fixed for so many epochs, then refreshed; 1: it is what the last epoch left.
        blend: the weight of what history was before when an epoch's rows become history; 0: they replace it. A mean
            over some epochs has less of each epoch's dropout noise in it, and moves steadily.
        shuffle: the order of chunks is drawn anew in each epoch, the same on all ranks.
        scale: the gradient of rows that other chunks read fresh is multiplied by it.
        refresh: before every so many epochs an exact pass forward fills the buffers; 0: never.
        guard: before every so many epochs the exact training loss is computed, to be compared with the stale one;
            0: never.
        margin: how far the exact loss may lie above the stale one, as a fraction of it, before the guard steps in.
    """

    start: Literal["exact", "zero"] = "exact"
    period: Positive = 1
    blend: Fraction = 0.8
    shuffle: Flag = True
    scale: PositiveNumber = 1.0
    refresh: NotNegative = 0
    guard: NotNegative = 10
    margin: _NotNegativeNumber = 0.25

    def is_exact(self, epoch: int, first: int = 1) -> bool:
        """Tell whether an epoch (1, 2, …) runs over all rows at once; `first` is the one that history begins with."""
        return self.start == "exact" and epoch == first

    def keeps(self, epoch: int, first: int = 1) -> bool:
        """Tell whether what the epoch leaves is history from then on."""
        return epoch % self.period == 0 or self.is_exact(epoch, first)

    @property
    def apart(self) -> bool:
        """Tell whether history is kept apart from the rows of the epoch."""
        return self.period > 1 or self.blend > 0.0

    def refreshes(self, epoch: int) -> bool:
        """Tell whether an exact pass comes before the epoch."""
        return self.refresh > 0 and epoch % self.refresh == 0

    def order(self, chunks: int, seed: int, epoch: int) -> list[int]:
        """Give the order in which chunks go forward."""
        if not self.shuffle:
            return list(range(chunks))
        from trisect.noise import Noise  # torch comes with it, and a configuration is read without

        noise = Noise(seed, epoch)
        return sorted(range(chunks), key=lambda chunk: noise.at(layer=chunk).key("chunk order"))

    def parts(self) -> dict[str, Any]:
        """Give all fields as plain values, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def short(self) -> str | dict[str, Any]:
        """Give the name of the preset that it is; or else the preset that it is most like (where that is not
        the default), and what differs from it."""
        name, base = min(PRESETS.items(), key=lambda preset: len(self._differences(preset[1])))
        parts = self._differences(base)
        if not parts:
            return name
        return parts if name == "default" else {"preset": name, **parts}

    def _differences(self, base: History) -> dict[str, Any]:
        usual = base.parts()
        return {name: value for name, value in self.parts().items() if value != usual[name]}

    def tightened(self, level: int, chunks: int) -> tuple[History | None, int, str]:
        """Give the recipe and the number of chunks after `level` steps towards exact training, and a description.

        Level 0 is the recipe itself; 1 an exact epoch and from there on the history of the last epoch; 2 the same with
        a quarter of the chunks, where that is more than one; then exact (None).
        """
        if level == 0:
            return self, chunks, "as configured"
        again = replace(self, start="exact", period=1, blend=0.0)
        steps: list[tuple[History | None, int, str]] = [
            (again, chunks, "an exact epoch, then the last epoch's history")
        ]
        fewer = coarser(chunks)
        if fewer > 1:
            steps.append((again, fewer, f"an exact epoch, then {fewer} chunks instead of {chunks}"))
        steps.append((None, 1, "exact epochs, without history"))
        return steps[min(level, len(steps)) - 1]


MERGED = 4


def coarser(chunks: int) -> int:
    """Tell how many chunks there are when each `MERGED` consecutive ones become one."""
    return -(-chunks // MERGED)


PRESETS = {
    "default": History(),
    # what rows outside a step were when their own step came, at most an epoch ago
    "steps": History(blend=0.0),
    "gnnpipe": History(start="zero", period=23, blend=0.0, shuffle=True, scale=2.0, guard=0),
}


def read_history(value: Any) -> Any:
    """Give a recipe by name, or the parts of one (`preset` and what differs from it); `exact` stays `exact`.

    Raises:
        ValueError: as pydantic's validators do; the sentence begins after the name of the setting.
    """
    if isinstance(value, str):
        value = {"preset": value}
    if not isinstance(value, Mapping):
        return value
    parts = dict(value)
    name = parts.pop("preset", "default")
    if name == "exact" and parts:
        raise ValueError(f"is exact and has a {next(iter(parts))}; leave one of them out")
    if name == "exact":
        return name
    if name not in PRESETS:
        raise ValueError(unknown_value("", str(name), (*PRESETS, "exact")).strip(" ."))
    return {**PRESETS[name].parts(), **parts}


class HistoryField:
    """How pydantic reads the field `history` of a layout: as `read_history` does, and then as a `History`."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
            parts = read_history(value)
            return parts if parts == "exact" else validate(parts)

        # a union of both would name its members in every error
        return core_schema.no_info_wrap_validator_function(
            read,
            handler.generate_schema(History),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value),
        )
