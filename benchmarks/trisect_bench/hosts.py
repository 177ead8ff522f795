"""Seconds an epoch on several hosts with slow links: graph parallelism, pipeline and hybrid, by form of the wire.

Each host is a network namespace of this machine (root and iproute2 needed) with one rank of one thread; every port
carries 1 Gbit/s each way, or another rate. The hosts share the machine's cores: what differs between layouts is bytes,
waits and how much of them is hidden, not the speed of computing. With `--timeline`: CD-GCN under a cut by vertex and by
time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from trisect.config import load_config
from trisect.errors import DataError, LayoutError, RunError
from trisect.schedule.action import COMPUTE, Action
from trisect.train.from_config import ConfiguredData, resolve
from trisect.train.job import SHARDS, Job
from trisect.train.processes.start import cut_job
from trisect_bench._hosts import Host, NoHostsError, several_hosts

WIRES = ("float32", "bfloat16", "int8")
_PORT = 29571


def run(
    model: str = "gcn",
    graph: str = "ego-twitter",
    wires: Sequence[str] = WIRES,
    only: Sequence[str] | None = None,
    hosts: int = 4,
    rates: Sequence[int] = (1000,),
    layers: int = 32,
    hidden: int = 100,
    chunks: int = 16,
    hybrid_chunks: int = 4,
    epochs: int = 3,
    data_dir: str | None = None,
    limit: float = 240.0,
    timeline: bool = False,
) -> dict[str, Any]:
    """Train a few epochs under each layout and wire, and collect what the runs say of themselves.

    Args:
        only: names of layouts (`graph`, `pipeline`, `hybrid`; on a timeline `vertex`, `redistribute`, `carry`).
        rates: Mbit/s of each port, each way; 0: as fast as the machine can. The same runs at each: where seconds hardly
            change with the rate, computing is what they are spent on.
        chunks, hybrid_chunks: of the pipeline, and of the hybrid, which has half the stages to keep busy and exchanges
            halos for each chunk and layer.
        limit: seconds for one run, after which it is ended.
    """
    layouts = timeline_layouts(hosts) if timeline else static_layouts(hosts, chunks, hybrid_chunks)
    if only is not None:
        layouts = {name: text for name, text in layouts.items() if name in only}
    config = timeline_config(epochs) if timeline else static_config(model, graph, layers, hidden, epochs)
    result: dict[str, Any] = {
        "hosts": hosts,
        "rates": list(rates),
        "config": config,
        "layouts": layouts,
        "runs": [],
        "skipped": None,
        "said": [],
    }
    with tempfile.TemporaryDirectory(prefix="trisect-hosts-") as name:
        folder = Path(name)
        try:
            for layout, text in layouts.items():
                _measure(result, folder, config, layout, text, wires, data_dir, limit)
        except NoHostsError as error:
            result["skipped"] = f"bench hosts is left out: {error}"
    return result


def static_layouts(hosts: int, chunks: int, hybrid_chunks: int) -> dict[str, str]:
    """Graph parallelism, pipeline and hybrid on so many ranks."""
    layouts = {"graph": f"vertex={hosts},spatial=halo", "pipeline": f"layer={hosts},chunks={chunks}"}
    if hosts % 2 == 0 and hosts > 2:
        layouts["hybrid"] = f"layer={hosts // 2},vertex=2,chunks={hybrid_chunks}"
    return layouts


def timeline_layouts(hosts: int) -> dict[str, str]:
    """The cut by vertex, and the two exchanges of the cut by time that fit an LSTM."""
    return {
        "vertex": f"vertex={hosts},spatial=halo",
        "redistribute": f"time={hosts},temporal=redistribute",
        "carry": f"time={hosts},temporal=carry",
    }


def static_config(model: str, graph: str, layers: int, hidden: int, epochs: int) -> dict[str, Any]:
    """A deep model on a named graph with made-up features."""
    return {
        "data": {"name": graph},
        "model": {"name": model, "layers": layers, "hidden": hidden, "dropout": 0.5},
        "task": "node-classification",
        "train": _train(epochs),
    }


def timeline_config(epochs: int) -> dict[str, Any]:
    """CD-GCN on a generated timeline."""
    return {
        "data": {"generate": "evolving", "vertices": 20_000, "steps": 64, "features": 16},
        "model": {"name": "cd-gcn", "layers": 2, "hidden": 32},
        "task": {"name": "link-prediction", "memory": 0, "eval_negatives": 1},
        "train": _train(epochs),
    }


def _train(epochs: int) -> dict[str, Any]:
    return {"epochs": epochs, "eval_every": 1000, "checkpoint_every": 1000, "threads": 1, "timeout": 120.0}


def _measure(
    result: dict[str, Any],
    folder: Path,
    config: dict[str, Any],
    layout: str,
    text: str,
    wires: Sequence[str],
    data_dir: str | None,
    limit: float,
) -> None:
    """Cut once for a layout, then train at each rate with each form of the wire."""
    with several_hosts(result["hosts"], result["rates"][0]):
        pass  # before anything is cut, whether it can be done at all
    path, job_folder = folder / "config.yaml", folder / f"job-{layout}"
    path.write_text(yaml.safe_dump(config))
    (job_folder / SHARDS).mkdir(parents=True)
    try:
        _cut(path, text, job_folder, data_dir)
    except LayoutError as error:
        result["said"].append(f"{layout} is left out: {error}")
        return
    except DataError as error:
        config["data"] = {"generate": "community", "vertices": 80_000, "degree": 33.0, "features": 64, "classes": 16}
        result["said"].append(f"A generated graph stands in, since {error}")
        path.write_text(yaml.safe_dump(config))
        _cut(path, text, job_folder, data_dir)
    for mbit in result["rates"]:
        with several_hosts(result["hosts"], mbit) as network:
            for wire in wires:
                out = folder / f"{layout}-{wire}-{mbit}"
                settings = resolve(load_config(path, layout=f"{text},wire={wire}"), data_dir)
                Job.of_config("train", settings, out).write(job_folder)
                train_on(network, [sys.executable, "-m", "trisect.train.worker", str(job_folder)], limit)
                run = {"layout": layout, "wire": wire, "mbit": mbit, **describe(out, mbit)}
                result["runs"].append(run)
                print(_line(run, run["seconds"]), file=sys.stderr, flush=True)  # a run takes long


def _cut(path: Path, text: str, job_folder: Path, data_dir: str | None) -> None:
    config = resolve(load_config(path, layout=text), data_dir)
    cut_job(Job.of_config("train", config, path.parent), ConfiguredData(config), job_folder / SHARDS)


def train_on(network: Sequence[Host], words: Sequence[str], limit: float) -> None:
    """Run a command once a host, with the variables that torchrun would set, and wait for all."""
    ranks: list[subprocess.Popen[str]] = []
    try:
        for rank, host in enumerate(network):
            variables = {
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "RANK": str(rank),
                "WORLD_SIZE": str(len(network)),
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": network[0].address,
                "MASTER_PORT": str(_PORT),
                "GLOO_SOCKET_IFNAME": host.interface,
            }
            ranks.append(
                subprocess.Popen(
                    host.command(words),
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        deadline = time.monotonic() + limit
        for number, process in enumerate(ranks):
            try:
                _, errors = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise RunError(f"rank {number} did not end within {limit:g} s; raise limit.") from None
            if process.returncode != 0:
                raise RunError(f"rank {number} ended with code {process.returncode}: {errors.strip()[-500:]}")
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
            process.communicate()


def describe(out: Path, mbit: int) -> dict[str, Any]:
    """A finished run in figures: the fastest epoch after the first, its bytes, and what its ranks computed and waited.

    `link_seconds` is the time that the busiest port needs for its bytes alone.
    """
    summary = json.loads((out / "summary.json").read_text())
    epochs = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    later = [record for record in epochs if record["epoch"] > 1] or epochs  # the first may fill histories
    best = min(later, key=lambda record: float(record["seconds"]))
    sent = summary["communication"]
    spent = [_spent(path, best["epoch"]) for path in sorted(out.glob("events/rank-*.jsonl"))]
    return {
        "seconds": best["seconds"],
        "bytes": sent["bytes_per_epoch"],
        "by_axis": sent["by_axis"],
        "link_seconds": max(sent["by_rank"]) * 8 / (mbit * 1e6) if mbit else 0.0,
        "computes": [computed for computed, _ in spent],
        "waits": [waited for _, waited in spent],
        "loss": summary["loss"],
    }


def _spent(path: Path, epoch: int) -> tuple[float, float]:
    """Seconds that a rank spent in an epoch with computing (and waiting for a core), and in transfers, sending
    included.
    """
    computed = waited = 0.0
    for line in path.read_text().splitlines():
        event = json.loads(line)
        if event.get("epoch") == epoch and not event.get("evaluation"):
            try:
                action = Action.parse(event["name"])
            except LayoutError:
                continue
            if action.verb in COMPUTE:
                computed += float(event["seconds"])
            else:
                waited += float(event["seconds"])
    return computed, waited


def show(result: dict[str, Any]) -> None:
    """Print the figures as a table."""
    if result["skipped"] is not None:
        print(result["skipped"])
        return
    for sentence in result["said"]:
        print(sentence)
    runs = result["runs"]
    if not runs:
        return
    print(f"{result['hosts']} hosts; seconds of the fastest epoch after the first; a rank computes or waits")
    titles = f"{'layout':<14} {'wire':<9} {'Mbit/s':>7} {'seconds':>8} {'faster':>7} {'MB sent':>8} {'link s':>7}"
    print(f"{titles}  {'computes':>10}  waits by rank")
    for run in runs:
        print(_line(run, next(one["seconds"] for one in runs if one["mbit"] == run["mbit"])))


def _line(run: Mapping[str, Any], first: float) -> str:
    """A row of the table; `first` are the seconds that it is compared with."""
    waits = " ".join(f"{wait:.2f}" for wait in run["waits"])
    computes = f"{min(run['computes'], default=0):.2f}-{max(run['computes'], default=0):.2f}"
    return (
        f"{run['layout']:<14} {run['wire']:<9} {run['mbit'] or 'all':>7} {run['seconds']:8.2f}"
        f" {first / run['seconds']:6.2f}x {run['bytes'] / 1e6:8.1f} {run['link_seconds']:7.2f}"
        f"  {computes:>10}  {waits}"
    )
