"""How long a checkpoint holds up training, written beside the next epoch or before it.

An epoch is measured alone, with a checkpoint that is written first (synchronous), and with one that is copied first and
written beside it (asynchronous), turn by turn. Where writing lasts longer than the epoch, further epochs are run until
it is done, and what they lose counts too.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from trisect.config import TrainOptions
from trisect.errors import ConfigError
from trisect.graph.graph import Graph
from trisect.train.fit import model_maker
from trisect.train.loop import NoRecorder, Trainer
from trisect.train.run.checkpoint import Checkpoints
from trisect.train.run.writer import CheckpointWriter
from trisect.train.setup import Setup

MODES = ("none", "synchronous", "asynchronous")


def run(
    state: float = 1e9,
    hidden: int = 2048,
    vertices: int = 2000,
    rounds: int = 3,
    threads: int | None = None,
    directory: str | None = None,
) -> dict[str, Any]:
    """Train a GCN whose parameters and moments of Adam take `state` bytes, full batch, and write checkpoints.

    Args:
        hidden: the width of its layers; their number follows from the state.
        vertices: of the generated graph, which decide how long an epoch is.
        threads: of the epoch; None: as many as torch takes.
        directory: where the checkpoints are written; None: the folder for temporary files.
    """
    if rounds < 1:
        raise ConfigError(f"rounds is {rounds}; it must be at least 1.")
    if threads is not None:
        torch.set_num_threads(threads)
    layers = max(2, round(state / 12 / hidden**2) + 1)
    graph = Graph.generate("community", vertices=vertices, degree=10)
    options = TrainOptions(epochs=10**6, lr=1e-4)
    maker = model_maker("gcn", {"layers": layers, "hidden": hidden}, 0)
    trainer = Trainer(Setup.of(maker, graph, "node-classification", options), options, NoRecorder())
    epochs = iter(range(1, options.epochs))
    folder = Path(tempfile.mkdtemp(prefix="trisect-bench-", dir=directory))
    try:
        writers = {
            mode: CheckpointWriter(Checkpoints(folder / mode, run="bench", keep=1), asynchronous=mode == MODES[2])
            for mode in MODES[1:]
        }
        times: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
        for turn in range(rounds + 1):  # the first one makes moments and buffers
            for mode in MODES:
                one = _turn(trainer, lambda: next(epochs), writers.get(mode))
                if turn > 0:
                    times[mode].append(one)
        tensors = trainer.state_tensors(copied=False)
        size = sum(value.nbytes for value in tensors.values())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    alone = statistics.median(one["seconds"] for one in times[MODES[0]])
    result: dict[str, Any] = {
        "state_bytes": size,
        "layers": layers,
        "hidden": hidden,
        "vertices": vertices,
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "epoch_seconds": alone,
        "modes": {},
    }
    for mode in MODES[1:]:
        held = [one["seconds"] - one["epochs"] * alone for one in times[mode]]
        result["modes"][mode] = {
            "begin_seconds": statistics.median(one["begin"] for one in times[mode]),
            "whole_seconds": statistics.median(one["whole"] for one in times[mode]),
            "held_up_seconds": statistics.median(held),
            "share_of_an_epoch": statistics.median(held) / alone,
            "turns": times[mode],
        }
    return result


def _turn(trainer: Trainer, next_epoch: Callable[[], int], writer: CheckpointWriter | None) -> dict[str, float]:
    """Run an epoch after a checkpoint has begun, and further ones until that is whole."""
    start = time.perf_counter()
    begun = start
    if writer is not None:
        epoch = next_epoch()
        writer.begin(trainer.state_tensors(copied=False), lambda name: True, {"epoch": epoch}, best=False)
        begun = time.perf_counter()
    count, whole = 0, 0.0
    while count == 0 or (writer is not None and writer.writing):
        trainer.train_epoch(next_epoch())
        count += 1
    end = time.perf_counter()
    if writer is not None:
        writer.wait()
        whole = writer.seconds
    return {"seconds": end - start, "begin": begun - start, "whole": whole, "epochs": count}


def show(result: dict[str, Any]) -> None:
    """Print what a checkpoint costs, by the way it is written."""
    print(
        f"{result['state_bytes'] / 1e9:.2f} GB of parameters and moments (GCN, {result['layers']} layers of"
        f" {result['hidden']}), {result['vertices']:,} vertices, {result['threads']} threads: an epoch takes"
        f" {result['epoch_seconds']:.2f} s"
    )
    columns = ("before it goes on", "whole after", "held up", "of an epoch", "of ten")
    print(f"{'checkpoint':<14} " + " ".join(f"{name:>17}" for name in columns))
    for mode, one in result["modes"].items():
        seconds = (one["begin_seconds"], one["whole_seconds"], one["held_up_seconds"])
        shares = (one["share_of_an_epoch"], one["share_of_an_epoch"] / 10)
        cells = [*(f"{value:.2f} s" for value in seconds), *(f"{value:.1%}" for value in shares)]
        print(f"{mode:<14} " + " ".join(f"{cell:>17}" for cell in cells))
