"""Accuracy on real graphs beside what was published, by `trisect train` and the configurations in examples/accuracy.

    python benchmarks/accuracy.py --data-dir DIR                      all of them, three runs each
    python benchmarks/accuracy.py cora-gcn --seeds 5 --json out.json  one of them, five runs

Run k has train.seed=k; a data set with several splits also takes its split k. The epoch is chosen on validation; the
test value is that of this epoch. The exit code is 1 where a mean misses its goal.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trisect.config import load_config
from trisect.train.from_config import resolve
from trisect.train.run.run_directory import CONFIG, SUMMARY

CONFIGS = Path(__file__).resolve().parents[1] / "examples" / "accuracy"
LOWER_IS_BETTER = ("loss", "mse", "rmse", "mae")


@dataclass(frozen=True)
class Goal:
    """What a measure of the test split should reach on average, and what the authors of the model report."""

    measure: str
    goal: float | None = None
    published: float | None = None


@dataclass(frozen=True)
class Case:
    """A configuration and what is expected of it.

    Attributes:
        name: of the file in examples/accuracy.
        splits: whether run k takes split k of the data.
    """

    name: str
    goals: tuple[Goal, ...]
    splits: bool = False

    @property
    def config(self) -> Path:
        return CONFIGS / f"{self.name}.yaml"

    def settings(self, seed: int) -> list[str]:
        """What run number `seed` changes in the configuration."""
        return [f"train.seed={seed}", *([f"data.split={seed}"] if self.splits else [])]


STATIC = (
    Case("cora-gcn", (Goal("accuracy", 0.81, 0.815),)),
    Case("cora-gcnii", (Goal("accuracy", 0.85, 0.855),)),
    Case("citeseer-gcnii", (Goal("accuracy", 0.73, 0.734),)),
    Case("pubmed-gcnii", (Goal("accuracy", 0.798, 0.803),)),
    Case("minesweeper-resgcn", (Goal("auc", 0.93, 0.9351),), splits=True),
    Case("minesweeper-gcn", (Goal("auc", 0.95, 0.9786),), splits=True),
    Case("tolokers-resgcn", (Goal("auc", 0.82, 0.8243),), splits=True),
)
# published: EvolveGCN-O's row in the table of its paper; the other sets have no published value for this task;
# bitcoin-alpha-cdgcn is to be better than our EvolveGCN-O
DYNAMIC = (
    Case("uci-messages-evolvegcn", (Goal("map", 0.027, 0.027), Goal("mrr", 0.138, 0.1379))),
    Case("bitcoin-otc-evolvegcn", (Goal("mrr", 0.0968, 0.0968),)),
    Case("bitcoin-alpha-evolvegcn", (Goal("mrr", 0.1185, 0.1185),)),
    Case("bitcoin-alpha-cdgcn", (Goal("mrr", 0.1872, 0.1185),)),
    Case("amlsim-cdgcn", (Goal("f1", 0.674), Goal("auc", 0.80)), splits=True),
    Case("bitcoin-otc-edges", (Goal("auc", 0.6), Goal("f1_macro", 0.48))),
    Case("england-covid-regression", (Goal("mae", 0.57),)),
)
CASES = {case.name: case for case in (*STATIC, *DYNAMIC)}


@dataclass(frozen=True)
class Outcome:
    """One measure of one configuration over its runs."""

    name: str
    measure: str
    values: tuple[float, ...]
    goal: float | None
    published: float | None
    epochs: tuple[int, ...]
    seconds: float

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float:
        """Of the sample; 0 for one run."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    @property
    def reached(self) -> bool:
        if self.goal is None:
            return True
        return self.mean <= self.goal if self.measure in LOWER_IS_BETTER else self.mean >= self.goal

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "mean": self.mean, "deviation": self.deviation, "reached": self.reached}


def find_cases(names: Sequence[str]) -> list[Case]:
    """The named ones, or all; a configuration without an entry above is measured by what chooses its best epoch."""
    present = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
    ordered = [*(name for name in CASES if name in present), *(name for name in present if name not in CASES)]
    unknown = [name for name in names if name not in present]
    if unknown:
        raise SystemExit(f"there is no configuration {unknown[0]} in {CONFIGS}; known: {', '.join(ordered)}")
    return [CASES.get(name, Case(name, ())) for name in (names or ordered)]


