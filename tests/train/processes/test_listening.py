"""What rank 0 writes is told by the process that started it, once and in order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trisect.train.processes.listening import Relay, WrittenListener


class Heard:
    def __init__(self) -> None:
        self.told: list[Any] = []

    def say(self, text: str) -> None:
        self.told.append(text)

    def epoch(self, record: Mapping[str, Any]) -> None:
        self.told.append(record["epoch"])


def test_everything_is_told_once_and_in_order(tmp_path: Path) -> None:
    heard, path = Heard(), tmp_path / "told.jsonl"
    relay = Relay(path, heard)
    relay.tell()
    written = WrittenListener(path)
    written.say("Continuing after epoch 3.")
    written.epoch({"epoch": 4, "loss": 0.5})
    relay.tell()
    relay.tell()
    assert heard.told == ["Continuing after epoch 3.", 4]
    with path.open("a") as file:  # half a line waits for its end
        file.write('{"epoch": {"ep')
        file.flush()
        relay.tell()
        assert heard.told == ["Continuing after epoch 3.", 4]
        file.write('och": 5}}\n')
    relay.tell()
    assert heard.told == ["Continuing after epoch 3.", 4, 5]
