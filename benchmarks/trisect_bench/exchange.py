"""An exchange of rows between ranks of one host: through shared memory, and through the network of the host (gloo).

Each rank sends a message to each other and receives one (`begin_swap` and `wait`). Rounds of both transports are
interleaved, and a figure is the median over all exchanges of all rounds, as rank 0 sees them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trisect.errors import ConfigError
from trisect.train.processes.launch import launch
from trisect_bench._harness import python_path

SIZES = (1_000, 64_000, 1_000_000)


def run(
    ranks: Sequence[int] = (2, 4), sizes: Sequence[int] = SIZES, rounds: int = 20, exchanges: int = 50
) -> dict[str, Any]:
    """Start each number of ranks on this host.

    Args:
        sizes: bytes of a message, multiples of 4.
        exchanges: of one transport in a round.
    """
    if any(count < 2 for count in ranks) or any(size < 4 or size % 4 for size in sizes) or min(rounds, exchanges) < 1:
        raise ConfigError("bench exchange needs two ranks or more, sizes that are multiples of 4, and a round or more.")
    result: dict[str, Any] = {"rounds": rounds, "exchanges": exchanges, "ranks": {}}
    with tempfile.TemporaryDirectory(prefix="trisect-bench-") as folder:
        for count in ranks:
            out = Path(folder, f"{count}.json")
            asked = json.dumps({"sizes": list(sizes), "rounds": rounds, "exchanges": exchanges, "out": str(out)})
            command = [sys.executable, "-m", "trisect_bench._exchange_rank", asked]
            launch(command, count, threads=1, environment={"PYTHONPATH": python_path()})
            result["ranks"][str(count)] = json.loads(out.read_text())
    return result


def show(result: dict[str, Any]) -> None:
    """Print the figures as a table."""
    print("Milliseconds of an exchange, median (best)")
    print(f"{'ranks':>5} {'bytes':>9} {'shared memory':>18} {'network':>18} {'times faster':>13}")
    for count, rows in result["ranks"].items():
        for row in rows:
            shared, network = row["auto"], row["network"]
            print(
                f"{count:>5} {row['bytes']:>9} {1e3 * shared['median']:>9.3f} ({1e3 * shared['best']:.3f})"
                f" {1e3 * network['median']:>10.3f} ({1e3 * network['best']:.3f})"
                f" {network['median'] / shared['median']:>13.1f}"
            )
