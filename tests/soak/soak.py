"""`make soak`: random layouts meet random faults for half an hour, and each run ends with the bytes of its twin.

`python tests/soak/soak.py --seconds 1800 --seed 7` draws runs until the time is over (or `--faults` have come); what
it draws depends on the seed alone. `--only 12` runs the drawn run of that number again. The exit code is 1 where a
run is lost (it does not end, or not as its undisturbed twin; a fault that was drawn did not come), or where a process
or a file is left over.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from cases import Case
from disturbed_runs import Report, disturbed, undisturbed
from drawn_faults import DrawnRun, draw
from leftovers import shared_memory


class Twins:
    """Undisturbed runs, one for each case, made when they are first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[str, Path] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        self.report = Report()

    def of(self, case: Case) -> Path:
        """Give the undisturbed run of a case."""
        with self._lock:
            lock = self._locks.setdefault(case.name, threading.Lock())
        with lock:
            if case.name not in self._runs:
                self._runs[case.name] = undisturbed(case, self._folder / f"twin-{case.name}", self.report)
        return self._runs[case.name]


class Tally:
    """What became of all runs."""

    def __init__(self) -> None:
        self.fired: Counter[str] = Counter()
        self.points: Counter[str] = Counter()
        self.equal = self.lost = self.restarts = self.commands = 0
        self.counted = self.computed = 0
        self.time = self.useful = 0.0
        self.orphans: list[str] = []
        self.left: list[str] = []

    def add(self, report: Report) -> None:
        """Add what became of one run."""
        self.fired.update(kind for kind, _ in report.fired)
        self.points.update(f"{kind} at {at}" for kind, at in report.fired)
        self.lost += bool(report.lost)
        self.equal += not report.lost
        self.commands += report.commands
        self.restarts += report.restarts
        self.counted += report.counted
        self.computed += report.computed
        self.time += report.time
        self.useful += report.useful
        self.add_left(report)

    def add_left(self, report: Report) -> None:
        """Add what a run left over."""
        self.orphans += report.orphans
        self.left += report.left

    @property
    def sound(self) -> bool:
        """Say whether nothing was lost and nothing is left over."""
        return not (self.lost or self.orphans or self.left)

    def lines(self) -> Iterator[str]:
        """Say it in words."""
        faults = sum(self.fired.values())
        yield f"faults fired   {faults}, at {len(self.points)} points"
        for kind, count in sorted(self.fired.items()):
            points = {name.split(" at ", 1)[1]: n for name, n in self.points.items() if name.startswith(f"{kind} at ")}
            yield f"    {kind:<17}{count:>5}   {', '.join(f'{at} {n}' for at, n in sorted(points.items()))}"
        yield f"runs equal     {self.equal}, to the byte of their undisturbed twins"
        yield f"runs lost      {self.lost}"
        yield f"orphans        {len(self.orphans)}"
        yield f"left-over files {len(self.left)}"
        yield f"restarts       {self.restarts} by themselves, {self.commands} commands"
        if self.computed:
            share = f"{self.counted / self.computed:.0%}"
            yield f"epochs         {self.counted} counted of {self.computed} that were begun ({share})"
        if self.time:
            yield (
                f"useful time    {self.useful / self.time:.1%}: {self.useful:.1f} s of epochs that counted, in"
                f" {self.time:.0f} s of runs ({self.time / max(1, faults):.1f} s a fault)"
            )
        for what in (*self.orphans, *self.left):
            yield f"left over: {what}"


def soak(
    runs: Iterable[DrawnRun], folder: Path, *, seconds: float = 1e9, faults: int | None = None, jobs: int = 1
) -> Tally:
    """Disturb drawn runs, `jobs` at a time, until the time is over or so many faults have come.

    Args:
        folder: for the runs; those that are lost stay in it.
    """
    tally, twins, shared = Tally(), Twins(folder), shared_memory()
    begin, source = time.monotonic(), iter(runs)
    waiting: dict[Future[Report], DrawnRun] = {}

    def one(drawn: DrawnRun) -> Report:
        return disturbed(drawn, folder / f"run-{drawn.number}", twins.of(drawn.case))

    with ThreadPoolExecutor(jobs) as pool:
        while True:
            over = time.monotonic() - begin > seconds or (faults is not None and sum(tally.fired.values()) >= faults)
            while not over and len(waiting) < jobs and (drawn := next(source, None)) is not None:
                waiting[pool.submit(one, drawn)] = drawn
            if not waiting:
                break
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                drawn, report = waiting.pop(future), future.result()
                tally.add(report)
                _tell(drawn, report, time.monotonic() - begin)
                if not report.lost:
                    shutil.rmtree(folder / f"run-{drawn.number}")
    tally.add_left(twins.report)
    tally.left += [f"/dev/shm/{name}" for name in sorted(shared_memory() - shared)]
    return tally


def _tell(drawn: DrawnRun, report: Report, passed: float) -> None:
    became = "lost" if report.lost else "equal"
    print(
        f"[{passed:6.0f} s] run {drawn.number}, {drawn.case.config} {drawn.case.layout}: {len(report.fired)} faults,"
        f" {report.restarts} restarts, {became}",
        flush=True,
    )
    if report.lost:
        print("    " + "\n    ".join((*map(str, drawn.faults), f"damages {drawn.damages}", *report.lost)), flush=True)


def main() -> int:
    """Read the arguments, soak, and print what became of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800.0, help="begin no run after so many seconds")
    parser.add_argument("--faults", type=int, default=None, help="begin no run after so many faults")
    parser.add_argument("--seed", type=int, default=None, help="of what is drawn; by default the day")
    parser.add_argument("--jobs", type=int, default=4, help="runs at a time; faults make processes wait, not work")
    parser.add_argument("--only", type=int, default=None, help="the number of one drawn run")
    parser.add_argument("--keep", action="store_true", help="leave the folder where it is")
    asked = parser.parse_args()
    seed = int(time.time() // 86400) if asked.seed is None else asked.seed
    runs: Iterable[DrawnRun] = draw(seed)
    if asked.only is not None:
        runs = [next(drawn for drawn in runs if drawn.number == asked.only)]
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    print(f"seed {seed}, in {folder}", flush=True)
    begin = time.monotonic()
    tally = soak(runs, folder, seconds=asked.seconds, faults=asked.faults, jobs=asked.jobs)
    print(f"seed {seed}, {time.monotonic() - begin:.0f} s, {asked.jobs} runs at a time")
    print("\n".join(tally.lines()))
    if tally.lost:
        print(f"Lost runs are in {folder}; one of them again: python tests/soak/soak.py --seed {seed} --only NUMBER")
    elif not asked.keep:
        shutil.rmtree(folder)
    return 0 if tally.sound else 1


if __name__ == "__main__":
    sys.exit(main())
