"""Two Ray Train workers are the two ranks of one run.

python examples/clusters/ray_train.py [OUT]

Ray starts the workers and connects them; Trisect finds the world that they are in, as it does under torchrun. On several
hosts OUT must be on a file system that all of them share.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from ray.train import RunConfig, ScalingConfig, report
from ray.train.torch import TorchTrainer


def train(options: dict[str, Any]) -> None:
    """Be one rank."""
    import trisect

    graph = trisect.Graph.generate("community", vertices=1000, degree=3, within=0.95, signal=1.0)
    run = trisect.fit(
        "gcnii", graph, layers=8, hidden=16, epochs=5, layout="vertex=2", out=options["out"], progress=False
    )
    report({"loss": run.summary["loss"][-1]})


def main() -> None:
    """Start the workers, and say how it ended."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="trisect-ray-")).resolve()
    trainer = TorchTrainer(
        train,
        train_loop_config={"out": str(folder / "run")},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(folder / "ray")),
    )
    trainer.fit()
    summary = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))
    print(f"{summary['world']} ranks, loss {summary['loss'][-1]:.4f}; the run is in {folder / 'run'}")


if __name__ == "__main__":
    main()
