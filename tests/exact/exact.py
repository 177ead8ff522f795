"""`make exact`: random models, tasks, graphs and layouts train three steps on ranks and in one process, alike.

`python tests/exact/exact.py --seconds 600 --seed 7` draws cases until the time is over, or until there are `--cases`.
What is drawn depends on the seed alone. A failing case prints the command that repeats it: `--case 7:123`, which takes
a case as JSON too. The exit code is 1 where a case failed: a number differs from that of one process by more than
1e-10, the bytes that crossed are not those of the formula, or a process failed or hung; it is 2 where a `--case` is
refused.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Protocol

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "ranks"))
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRISECT_POISON", "1")  # freed memory of the pool is filled with NaN

from compared_runs import differences, refusal
from drawn_cases import draw
from exact_case import ExactCase
from rank_pool import RankPool
from rank_work import Outcome
from thresholds import THRESHOLDS

Named = tuple[str, ExactCase]


def drawn(seed: int) -> Iterator[Named]:
    """All cases of a seed, with the name by which each is drawn again."""
    for number in count():
        yield f"{seed}:{number}", draw(seed, number)


def named(text: str) -> Named:
    """A case by its name SEED:NUMBER, or by its JSON."""
    if text.startswith("{"):
        return text, ExactCase.parse(text)
    seed, number = map(int, text.split(":"))
    return text, draw(seed, number)


def command(name: str) -> str:
    """The command that repeats a case."""
    return f"python tests/exact/exact.py --case {shlex.quote(name)}"


class Tally:
    """What became of all cases."""

    def __init__(self) -> None:
        self.equal = 0
        self.failed: list[str] = []
        self.refused: Counter[str] = Counter()
        self.ranks: Counter[int] = Counter()
        self.models: Counter[str] = Counter()
        self.consulted: set[str] = set()

    def lines(self) -> Iterator[str]:
        """Say it in words."""
        trained = self.equal + len(self.failed)
        refused = sum(self.refused.values())
        yield f"cases equal    {self.equal}, as in one process to 1e-10"
        yield f"cases failed   {len(self.failed)}"
        yield f"cases refused  {refused} ({refused / max(1, refused + trained):.1%} of those drawn)"
        for sentence, times in self.refused.most_common(5):
            yield f"    {times:>5}   {sentence[:150]}"
        yield f"ranks          {', '.join(f'{size}: {n}' for size, n in sorted(self.ranks.items()))}"
        yield f"models         {', '.join(f'{name} {n}' for name, n in sorted(self.models.items()))}"
        missed = sorted(THRESHOLDS.keys() - self.consulted)
        yield f"thresholds     {len(THRESHOLDS) - len(missed)} of {len(THRESHOLDS)} read while they were lowered"
        if missed:
            yield f"    not {', '.join(missed)}"
        for name in self.failed:
            yield f"failed: {command(name)}"


class Pool(Protocol):
    """Trains a case in one process and on ranks."""

    def run(self, case: ExactCase) -> tuple[Outcome, list[Outcome]]:
        """What one process found, and what each rank did."""


def compare(cases: Iterable[Named], pool: Pool, *, seconds: float = 1e9, verbose: bool = False) -> Tally:
    """Train cases on ranks and in one process until the time is over; tell each that fails when it does."""
    tally, begin = Tally(), time.monotonic()
    for name, case in cases:
        if time.monotonic() - begin > seconds:
            break
        started = time.monotonic()
        alone, ranks = pool.run(case)
        tally.consulted.update(*(rank.consulted for rank in ranks))
        said, sentence = differences(case, alone, ranks), refusal(alone, ranks)
        if verbose:
            became = "failed" if said else sentence or "equal"
            print(f"{name[:40]} {time.monotonic() - started:5.2f} s, {case.ranks} ranks: {became}", flush=True)
        if not said and sentence:
            tally.refused[sentence] += 1
            continue
        tally.ranks[case.ranks] += 1
        tally.models[case.model["name"]] += 1
        if not said:
            tally.equal += 1
            continue
        tally.failed.append(name)
        print(f"\n{command(name)}\n    {case.text()}", flush=True)
        print("    " + "\n".join(said).replace("\n", "\n    "), flush=True)
    return tally


def main() -> int:
    """Read the arguments, compare, and print what became of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no case after so many seconds")
    parser.add_argument("--cases", type=int, default=None, help="draw so many cases, however long they take")
    parser.add_argument("--seed", type=int, default=None, help="of what is drawn; by default the day")
    parser.add_argument("--case", action="append", default=[], help="SEED:NUMBER, or a case as JSON; may be repeated")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds after which a case hangs")
    parser.add_argument("--verbose", action="store_true", help="tell every case")
    asked = parser.parse_args()
    seed = int(time.time() // 86400) if asked.seed is None else asked.seed
    cases: Iterable[Named] = map(named, asked.case) if asked.case else drawn(seed)
    seconds = asked.seconds
    if asked.cases is not None or asked.case:
        cases, seconds = islice(cases, asked.cases), 1e9
    begin = time.monotonic()
    if not asked.case:
        print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="exact-") as folder, RankPool(Path(folder), asked.patience) as pool:
        tally = compare(cases, pool, seconds=seconds, verbose=asked.verbose or bool(asked.case))
    print(f"{time.monotonic() - begin:.0f} s" if asked.case else f"seed {seed}, {time.monotonic() - begin:.0f} s")
    print("\n".join(tally.lines()))
    if tally.failed:
        return 1
    return 2 if asked.case and tally.refused else 0


if __name__ == "__main__":
    sys.exit(main())
