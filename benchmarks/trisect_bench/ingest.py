"""Seconds and peak memory to ingest a table of payments and a table of accounts, both made here.

Payments have five columns (payer, payee, time, amount, kind), of which amount and kind become features of edges;
accounts have six (account, age, balance, country, opened, fraud). The ingestion runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from trisect.data.formats.store import read_manifest
from trisect.data.ingest.ingest import ingest
from trisect.data.ingest.tables import require_pyarrow
from trisect.errors import RunError
from trisect_bench._harness import python_path

_ROWS = 1 << 20
KINDS = ("card", "transfer", "cash", "debit", "wire", "fee")


def run(rows: int = 5_000_000, accounts: int = 1_000_000, folder: str | None = None, seed: int = 0) -> dict[str, Any]:
    """Make the tables, ingest them in another process, and measure it.

    Args:
        folder: where the tables and the graph directory are made and removed again; by default a temporary folder.
    """
    require_pyarrow("bench ingest writes tables")
    with tempfile.TemporaryDirectory(prefix="trisect-ingest-", dir=folder) as name:
        here = Path(name)
        payments, table = here / "payments.csv", here / "accounts.csv"
        write_payments(payments, rows, accounts, seed)
        write_accounts(table, accounts, seed)
        command = [sys.executable, "-m", "trisect_bench.ingest", str(payments), str(table), str(here / "graph")]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": python_path()})
        if done.returncode:
            raise RunError(f"the ingestion ended with code {done.returncode}: {done.stderr.strip()[-500:]}")
        measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        manifest = read_manifest(here / "graph")
        return {
            "rows": manifest["edges"],
            "accounts": accounts,
            "table_bytes": payments.stat().st_size + table.stat().st_size,
            "graph_bytes": sum(entry["bytes"] for entry in manifest["arrays"].values()),
            "rows_per_second": manifest["edges"] / measured["seconds"],
            **measured,
        }


def show(result: dict[str, Any]) -> None:
    """Print rows, sizes, seconds and memory in one sentence."""
    gib = {key: result[f"{key}_bytes"] / 2**30 for key in ("table", "graph", "peak_rss")}
    print(
        f"{result['rows']:,} rows and {result['accounts']:,} accounts ({gib['table']:.2f} GiB of text):"
        f" {result['seconds']:.1f} s ({result['cpu_seconds']:.1f} s of processors),"
        f" {result['rows_per_second']:,.0f} rows a second, {gib['peak_rss']:.2f} GiB at most,"
        f" {gib['graph']:.2f} GiB written"
    )


def write_payments(path: Path, rows: int, accounts: int, seed: int) -> None:
    """A CSV of random payments between accounts over 19 months."""
    import pyarrow as pa

    rng = np.random.default_rng([seed, 1])
    kinds = pa.array(KINDS)

    def batch(count: int) -> Any:
        ends = [_names(rng.integers(0, accounts, count)) for _ in range(2)]
        seconds = rng.integers(1_600_000_000, 1_650_000_000, count).astype("datetime64[s]")
        amount = np.round(rng.lognormal(4.0, 1.0, count), 2)
        kind = kinds.take(pa.array(rng.integers(0, len(KINDS), count)))
        columns = [*ends, pa.array(seconds), pa.array(amount), kind]
        return pa.record_batch(columns, names=["payer", "payee", "time", "amount", "kind"])

    _write(path, rows, batch)


def write_accounts(path: Path, accounts: int, seed: int) -> None:
    """A CSV of accounts; every fiftieth lacks its age."""
    import pyarrow as pa

    rng = np.random.default_rng([seed, 2])
    made = 0

    def batch(count: int) -> Any:
        nonlocal made
        number = np.arange(made, made + count)
        made += count
        columns = {
            "account": _names(number),
            "age": pa.array(rng.integers(18, 90, count), mask=number % 50 == 0),
            "balance": pa.array(np.round(rng.normal(1000.0, 500.0, count), 2)),
            "country": _names(rng.integers(0, 50, count)),
            "opened": pa.array(rng.integers(12_000, 18_000, count).astype("datetime64[D]")),
            "fraud": pa.array((rng.random(count) < 0.02).astype(np.int64)),
        }
        return pa.record_batch(list(columns.values()), names=list(columns))

    _write(path, accounts, batch)


def _names(numbers: Any) -> Any:
    """Text such as AC0000012, without a loop."""
    import pyarrow as pa
    import pyarrow.compute as pc

    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 7, "0")
    return pc.binary_join_element_wise("AC", digits, "")


def _write(path: Path, rows: int, batch: Any) -> None:
    import pyarrow.csv as csv

    writer = None
    with open(path, "wb") as file:
        for start in range(0, rows, _ROWS):
            made = batch(min(_ROWS, rows - start))
            writer = writer or csv.CSVWriter(file, made.schema, write_options=csv.WriteOptions(quoting_style="none"))
            writer.write(made)
        if writer is not None:
            writer.close()


def _measure(payments: str, accounts: str, out: str) -> None:
    """The measured process: ingest, then print seconds and peak memory as JSON."""
    start = time.perf_counter()
    ingest(
        payments,
        "payer",
        "payee",
        "time",
        "1d",
        "amount",
        out=out,
        edge_features="amount,kind",
        vertices=accounts,
        label_column="fraud",
    )
    seconds = time.perf_counter() - start
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "seconds": seconds,
                "cpu_seconds": usage.ru_utime + usage.ru_stime,
                "peak_rss_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
            }
        )
    )


if __name__ == "__main__":
    _measure(*sys.argv[1:4])
