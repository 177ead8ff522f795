"""What the benchmarks share: timing of candidates turn by turn, each in its own process or all in this one.

Turns are interleaved (a, b, c, a, b, c, …), so that a slow spell of the machine meets every candidate. A process of its
own gives a candidate its own allocator settings and its own peak memory.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from trisect.errors import RunError


@dataclass(frozen=True)
class Candidate:
    """One way to do the work, for `race`.

    Attributes:
        name: how it appears in the table.
        factory: `"package.module:function"`; called in the child with `arguments`, it returns the function to time.
        environment: variables set in the child only.
    """

    name: str
    factory: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Timing:
    """The seconds of each turn, and the most memory that the process ever held (0 where it was not its own)."""

    seconds: tuple[float, ...]
    peak_rss_bytes: int = 0

    @property
    def best(self) -> float:
        """Give the seconds of the fastest turn."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """Give the median of all turns."""
        return statistics.median(self.seconds)

    def to_json(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {
            "best": self.best,
            "median": self.median,
            "seconds": list(self.seconds),
            "peak_rss_bytes": self.peak_rss_bytes,
        }


def python_path() -> str:
    """Return PYTHONPATH for a child that imports this package: its folder, then those of this process."""
    before = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(Path(__file__).parents[1]), *([before] if before else [])])


def geometric_mean(values: Iterable[float]) -> float:
    """The mean that fits ratios."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def interleave(functions: Mapping[str, Callable[[], object]], rounds: int = 5, warmup: int = 1) -> dict[str, Timing]:
    """Times functions of this process turn by turn."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(warmup + rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if turn >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def race(
    candidates: Sequence[Candidate],
    rounds: int = 5,
    warmup: int = 1,
    threads: int = 2,
    report: Callable[[str], object] | None = None,
) -> dict[str, Timing]:
    """Times candidates turn by turn, each in its own process. A candidate that cannot start is left out, and said."""
    say = report or (lambda line: None)
    children: dict[str, _Child] = {}
    try:
        for candidate in candidates:
            child = _Child(candidate, threads)
            failure = child.start()
            if failure is None:
                children[candidate.name] = child
            else:
                child.close()
                say(f"{candidate.name} left out: {failure}")
        for turn in range(warmup + rounds):
            for child in children.values():
                child.turn(keep=turn >= warmup)
        return {name: child.result() for name, child in children.items()}
    finally:
        for child in children.values():
            child.close()


class _Child:
    """A candidate's process, which runs one turn for each line it is sent."""

    def __init__(self, candidate: Candidate, threads: int) -> None:
        self.candidate = candidate
        self.seconds: list[float] = []
        self.peak = 0
        mine = {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": python_path()}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trisect_bench._harness", candidate.factory, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **mine, **candidate.environment},
            text=True,
        )

    def _ask(self, line: str) -> dict[str, Any]:
        stdin, stdout = self.process.stdin, self.process.stdout
        if stdin is None or stdout is None:
            raise RunError(f"the process of {self.candidate.name} has no pipes")
        try:
            stdin.write(line + "\n")
            stdin.flush()
        except BrokenPipeError:
            pass
        answer = stdout.readline()
        if not answer:
            return {"error": f"its process ended with code {self.process.wait()}"}
        result: dict[str, Any] = json.loads(answer)
        return result

    def start(self) -> str | None:
        """Builds the candidate in the child; returns why it cannot run, or None."""
        error = self._ask(json.dumps(dict(self.candidate.arguments))).get("error")
        return None if error is None else str(error)

    def turn(self, keep: bool) -> None:
        """One turn; its time is kept unless it is a warm-up."""
        answer = self._ask("go")
        if "error" in answer:
            raise RunError(f"{self.candidate.name} failed while it was measured: {answer['error']}")
        self.peak = int(answer["peak_rss_bytes"])
        if keep:
            self.seconds.append(float(answer["seconds"]))

    def result(self) -> Timing:
        """Give the seconds of all repetitions and the peak of memory."""
        return Timing(tuple(self.seconds), self.peak)

    def close(self) -> None:
        """End the process, by force where it does not end of itself within ten seconds."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def _serve(factory: str, threads: int, answers: IO[str]) -> None:
    """The child's side of `race`."""
    import torch

    torch.set_num_threads(threads)

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    module, _, name = factory.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)(**json.loads(sys.stdin.readline()))
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})
        return
    say({"ready": True})
    for _ in sys.stdin:
        start = time.perf_counter()
        try:
            function()
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"})
            return
        seconds = time.perf_counter() - start
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        say({"seconds": seconds, "peak_rss_bytes": kilobytes * (1 if sys.platform == "darwin" else 1024)})


if __name__ == "__main__":
    # whatever a candidate prints must not mix with the answers
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _serve(sys.argv[1], int(sys.argv[2]), pipe)
