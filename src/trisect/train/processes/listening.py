"""What a run tells while it goes on, in this process or from rank 0 to the process that started it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from trisect.settings.writing import to_json
from trisect.train.recorders import Recorder


class Listener(Protocol):
    """An object that is told how far a run is."""

    def say(self, text: str) -> None:
        """Hear a sentence for the user."""

    def watch(self, monitor: str, beside: str = "") -> None:
        """Hear which measure decides which epoch is the best, such as `val.accuracy`; before the first epoch.

        Args:
            beside: the simple rule that is best by this measure, and its value; empty where there is none.
        """

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Hear that one more epoch has ended."""


class NoListener:
    """A listener that ignores everything, for every rank but the first."""

    def say(self, text: str) -> None:
        """Do nothing with a sentence of the run."""

    def watch(self, monitor: str, beside: str = "") -> None:
        """Do nothing with the name of the measure that is watched."""

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Do nothing with an epoch's record."""


class EpochsTo:
    """Tells a listener everything, and a recorder of epochs as well."""

    def __init__(self, recorder: Recorder, listener: Listener) -> None:
        self._recorder, self._listener = recorder, listener
        self.say, self.watch = listener.say, listener.watch

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Hand the record of the epoch on to both."""
        self._recorder.epoch(record)
        self._listener.epoch(record)


class WrittenListener:
    """Writes what it is told to a file, a JSON line each, for a `Relay` in another process."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def say(self, text: str) -> None:
        """Write a line `{"say": …}`."""
        self._write({"say": text})

    def watch(self, monitor: str, beside: str = "") -> None:
        """Write a line `{"watch": …, "beside": …}`."""
        self._write({"watch": monitor, "beside": beside})

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Write a line `{"epoch": …}`."""
        self._write({"epoch": dict(record)})

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(to_json(line) + "\n")
        self._file.flush()


class Relay:
    """Tells a listener what a `WrittenListener` has written since the last look."""

    def __init__(self, path: Path, listener: Listener) -> None:
        self._path, self._listener, self._read = path, listener, 0

    def tell(self) -> None:
        """Hand on what was written since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # the rest of it is still being written
                self._read += len(line)
                told = json.loads(line)
                if "say" in told:
                    self._listener.say(told["say"])
                elif "watch" in told:
                    self._listener.watch(told["watch"], told["beside"])
                else:
                    self._listener.epoch(told["epoch"])
