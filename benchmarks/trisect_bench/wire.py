"""What the form of the wire does to accuracy: the same training with rows as they are, as bfloat16 and as int8.

Seeds are paired: parameters, dropout masks and the epochs that are evaluated are the same, and rounding alone differs.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, get_args

from trisect.errors import DataError
from trisect.layout import Wire
from trisect_bench._runs import train

LAYOUTS = ("vertex=2", "layer=2,chunks=8")
WIRES = get_args(Wire)


def run(
    data: str | None = "cora",
    model: str = "gcnii",
    layers: int = 16,
    hidden: int = 32,
    epochs: int = 100,
    seeds: int = 3,
    layouts: Sequence[str] = LAYOUTS,
    wires: Sequence[str] = WIRES,
    data_dir: str | None = None,
) -> dict[str, Any]:
    """Train each combination in processes of its own.

    Args:
        data: a named data set; None: a generated graph of citations.
        layouts: of two ranks; the pipeline over chunks reads history.
    """
    source: dict[str, Any] = {"generate": "citation", "vertices": 5000} if data is None else {"name": data}
    if data is not None and data_dir is not None:
        source["directory"] = data_dir
    runs = []
    for layout in layouts:
        for seed in range(seeds):
            for wire in wires:
                config = {
                    "data": source,
                    "model": {"name": model, "layers": layers, "hidden": hidden, "dropout": 0.5},
                    "task": "node-classification",
                    "train": {"epochs": epochs, "lr": 0.01, "eval_every": 5, "seed": seed, "threads": 1},
                }
                summary = train(config, f"{layout},wire={wire}")
                runs.append(
                    {
                        "layout": layout,
                        "seed": seed,
                        "wire": wire,
                        "test": summary["metrics"]["test"]["accuracy"],
                        "loss": summary["loss"][-1],
                        "bytes": summary["communication"]["bytes_per_epoch"],
                    }
                )
    if not runs:
        raise DataError("nothing was asked for: give at least one layout, wire and seed.")
    return {"data": source, "model": model, "layers": layers, "hidden": hidden, "epochs": epochs, "runs": runs}


def show(result: dict[str, Any]) -> None:
    """Print as a table: means over seeds, and the difference to the first wire, paired by seed."""
    runs = result["runs"]
    print(f"{result['model']}, {result['layers']} layers of {result['hidden']}, {result['epochs']} epochs")
    print(f"{'layout':<18} {'wire':<9} {'MB an epoch':>12} {'test':>7} {'difference':>11} {'by seed':<24} {'loss':>8}")
    for layout in dict.fromkeys(one["layout"] for one in runs):
        here = [one for one in runs if one["layout"] == layout]
        first = {one["seed"]: one["test"] for one in here if one["wire"] == here[0]["wire"]}
        for wire in dict.fromkeys(one["wire"] for one in here):
            mine = [one for one in here if one["wire"] == wire]
            apart = [100 * (one["test"] - first[one["seed"]]) for one in mine]
            print(
                f"{layout:<18} {wire:<9} {mine[0]['bytes'] / 1e6:>12.2f}"
                f" {100 * statistics.mean(one['test'] for one in mine):>7.2f} {statistics.mean(apart):>+11.2f}"
                f" {' '.join(f'{each:+.1f}' for each in apart):<24}"
                f" {statistics.mean(one['loss'] for one in mine):>8.4f}"
            )
