"""Cuts of vertices by METIS, a hypergraph where installed, and the stream: edges cut, halo rows, balance, time, memory.

Each cut is made in a process of its own. Memory is what the process that cuts takes beside the graph, and what the
child takes in which METIS and Mt-KaHyPar run; of the stream, which gives METIS the graph of its clusters, as well.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from trisect.data.load import load
from trisect.errors import DataError, RunError
from trisect.partition.method import metis_bytes
from trisect.partition.stream import stream_bytes
from trisect_bench._harness import python_path

GRAPHS: dict[str, dict[str, Any]] = {
    "community": {"generate": "community", "vertices": 100_000},
    "amazon0601": {"name": "amazon0601"},
    "ego-twitter": {"name": "ego-twitter"},
    "cnr-2000": {"name": "cnr-2000"},
}
_PACKAGES = {"metis": "pymetis", "hypergraph": "mtkahypar"}


def run(
    graphs: Sequence[str] = tuple(GRAPHS),
    parts: Sequence[int] = (2, 8, 64),
    methods: Sequence[str] = ("metis", "stream"),
    vertices: int = 100_000,
    data_dir: str | None = None,
) -> dict[str, Any]:
    """Cut each graph into each number of parts by each method.

    Args:
        methods: metis, stream; hypergraph too, which takes minutes.
        vertices: of the generated graph.
    """
    result: dict[str, Any] = {"graphs": {}, "skipped": {}}
    for method in methods:
        if method in _PACKAGES and find_spec(_PACKAGES[method]) is None:
            result["skipped"][method] = f"{_PACKAGES[method]} is not installed; install trisect[{method}]."
    for name in graphs:
        data = GRAPHS[name] | ({"vertices": vertices} if "vertices" in GRAPHS[name] else {})
        if "name" in data:
            try:
                load(data, data_dir=data_dir)
            except DataError as error:
                result["skipped"][name] = str(error)
                continue
        rows = []
        for count in parts:
            for method in methods:
                if method not in result["skipped"]:
                    case = {"data": data, "data_dir": data_dir, "parts": count, "method": method}
                    rows.append({"parts": count, "method": method, **_measured(case)})
        result["graphs"][name] = rows
    return result


def _measured(case: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", "trisect_bench._partition_case", json.dumps(case)]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise RunError(f"The cut {case} failed: {reason[0]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    expected = stream_bytes if case["method"] == "stream" else None
    vertices, entries = figures["vertices"], figures["entries"]
    figures["expected_bytes"] = expected(vertices) if expected is not None else metis_bytes(vertices, entries)
    return figures


def show(result: dict[str, Any]) -> None:
    """Print the figures as a table, a cut beside METIS's."""
    print(
        f"{'graph':<12} {'parts':>5} {'method':<10} {'cut %':>7} {'of METIS':>8} {'halo rows':>10} {'of METIS':>8} "
        f"{'balance':>7} {'seconds':>7} {'MiB':>6} {'child':>6} {'expected':>8}"
    )
    for name, rows in result["graphs"].items():
        by_metis = {row["parts"]: row for row in rows if row["method"] == "metis"}
        for row in rows:
            other = by_metis.get(row["parts"])
            shares = ["", ""] if other is None else [_share(row[key], other[key]) for key in ("cut", "halo")]
            memory = [round(row[key] / 2**20) for key in ("launcher_bytes", "child_bytes", "expected_bytes")]
            print(
                f"{name:<12} {row['parts']:>5} {row['method']:<10} {100 * row['cut']:7.3f} {shares[0]:>8} "
                f"{row['halo']:>10,} {shares[1]:>8} {row['balance']:7.3f} {row['seconds']:7.2f} "
                f"{memory[0]:>6,} {memory[1]:>6,} {memory[2]:>8,}"
            )
    for name, sentence in result["skipped"].items():
        print(f"{name}: {sentence}")


def _share(value: float, other: float) -> str:
    return f"{value / other:.2f}" if other else "-"
