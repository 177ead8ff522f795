"""Cases that note what a rank tells of an epoch, beside what its schedule says."""

from __future__ import annotations

import importlib
from itertools import pairwise
from pathlib import Path
from typing import Any

from run_cases import Case

from trisect.schedule.action import Action, Pass, Verb
from trisect.train.loop import Trainer
from trisect.train.recorders import NoRecorder

Event = tuple[str, float, float]


class Log(NoRecorder):
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        self.events.append((name, start, seconds))


def prepare(case: Case, folder: Path) -> None:
    """Do the launcher's part of a case."""
    importlib.import_module(case.get("of", "static_cases")).prepare(case, folder)


def told(case: Case, folder: Path) -> dict[str, Any]:
    """Run two epochs, and give what was told of the second, beside the schedule."""
    module = importlib.import_module(case.get("of", "static_cases"))
    rank = (module.RankOfTimeline if "of" in case else module.RankOfGraph)(case, folder)
    program, log = rank.program, Log()
    rank.epoch(1)
    Trainer(rank.setup, rank.job.options, log).train_epoch(2)
    planned = program._schedule(program._epoch_plan, Pass.TRAIN).ranks[program.mesh.rank]
    done = [Action.parse(name) for name, _, _ in log.events]
    crosses = (Verb.POST, Verb.WAIT)
    computes = (Verb.FORWARD, Verb.AGAIN, Verb.BACKWARD, Verb.REDUCE, Verb.STEP)
    return {
        "told": [name for name, _, _ in log.events],
        "crossed": sorted(action.text for action in done if action.verb in crosses),
        "planned": sorted(action.text for action in planned if action.verb in crosses),
        "computed": sorted(_cells(action for action in done if action.verb in computes)),
        "cells": sorted(_cells(action for action in planned if action.verb in computes)),
        "overlap": max(one[1] + one[2] - other[1] for one, other in pairwise(log.events)),
        "gap": _gap(log.events),
    }


def _cells(actions: Any) -> set[str]:
    """Give the cells that actions compute, each once; on a timeline, chunks are those of states that are handed on."""
    return {f"{action.verb.value} {action.chunk if action.block is None else 0} {action.block}" for action in actions}


def _gap(events: list[Event]) -> float:
    """Give the longest time within a cell of which nothing is told."""
    pieces: dict[str, list[int]] = {}
    for number, (name, _, _) in enumerate(events):
        pieces.setdefault(name, []).append(number)
    longest = 0.0
    for numbers in pieces.values():
        for one, other in pairwise(events[numbers[0] : numbers[-1] + 1]):
            longest = max(longest, other[1] - one[1] - one[2])
    return longest
