"""Exact passes that measure splits: the task's measures, and measures of the user's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from trisect.errors import RunError
from trisect.tasks.base import SPLITS, Split, Statistics
from trisect.tasks.curves import summarise as summarise_scores
from trisect.tasks.metrics import defined
from trisect.train.recorders import Recorder
from trisect.train.setup import Setup

SILENCE = 5.0  # seconds between two lines of a long evaluation
Metric = Callable[[Tensor, Tensor], Any]
_OUT, _TARGET = "own.out", "own.y"


class Evaluation:
    """Measures splits with the parameters as they are; nothing is dropped.

    Args:
        metrics: the user's own, called on all ranks with the outputs and targets of all rows of a split.
        say: takes sentences for the user, such as how far a long evaluation is.
    """

    def __init__(
        self, setup: Setup, metrics: Mapping[str, Metric], recorder: Recorder, say: Callable[[str], None]
    ) -> None:
        self.task, self.program = setup.task, setup.program
        self._metrics, self._recorder, self._say = metrics, recorder, say

    def between(self, monitor: str) -> tuple[Split, ...]:
        """Return the splits to measure between epochs: all where that costs little, else validation and the monitored
        one.
        """
        if self.task.cheap:
            return SPLITS
        return tuple(split for split in SPLITS if split in ("val", monitor.partition(".")[0]))

    def measure(self, splits: tuple[Split, ...], epoch: int) -> dict[str, dict[str, Any]]:
        """Return the measures of these splits."""
        measured, _ = self._pass(splits, epoch)
        return {split: self._named(measured[split]) for split in splits}

    def measure_last(self, epoch: int, best: int) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
        """Return the measures at the end, and what a report draws of the scores on val and test.

        Args:
            best: the epoch whose parameters are measured.
        """
        splits = self.task.final
        if not self.task.cheap:
            self._say(f"Measuring {', '.join(splits)} with the parameters of epoch {best}.")
        counted = tuple(split for split in splits if split != "train")
        measured, scores = self._pass(splits, epoch, counted)
        pictures = {split: summarise_scores(scores[split]) for split in counted}
        return (
            {split: self._named(measured[split]) for split in splits},
            {split: picture for split, picture in pictures.items() if picture is not None},
        )

    def _named(self, statistics: Statistics) -> dict[str, Any]:
        """Return the measures of a split by name, the user's own behind the task's."""
        out, y = statistics.rows.pop(_OUT, None), statistics.rows.pop(_TARGET, None)
        measures = defined(self.task.metrics(statistics))
        if out is not None and y is not None:
            measures |= {name: _value(name, metric, out, y) for name, metric in self._metrics.items()}
        return defined(measures)

    def _pass(
        self, splits: tuple[Split, ...], epoch: int, counted: tuple[Split, ...] = ()
    ) -> tuple[dict[Split, Statistics], dict[Split, Statistics]]:
        """Run an exact pass; return what was measured of `splits` on all ranks, and the scores of `counted`."""
        task, decoder = self.program.task, self.program.decoder
        measured = {split: Statistics() for split in splits}
        scores = {split: Statistics() for split in counted}
        steps = range(min(task.steps(s).start for s in splits), max(task.steps(s).stop for s in splits))
        outputs = self.program.outputs(steps, observer=self._recorder, epoch=epoch, evaluation=True)
        with torch.no_grad():
            for first, frames in self._step_by_step(outputs, steps):
                for split in splits:
                    here = range(max(first, task.steps(split).start), min(first + len(frames), task.steps(split).stop))
                    if not here:
                        continue
                    if split in counted:
                        part, counts = task.measure_and_count(decoder, frames, first, split)
                        scores[split] = scores[split].merge(counts)
                    else:
                        part = task.measure(decoder, frames, first, split)
                    measured[split] = measured[split].merge(part)
                    for out, y in task.scored(decoder, frames, first, split) if self._metrics else ():
                        measured[split] = measured[split].merge(Statistics(rows={_OUT: out, _TARGET: y}))
        return self.program.merged(measured), self.program.merged(scores) if counted else {}

    def _step_by_step(self, outputs: Iterable[tuple[int, Tensor]], steps: range) -> Iterator[tuple[int, Tensor]]:
        """Yield outputs as they come; of tasks whose measures take long a step at a time, and say now and then how far
        they are.
        """
        last = time.monotonic()
        for first, frames in outputs:
            if self.task.cheap:
                yield first, frames
                continue
            for position in range(len(frames)):
                yield first + position, frames[position : position + 1]
                if time.monotonic() - last > SILENCE:
                    last = time.monotonic()
                    self._say(f"Measured step {first + position - steps.start + 1} of {len(steps)}.")


def _value(name: str, metric: Metric, out: Tensor, y: Tensor) -> float:
    try:
        return float(metric(out, y))
    except Exception as error:
        raise RunError(f"metric {name} failed: {type(error).__name__}: {error}.") from error
