"""One run as the report reads it: its files once, with nothing taken for granted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from trisect.layout import Layout
from trisect.report.events import Event, Spent, recent_epochs, spent
from trisect.report.values import Values
from trisect.train.run.run_directory import RunDirectory

MOST_RANKS = 1024


@dataclass(frozen=True)
class Axes:
    """How many ranks share each axis."""

    time: int = 1
    layer: int = 1
    vertex: int = 1

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return self.time * self.layer * self.vertex

    def of(self, rank: int) -> tuple[int, int, int]:
        """Give a rank's run, stage and part."""
        return rank // (self.vertex * self.layer), rank // self.vertex % self.layer, rank % self.vertex


@dataclass(frozen=True, eq=False)
class RunView:
    """The files of a run.

    Attributes:
        records: the epochs, as metrics.jsonl has them; those without a number are left out.
        summary: nothing where the run has not ended.
    """

    name: str
    config: Mapping[str, Any]
    records: Sequence[Values]
    summary: Values
    plan: Values
    scores: Values
    directory: RunDirectory

    @classmethod
    def of(cls, directory: RunDirectory) -> RunView:
        """Read a run directory; a file that is no JSON is refused in one sentence."""
        records = [Values(record) for record in directory.metrics()]
        return cls(
            name=directory.path.resolve().name,
            config=directory.config.resolved(),
            records=[record for record in records if record.at("epoch").number() is not None],
            summary=Values(directory.summary()),
            plan=Values(directory.plan()),
            scores=Values(directory.scores()),
            directory=directory,
        )

    @property
    def finished(self) -> bool:
        """Whether the run has ended, and was not stopped."""
        return bool(self.summary) and not self.summary.at("stopped")

    @cached_property
    def axes(self) -> Axes:
        """Give the degrees of the layout as it was run, or as it was asked for; one rank where there are too many."""
        for plain in (self.summary.at("layout"), Values(self.config.get("layout"))):
            counts = [plain.at(axis).count() for axis in ("time", "layer", "vertex")]
            if all(counts):
                axes = Axes(*(count or 1 for count in counts))
                return axes if axes.world <= MOST_RANKS else Axes()
        return Axes()

    @cached_property
    def _read(self) -> list[tuple[dict[int, list[Event]], int]]:
        """Of each rank, the events of its last epochs by epoch, and how many lines of its file are none."""
        ranks = self.directory.ranks()
        if ranks != list(range(self.axes.world)):
            return []
        return [recent_epochs(self.directory.path / "events" / f"rank-{rank}.jsonl", len(ranks)) for rank in ranks]

    @property
    def damaged_events(self) -> int:
        """Count the lines that are no events, in what was read of the events of all ranks."""
        return sum(damaged for _, damaged in self._read)

    @cached_property
    def epochs(self) -> dict[int, list[list[Event]]]:
        """Give the events of the last epochs that all ranks trained to their end: epoch → rank → events."""
        done = {record.at("epoch").count() for record in self.records}
        events = [own for own, _ in self._read]
        common = set.intersection(*(set(own) for own in events)) if events else set()
        return {epoch: [own[epoch] for own in events] for epoch in sorted(common & done if done else common) if epoch}

    @property
    def mesh(self) -> Layout:
        """Give the axes as a layout."""
        return Layout(time=self.axes.time, layer=self.axes.layer, vertex=self.axes.vertex)

    @cached_property
    def spent(self) -> tuple[list[Spent], int]:
        """Give where the seconds of an epoch went on each rank, the mean of the last epochs, and of how many."""
        chosen = [epoch for epoch in self.epochs if epoch > 1] or list(self.epochs)
        each = [spent(self.epochs[epoch], self.mesh) for epoch in chosen]
        names = [field.name for field in fields(Spent)]
        mean = [
            Spent(**{name: sum(getattr(own[rank], name) for own in each) / len(each) for name in names})
            for rank in range(self.axes.world if each else 0)
        ]
        return mean, len(chosen)

    def computing(self) -> float | None:
        """Give the share of all ranks' time in which they compute."""
        ranks, _ = self.spent
        total = sum(rank.computing + rank.waiting + rank.exchanging + rank.other for rank in ranks)
        return sum(rank.computing for rank in ranks) / total if total else None

    def points(self, *path: str) -> list[tuple[float, float]]:
        """Give (epoch, value) of what lies under a path of the records."""
        pairs = ((record.at("epoch").number(), record.at(*path).number()) for record in self.records)
        return [(epoch, value) for epoch, value in pairs if epoch is not None and value is not None]
