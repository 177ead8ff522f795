"""Two checkouts of Trisect beside each other, turn by turn: is one slower, or larger, than the other?

    python benchmarks/before_after.py BEFORE AFTER [--only epoch,timeline,layouts,timeline-layouts,small] [--rounds 3]

BEFORE and AFTER are checkouts whose kernels are built (`python setup.py build_ext --inplace`). The same work as
`trisect bench epoch`, `timeline`, `layouts --set speed=true` and `timeline-layouts --set speed=true` is done from both,
and an epoch of the built-in example under four layouts (`small`). Turns alternate, so that a slow spell of the machine
meets both; printed are the best and the median turn, the most memory of a rank, and the ratios after / before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from trisect_bench._harness import Candidate, race

SECTIONS = ("epoch", "timeline", "layouts", "timeline-layouts", "small")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", default=",".join(SECTIONS))
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    checkouts = {name: getattr(arguments, name).resolve() for name in ("before", "after")}
    print(
        f"{'':<40} {'before: best':>12} {'median':>8} {'after: best':>12} {'median':>8}"
        f" {'best':>6} {'median':>7} memory"
    )
    for section in arguments.only.split(","):
        {
            "epoch": lambda: raced("epoch", _EPOCH, checkouts, arguments.rounds),
            "timeline": lambda: raced("timeline", _TIMELINE, checkouts, arguments.rounds),
            "layouts": lambda: trained(_LAYOUTS, checkouts, arguments.rounds),
            "timeline-layouts": lambda: trained(_TIMELINE_LAYOUTS, checkouts, arguments.rounds),
            "small": lambda: trained(_SMALL, checkouts, arguments.rounds),
        }[section]()


def raced(measurement: str, rows: Sequence[dict[str, Any]], checkouts: dict[str, Path], rounds: int) -> None:
    """Race Trisect's own candidate of a measurement, as each of two checkouts has it."""
    for row in rows:
        candidates = [_candidate(who, path, measurement, row) for who, path in checkouts.items()]
        timings = race(candidates, rounds=2 * rounds + 1, report=print)
        name = f"{measurement} " + " ".join(str(value) for value in row.values())
        show(name, {who: list(timing.seconds) for who, timing in timings.items()}, _peaks(timings))


def _candidate(who: str, checkout: Path, measurement: str, arguments: dict[str, Any]) -> Candidate:
    """Return the candidate of a checkout; measurements were part of the package before they moved to benchmarks/."""
    own = checkout / "benchmarks"
    package = "trisect_bench" if (own / "trisect_bench").is_dir() else "trisect.bench"
    # the last folder has the child's side of `race`, which a checkout may lack
    path = os.pathsep.join([str(checkout / "src"), str(own), str(Path(__file__).resolve().parent)])
    return Candidate(who, f"{package}.{measurement}:trisect", arguments, {"PYTHONPATH": path})


def _peaks(timings: dict[str, Any]) -> dict[str, float]:
    return {name: float(timing.peak_rss_bytes) for name, timing in timings.items()}


def trained(rows: Sequence[tuple[str, dict[str, Any], str]], checkouts: dict[str, Path], rounds: int) -> None:
    """Train from two checkouts in turn; an epoch but the first, which compiles and warms up, is a turn."""
    for name, config, layout in rows:
        seconds: dict[str, list[float]] = {who: [] for who in checkouts}
        peaks: dict[str, float] = dict.fromkeys(checkouts, 0.0)
        for turn in range(rounds):
            # who goes first alternates
            for who in sorted(checkouts, reverse=bool(turn % 2)):
                epochs, peak = _train(config, layout, str(checkouts[who] / "src"))
                seconds[who] += epochs[1:]
                peaks[who] = max(peaks[who], peak)
        show(f"{name} {layout or 'one rank'}", seconds, peaks)


def _train(config: dict[str, Any], layout: str, source: str) -> tuple[list[float], float]:
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder, "config.yaml"), Path(folder, "run")
        path.write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", "trisect", "train", str(path), "--out", str(out)]
        command += ["--layout", layout] if layout else []
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": source}, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} with PYTHONPATH={source} failed: {done.stderr[-2000:]}")
        lines = (out / "metrics.jsonl").read_text().splitlines()
        summary = json.loads((out / "summary.json").read_text())
        return [json.loads(line)["seconds"] for line in lines], float(max(summary["memory"]["peak_rss_bytes"]))


def show(name: str, seconds: dict[str, list[float]], peaks: dict[str, float]) -> None:
    """Print a row."""
    before, after = seconds["before"], seconds["after"]
    best, median = min(after) / min(before), statistics.median(after) / statistics.median(before)
    print(
        f"{name:<40} {min(before):12.4f} {statistics.median(before):8.4f} {min(after):12.4f}"
        f" {statistics.median(after):8.4f} {best:6.3f} {median:7.3f} {peaks['after'] / peaks['before']:.3f}",
        flush=True,
    )


_EPOCH = [{"model": model} for model in ("gcn", "sage", "gcnii")]
_TIMELINE = [{"model": model, "hidden": hidden} for model in ("cd-gcn", "evolvegcn-o") for hidden in (6, 32)]
_QUIET = {"eval_every": 1000, "checkpoint_every": 1000}
_DEEP = {
    "data": {
        "generate": "community",
        "vertices": 200_000,
        "degree": 20.0,
        "features": 64,
        "classes": 10,
        "within": 0.7,
    },
    "model": {"name": "gcn", "layers": 16, "hidden": 100, "dropout": 0.5},
    "task": "node-classification",
    "train": {"epochs": 3, "threads": 1, **_QUIET},
}
_LAYOUTS = [("layouts", _DEEP, layout) for layout in ("", "vertex=2", "layer=2,chunks=16", "layer=2,chunks=32")]


def _dynamic(model: str) -> dict[str, Any]:
    return {
        "data": {
            "generate": "evolving",
            "vertices": 30_000,
            "steps": 66,
            "degree": 8.0,
            "features": 0,
            "smoothing": {"kind": "edge-life", "length": 10},
        },
        "model": {"name": model, "layers": 2, "hidden": 16},
        "task": {"name": "node-classification", "split": [64, 1, 1]},
        "train": {"epochs": 5, "threads": 1, **_QUIET},
    }


_TIMELINE_LAYOUTS = [
    (model, _dynamic(model), layout)
    for model in ("cd-gcn", "evolvegcn-o", "tm-gcn")
    for layout in ("", "time=2", "vertex=2")
]
_EXAMPLE = {
    "data": {"generate": "community", "vertices": 4000, "degree": 3, "within": 0.95, "signal": 1.0},
    "model": {"name": "gcnii", "layers": 32, "hidden": 64, "dropout": 0.5},
    "task": "node-classification",
    "train": {"epochs": 30, "lr": 0.01, "weight_decay": {"conv": 0.01, "dense": 0.0005}, **_QUIET},
}
_SMALL = [("small", _EXAMPLE, layout) for layout in ("", "vertex=2", "layer=2,chunks=8", "vertex=2,layer=2,chunks=8")]

if __name__ == "__main__":
    main()
