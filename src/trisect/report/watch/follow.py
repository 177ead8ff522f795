"""What a run directory says so far, read again and again without reading anything twice."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trisect.errors import CheckpointError
from trisect.train.rules import beside
from trisect.train.run.run_directory import METRICS, PLAN, SUMMARY, read_config
from trisect.train.run.sound_json import open_regular, parse, read_object

_MOST = 16 << 20  # bytes of a line that is still taken for one


class Follower:
    """Reads the lines of `metrics.jsonl` as they come.

    Attributes:
        epochs: how many epochs the run is to have.
        beside: the best simple rule by what is monitored, and its value; empty where there is none.
        records: what was read so far, a record an epoch.
        ended: whether the run has written its summary, at its end or when it was stopped.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        config = read_config(run)
        self.epochs = config.train.epochs
        self.monitor = config.train.monitor
        self.beside = _beside(run, self.monitor)
        self.title = f"{config.model.name}, {config.task.name}, layout {config.layout}"
        self.records: list[Mapping[str, Any]] = []
        self.ended = False
        self._read = 0

    def look(self) -> list[Mapping[str, Any]]:
        """Give the records that came since the last look."""
        fresh: list[Mapping[str, Any]] = []
        with contextlib.suppress(OSError), os.fdopen(open_regular(self.run / METRICS, links=True), "rb") as file:
            if file.seek(0, 2) < self._read:  # a run that went on from a checkpoint has cut its lines
                self.records, self._read = [], 0
            file.seek(self._read)
            while (line := file.readline(_MOST)).endswith(b"\n"):
                self._read += len(line)
                with contextlib.suppress(ValueError):
                    record = parse(line)
                    if isinstance(record, dict) and isinstance(record.get("epoch"), int):
                        fresh.append(record)
        self.records += fresh
        last = self.records[-1]["epoch"] if self.records else 0
        self.ended = (self.run / SUMMARY).is_file() and _epochs(self.run / SUMMARY) == last
        return fresh


def _beside(run: Path, monitor: str | None) -> str:
    with contextlib.suppress(OSError, CheckpointError, AttributeError, TypeError):  # of another version, or damaged
        return beside(read_object(run / PLAN, {}).get("rules") or {}, monitor or "")
    return ""


def _epochs(path: Path) -> int | None:
    try:
        value = read_object(path, {}).get("epochs")
    except (OSError, CheckpointError):
        return None
    return value if isinstance(value, int) else None
