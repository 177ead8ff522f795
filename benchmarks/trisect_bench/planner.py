"""What the planner predicts beside what runs measure: seconds, bytes and memory a rank, case by case.

Each case is predicted from its configuration alone, then trained. With `state`, what was measured is kept in a file,
and a run that was stopped goes on with the cases that are left.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from trisect.config import load_config, parse_config
from trisect.errors import ConfigError
from trisect.layout import Layout, parse_layout
from trisect.plan.cluster import Cluster, Link
from trisect.plan.costs import working_ranks
from trisect.plan.estimate import estimate
from trisect.plan.workload import Workload
from trisect.train.clusters import cluster_of
from trisect.train.from_config import ConfiguredData, resolve
from trisect.train.job import SHARDS, Job
from trisect.train.planning import configured_workload
from trisect.train.processes.start import cut_job
from trisect_bench._hosts import NoHostsError, several_hosts
from trisect_bench._planner_cases import CASES, Case
from trisect_bench._runs import train
from trisect_bench.hosts import train_on

_LIMIT = 600.0


def run(
    only: str | Sequence[str] = "",
    epochs: int = 8,
    cluster: str | None = None,
    state: str | None = None,
    measure: bool = True,
    held_out: bool | None = None,
    again: bool = False,
    table: str | None = None,
) -> dict[str, Any]:
    """Predict and measure cases.

    Args:
        only: cases whose name has this text, or one of these; empty: all.
        epochs: of each run; the median of those after the first counts.
        cluster: a cluster file or preset to predict with; by default this machine as it was calibrated.
        state: a file in which what was measured is kept from run to run.
        measure: False predicts alone, and shows what the state has beside it.
        held_out: True for the cases that were never fitted to, False for the others, None for both.
        again: measure what the state has once more, and keep the run whose median is lower: others only disturb.
        table: a file to which all cases are written as a table of Markdown, with what they add up to.
    """
    wanted = [only] if isinstance(only, str) else list(only)
    cases = [case for case in CASES if any(text in case.name for text in wanted)]
    cases = [case for case in cases if held_out is None or case.held_out == held_out]
    if not cases:
        raise ConfigError(f"only is {only!r}, which no case has in its name; leave it out to see all names.")
    machine, path = cluster_of(cluster), None if state is None else Path(state)
    kept: dict[str, Any] = json.loads(path.read_text()) if path is not None and path.exists() else {}
    workloads: dict[str, Workload] = {}
    rows, skipped = [], []
    for case in cases:
        if case.workload not in workloads:
            workloads[case.workload] = configured_workload(_settings(case, epochs, None))
        predicted = predict(case, workloads[case.workload], machine)
        if measure and (again or case.name not in kept):
            try:
                kept[case.name] = _calmer(kept.get(case.name), _measure(case, epochs))
            except NoHostsError as error:
                skipped.append(f"{case.name}: {error}")
                continue
            if path is not None:
                path.write_text(json.dumps(kept, indent=1))
        rows.append(
            {
                "case": case.name,
                "workload": case.workload,
                "mbit": case.mbit,
                "held_out": case.held_out,
                "predicted": predicted,
                "measured": kept.get(case.name),
            }
        )
        print(_line(rows[-1]), file=sys.stderr, flush=True)
    source = {"name": machine.name, "source": machine.source}
    result = {"cluster": source, "cases": rows, "skipped": skipped, "totals": totals(rows)}
    if table is not None:
        Path(table).write_text("\n".join(markdown(result)) + "\n", encoding="utf-8")
    return result


def _calmer(before: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, Any]:
    """Of two runs of a case, the one that other programs disturbed less."""
    return now if before is None or now["seconds"] < before["seconds"] else before


def predict(case: Case, workload: Workload, machine: Cluster) -> dict[str, Any]:
    """Say what a case will cost."""
    layout = parse_layout(case.layout) if case.layout else Layout()
    if case.mbit:
        # a host each, which are all on this machine and share its cores
        link = Link(bandwidth=case.mbit * 1e6 / 8, latency=1e-4, message=1e-4)
        shares = {1: machine.share(layout.world, working_ranks(workload.plan(layout), layout.world))}
        machine = replace(machine, hosts=layout.world, devices=1, between=link, shares=shares, single=None)
    expected = estimate(workload, layout, machine)
    seconds = expected.seconds
    return {
        "seconds": 0.0 if seconds is None else seconds.total,
        "bytes": expected.total_bytes,
        "bytes_are_exact": expected.exact_bytes,
        "memory": expected.memory.total,
        "memory_parts": expected.memory.plain(),
    }


def _plain(case: Case, epochs: int) -> dict[str, Any]:
    options = {"epochs": epochs, "eval_every": 10_000, "checkpoint_every": None}
    return {**case.config, "train": options}


def _settings(case: Case, epochs: int, layout: str | None) -> Any:
    with tempfile.TemporaryDirectory(prefix="trisect-bench-") as folder:
        path = Path(folder, "case.yaml")
        path.write_text(yaml.safe_dump(_plain(case, epochs)))
        return resolve(load_config(path, layout=layout))


def _measure(case: Case, epochs: int) -> dict[str, Any]:
    """Train a case, and give its seconds, bytes and memory."""
    summary = train(_plain(case, epochs), case.layout) if not case.mbit else _train_on_hosts(case, epochs)
    return {
        "seconds": summary["seconds_per_epoch"]["median"],
        "best": summary["seconds_per_epoch"]["best"],
        "bytes": summary["communication"]["bytes_per_epoch"],
        "memory": max(summary["memory"]["peak_rss_bytes"]),
    }


def _train_on_hosts(case: Case, epochs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="trisect-bench-") as name:
        folder, out = Path(name), Path(name, "out")
        (folder / SHARDS).mkdir()
        settings = parse_config({**_settings(case, epochs, case.layout).resolved()})
        job = Job.of_config("train", settings, out)
        cut_job(job, ConfiguredData(settings), folder / SHARDS)
        job.write(folder)
        with several_hosts(job.layout.world, case.mbit) as network:
            train_on(network, [sys.executable, "-m", "trisect.train.worker", str(folder)], _LIMIT)
        summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
        return summary


def error_of(row: dict[str, Any], key: str) -> float | None:
    """Give by which share a prediction lies above (or below) what was measured."""
    measured = row["measured"]
    if measured is None or not measured[key]:
        return None
    return float(row["predicted"][key]) / float(measured[key]) - 1.0


def totals(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Give how many predictions were near enough, of all cases and of those that were held out."""
    result = {}
    for name, chosen in (("all", list(rows)), ("held out", [row for row in rows if row["held_out"]])):
        measured = [row for row in chosen if row["measured"] is not None]
        if not measured:
            continue
        seconds = [abs(error_of(row, "seconds") or 0.0) for row in measured]
        memory = [abs(error_of(row, "memory") or 0.0) for row in measured]
        exact = [row for row in measured if row["predicted"]["bytes_are_exact"]]
        result[name] = {
            "cases": len(measured),
            "bytes_exact": sum(row["predicted"]["bytes"] == row["measured"]["bytes"] for row in exact),
            "bytes_cases": len(exact),
            "memory_within_8": sum(error <= 0.08 for error in memory) / len(measured),
            "seconds_median": statistics.median(seconds),
            "seconds_within_25": sum(error <= 0.25 for error in seconds) / len(measured),
        }
    choices = _choices(rows)
    result["choices"] = {"count": len(choices), "within_10": sum(loss <= 0.10 for loss in choices.values())}
    result["choice_losses"] = choices
    return result