def run_case(case: Case, seeds: int, data_dir: str | None, folder: Path) -> list[Outcome]:
    """Train `seeds` times and gather the test measures."""
    folders = [folder / f"{case.name}-{seed}" for seed in range(seeds)]
    for seed, out in enumerate(folders):
        if not finished(case, seed, out):
            train(case, seed, data_dir, out)
    summaries = [json.loads((out / SUMMARY).read_text()) for out in folders]
    # from the first file of a run to its last
    seconds = sum((out / SUMMARY).stat().st_mtime - (out / CONFIG).stat().st_mtime for out in folders)
    goals = case.goals or (Goal(str(summaries[0]["monitor"]).partition(".")[2]),)
    epochs = tuple(int(summary["epochs"]) for summary in summaries)
    return [
        Outcome(
            name=case.name,
            measure=goal.measure,
            values=tuple(float(summary["metrics"]["test"][goal.measure]) for summary in summaries),
            goal=goal.goal,
            published=goal.published,
            epochs=epochs,
            seconds=seconds,
        )
        for goal in goals
    ]


def command(case: Case, seed: int, data_dir: str | None, out: Path) -> list[str]:
    """What a user would type."""
    changes = [word for setting in case.settings(seed) for word in ("--set", setting)]
    where = ["--data-dir", data_dir] if data_dir else []
    return ["train", str(case.config), *changes, *where, "--out", str(out)]


def finished(case: Case, seed: int, out: Path) -> bool:
    """Whether `out` holds this very run, complete."""
    if not (out / SUMMARY).is_file():
        return False
    wanted = resolve(load_config(case.config, case.settings(seed))).resolved()
    stored = load_config(out / CONFIG).resolved()
    stored["data"].pop("directory", None)
    if wanted["train"]["monitor"] is None:
        stored["train"]["monitor"] = None  # the task has named it
    return wanted == stored


def train(case: Case, seed: int, data_dir: str | None, out: Path) -> None:
    """One run, in a process of its own; what is left of one that was interrupted goes on."""
    words = [*command(case, seed, data_dir, out), "--resume"]
    done = subprocess.run([sys.executable, "-m", "trisect", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{case.name}, seed {seed}: {(done.stderr or done.stdout).strip()}")


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as lines of a Markdown table."""
    lines = [
        "| configuration | measure | mean ± std | runs | goal | published | reached | epochs | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for o in outcomes:
        reached = "-" if o.goal is None else "yes" if o.reached else "NO"
        lines.append(
            f"| {o.name} | {o.measure} | {o.mean:.4f} ± {o.deviation:.4f} | "
            f"{' '.join(f'{value:.4f}' for value in o.values)} | {_number(o.goal)} | {_number(o.published)} | "
            f"{reached} | {' '.join(map(str, o.epochs))} | {o.seconds:.0f} |"
        )
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


@contextlib.contextmanager
def run_folder(out: Path | None) -> Iterator[Path]:
    """Where the run directories go: the given folder, or one that is removed afterwards."""
    if out is not None:
        yield out
    else:
        with tempfile.TemporaryDirectory(prefix="trisect-accuracy-") as name:
            yield Path(name)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="configurations in examples/accuracy; all if none")
    parser.add_argument("--seeds", type=int, default=3, help="how many runs of each")
    parser.add_argument("--data-dir", help="where the data sets lie (or TRISECT_DATA)")
    parser.add_argument("--out", type=Path, help="keep the runs there; finished ones are not repeated, others go on")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes there")
    options = parser.parse_args(arguments)
    begin = time.perf_counter()
    outcomes: list[Outcome] = []
    with run_folder(options.out) as folder:
        for case in find_cases(options.names):
            outcomes_of_case = run_case(case, options.seeds, options.data_dir, folder)
            outcomes += outcomes_of_case
            for o in outcomes_of_case:
                print(f"{o.name}: {o.measure} {o.mean:.4f} ± {o.deviation:.4f}, {o.seconds:.0f} s", flush=True)
            if options.json is not None:  # after each, so that a long list may be stopped
                options.json.write_text(json.dumps([outcome.plain() for outcome in outcomes], indent=1) + "\n")
    print(f"\n{table(outcomes)}\n\n{time.perf_counter() - begin:.0f} s in all")
    return 0 if all(outcome.reached for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
