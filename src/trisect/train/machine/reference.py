"""Reference runs: short trainings whose time is known after them, by which the cost model's own guess is corrected.

A rate (bytes or operations a second) says how fast a machine can be; a layer is slower, since it does more than its
formula counts (norms, gates, softmax, noise), and since an epoch's memory is cold; and ranks take from each other.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trisect.config import TrainOptions
from trisect.data.generators.generate import generate
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.nn.models.source import NamedModel
from trisect.plan.build import schedule_of
from trisect.plan.cluster import Cluster
from trisect.plan.costs import CostModel
from trisect.plan.workload import Workload
from trisect.schedule.action import Action, Verb
from trisect.train.fit import fit
from trisect.train.loop import Trainer
from trisect.train.machine.timed import Timed, low
from trisect.train.processes.memory import peak_rss_bytes
from trisect.train.processes.threads import limited_threads
from trisect.train.recorders import NoRecorder
from trisect.train.run.run_directory import RunDirectory
from trisect.train.setup import Setup
from trisect.train.workloads import workload_of

EPOCHS = 3
FORWARD, BACKWARD = Verb.FORWARD.value, Verb.BACKWARD.value


@dataclass(frozen=True)
class Reference:
    """A training of a few epochs, one of which is not counted: model, data, task and layout."""

    model: str
    options: dict[str, Any]
    data: Graph | Timeline
    task: Any = "node-classification"
    layout: str = ""
    epochs: int = EPOCHS

    def workload(self) -> Workload:
        """Give what the planner knows of it."""
        return workload_of(NamedModel(self.model, dict(self.options), 0), self.data, self.task, TrainOptions())

    def timed(self) -> Timed:
        """Train it, and give the time of an epoch by what ranks did, the first epoch left out.

        It has ranks of its own where it has a layout, and is trained in this process where it has none.
        """
        if not self.layout:
            return self.in_turn([None])[0]
        settings: dict[str, Any] = {"epochs": 1 + self.epochs, "eval_every": 10_000, **self.options}
        with tempfile.TemporaryDirectory(prefix="trisect-reference-") as folder:
            out = Path(folder, "run")
            done = fit(self.model, self.data, self.task, self.layout, out=out, checkpoint_every=None, **settings)
            run = RunDirectory.reopen(out)
            seconds = [float(record["seconds"]) for record in run.metrics()]
            ranks = []
            for rank in run.ranks():
                timer = _Timer()
                for event in run.events(rank):
                    timer.event(**event)
                ranks.append(timer.by_verb())
        return Timed(seconds[1:], tuple(ranks), max(done.summary["memory"]["peak_rss_bytes"]))

    def in_turn(self, threads: Sequence[int | None]) -> list[Timed]:
        """Train it in this process, an epoch with each of these numbers of threads (None: all) after the other."""
        options = TrainOptions(eval_every=10_000, checkpoint_every=None)
        setup = Setup.of(NamedModel(self.model, dict(self.options), 0), self.data, self.task, options)
        trainer, timers = Trainer(setup, options, NoRecorder()), [_Timer() for _ in threads]
        for epoch in range(1, 2 + self.epochs):
            for timer, limit in zip(timers, threads, strict=True):
                trainer.recorder = timer
                with limited_threads(limit):
                    begin = time.perf_counter()
                    trainer.train_epoch(epoch)
                    timer.seconds.append(time.perf_counter() - begin)
        return [Timed(timer.seconds[1:], (timer.by_verb(),), peak_rss_bytes()) for timer in timers]


class _Timer(NoRecorder):
    """Adds up the seconds of actions, by epoch and letter."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._by_epoch: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        if "epoch" in fields and not fields.get("evaluation"):
            letter = name.lstrip("0123456789")[:1]
            self._by_epoch[int(fields["epoch"])][letter] += seconds

    def by_verb(self) -> dict[str, float]:
        later = [sums for epoch, sums in self._by_epoch.items() if epoch > 1]
        letters = {letter for sums in later for letter in sums}
        return {letter: low([sums[letter] for sums in later]) for letter in letters}


def sample_graph(degree: float, width: int, vertices: int) -> Graph:
    """Generate a graph to train on."""
    return Graph.from_record(generate("community", vertices=vertices, degree=degree, features=width))  # type: ignore[arg-type]


def sample_timeline(degree: float, width: int, vertices: int, steps: int = 10) -> Timeline:
    """Generate a timeline to train on."""
    record = generate("evolving", vertices=vertices, steps=steps, degree=degree, features=width)
    smoothing = {"kind": "edge-life", "length": 5}
    return Timeline.from_record(record, smoothing=smoothing)  # type: ignore[arg-type]


def seconds_of(workload: Workload, cluster: Cluster, layout: Layout, letters: str) -> float:
    """Give the seconds of the first rank's actions with these letters, as the cost model has them."""
    plan = workload.plan(layout)
    costs = CostModel(workload, plan, cluster, plan)

    def seconds(action: Action) -> float:
        return costs.compute(0, action) + costs.overhead(0, action)

    return sum(seconds(action) for action in schedule_of(plan).ranks[0] if action.verb.value in letters)