def _choices(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of each workload with several measured layouts: how much slower the predicted best is than the measured one."""
    losses = {}
    for key in dict.fromkeys((row["workload"], row["mbit"]) for row in rows):
        group = [row for row in rows if (row["workload"], row["mbit"]) == key and row["measured"] is not None]
        if len(group) > 1:
            picked = min(group, key=lambda row: float(row["predicted"]["seconds"]))
            best = min(float(row["measured"]["seconds"]) for row in group)
            losses[f"{key[0]}{f' {key[1]} Mbit/s' if key[1] else ''}"] = picked["measured"]["seconds"] / best - 1.0
    return losses


def show(result: dict[str, Any]) -> None:
    """Print the table and what it adds up to."""
    print(f"Predicted with {result['cluster']['name']} ({result['cluster']['source']}); * was never fitted to")
    print(f"{'case':<52} {'seconds':>22} {'memory MiB':>22} {'bytes':>28}")
    for row in result["cases"]:
        print(_line(row))
    for sentence in result["skipped"]:
        print(f"left out: {sentence}")
    for name, numbers in result["totals"].items():
        print(f"{name}: {numbers}")


def _line(row: dict[str, Any]) -> str:
    predicted, measured = row["predicted"], row["measured"]
    text = f"{row['case'] + ('*' if row['held_out'] else ''):<52}"
    for key, factor, form in (("seconds", 1.0, ".3f"), ("memory", 2.0**20, ",.0f")):
        error = error_of(row, key)
        there = "" if measured is None else f"{measured[key] / factor:{form}}"
        text += f" {predicted[key] / factor:>8{form}} {there:>8} {'' if error is None else f'{error:+.0%}':>5}"
    there = "" if measured is None else f"{measured['bytes']:,}"
    mark = "" if measured is None else ("=" if predicted["bytes"] == measured["bytes"] else "!")
    return f"{text} {predicted['bytes']:>13,} {there:>13} {mark}"


# A table for people


def markdown(result: dict[str, Any]) -> Iterator[str]:
    """Give the cases as a table, predicted | measured | error each, and what they add up to."""
    yield "| case | seconds | | | memory MiB | | | bytes |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    for row in result["cases"]:
        predicted, measured = row["predicted"], row["measured"]
        if measured is None:
            continue
        cells = [row["case"] + (" \\*" if row["held_out"] else "")]
        for key, factor, form in (("seconds", 1.0, ".3f"), ("memory", 2.0**20, ",.0f")):
            error = error_of(row, key) or 0.0
            cells += [f"{predicted[key] / factor:{form}}", f"{measured[key] / factor:{form}}", f"{error:+.0%}"]
        cells.append(f"{measured['bytes']:,}" if predicted["bytes"] == measured["bytes"] else _both(row))
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield "| | cases | bytes exact | memory within 8 % | seconds, median error | seconds within 25 % |"
    yield "|---|--:|--:|--:|--:|--:|"
    for name in ("all", "held out"):
        if name in result["totals"]:
            each = result["totals"][name]
            yield (
                f"| {name} | {each['cases']} | {each['bytes_exact']} of {each['bytes_cases']} | "
                f"{each['memory_within_8']:.0%} | {each['seconds_median']:.0%} | {each['seconds_within_25']:.0%} |"
            )
    choices = result["totals"]["choices"]
    yield ""
    yield f"Of {choices['count']} choices between measured layouts, {choices['within_10']} are within 10 % of the best."


def _both(row: dict[str, Any]) -> str:
    return f"{row['predicted']['bytes']:,} for {row['measured']['bytes']:,}"
