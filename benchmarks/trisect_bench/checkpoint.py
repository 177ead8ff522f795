"""How long a checkpoint holds up training, written beside the next epochs or before them.

What a checkpoint costs is measured with short epochs of a model with the whole state: epochs are run until the
checkpoint is whole, and what they and it took beyond as many epochs alone is the time that training was held up.
(Single long epochs differ from each other by more than that.) An epoch of a size that such a model is trained with is
then measured too, for the share.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from trisect.config import TrainOptions
from trisect.errors import ConfigError
from trisect.graph.graph import Graph
from trisect.train.fit import model_maker
from trisect.train.loop import Trainer
from trisect.train.recorders import NoRecorder
from trisect.train.run.checkpoint import Checkpoints
from trisect.train.run.writer import CheckpointWriter
from trisect.train.setup import Setup

MODES = ("none", "synchronous", "asynchronous")


def run(
    state: float = 1e9,
    hidden: int = 2048,
    vertices: int = 6000,
    short: int = 200,
    rounds: int = 8,
    threads: int | None = None,
    directory: str | None = None,
) -> dict[str, Any]:
    """Train a GCN whose parameters and moments of Adam take `state` bytes, full batch, and write checkpoints.

    Args:
        hidden: the width of its layers; their number follows from the state.
        vertices, short: of the graph of a whole epoch, and of the short ones.
        threads: of the epoch; None: as many as torch takes.
        directory: where the checkpoints are written; None: the folder for temporary files.
    """
    if rounds < 1:
        raise ConfigError(f"rounds is {rounds}; it must be at least 1.")
    if threads is not None:
        torch.set_num_threads(threads)
    layers = max(2, round(state / 12 / hidden**2) + 1)
    trainer = _trainer(layers, hidden, short)
    folder = Path(tempfile.mkdtemp(prefix="trisect-bench-", dir=directory))
    try:
        writers = {
            mode: CheckpointWriter(Checkpoints(folder / mode, run="bench", keep=1), asynchronous=mode == MODES[2])
            for mode in MODES[1:]
        }
        times: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
        for turn in range(rounds + 1):  # the first one makes moments and buffers
            for mode in MODES:
                one = _turn(trainer, turn + 1, writers.get(mode))
                if turn > 0:
                    times[mode].append(one)
        size = sum(value.nbytes for value in trainer.state_tensors(copied=False).values())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    del trainer
    whole = _trainer(layers, hidden, vertices)
    epochs = [_turn(whole, epoch, None)["seconds"] for epoch in (1, 2)]  # the first one also makes the moments
    alone = statistics.median(one["seconds"] for one in times[MODES[0]])
    result: dict[str, Any] = {
        "state_bytes": size,
        "layers": layers,
        "hidden": hidden,
        "vertices": vertices,
        "short": short,
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "short_epochs": [one["seconds"] for one in times[MODES[0]]],
        "epoch_seconds": epochs[-1],
        "modes": {},
    }
    for mode in MODES[1:]:
        held = [one["seconds"] - one["epochs"] * alone for one in times[mode]]
        result["modes"][mode] = {
            "begin_seconds": statistics.median(one["begin"] for one in times[mode]),
            "whole_seconds": statistics.median(one["whole"] for one in times[mode]),
            "held_up_seconds": statistics.median(held),
            "share_of_an_epoch": statistics.median(held) / result["epoch_seconds"],
            "held_up": held,
            "turns": times[mode],
        }
    return result


def _trainer(layers: int, hidden: int, vertices: int) -> Trainer:
    options = TrainOptions(epochs=10**6, lr=1e-4)
    graph = Graph.generate("community", vertices=vertices, degree=10)
    maker = model_maker("gcn", {"layers": layers, "hidden": hidden}, 0)
    return Trainer(Setup.of(maker, graph, "node-classification", options), options, NoRecorder())


def _turn(trainer: Trainer, epoch: int, writer: CheckpointWriter | None) -> dict[str, float]:
    """Run an epoch after a checkpoint has begun, and further ones until that is whole."""
    start = begun = time.perf_counter()
    if writer is not None:
        writer.begin(trainer.state_tensors(copied=False), lambda name: True, {"epoch": epoch}, best=False)
        begun = time.perf_counter()
    count = 0
    while count == 0 or (writer is not None and writer.writing):
        trainer.train_epoch(epoch)
        count += 1
    end = time.perf_counter()
    if writer is not None:
        writer.wait()
    whole = 0.0 if writer is None else writer.seconds
    return {"seconds": end - start, "begin": begun - start, "whole": whole, "epochs": count}


def show(result: dict[str, Any]) -> None:
    """Print what a checkpoint costs, by the way it is written."""
    spread = sorted(result["short_epochs"])
    print(
        f"{result['state_bytes'] / 1e9:.2f} GB of parameters and moments (GCN, {result['layers']} layers of"
        f" {result['hidden']}), {result['threads']} threads. An epoch on {result['vertices']:,} vertices takes"
        f" {result['epoch_seconds']:.1f} s; short ones on {result['short']:,} take {spread[0]:.2f} to"
        f" {spread[-1]:.2f} s."
    )
    columns = ("before it goes on", "whole after", "held up in all", "least", "most", "of an epoch")
    print(f"{'checkpoint':<14} " + " ".join(f"{name:>17}" for name in columns))
    for mode, one in result["modes"].items():
        seconds = (
            one["begin_seconds"],
            one["whole_seconds"],
            one["held_up_seconds"],
            min(one["held_up"]),
            max(one["held_up"]),
        )
        cells = [*(f"{value:.2f} s" for value in seconds), f"{one['share_of_an_epoch']:.1%}"]
        print(f"{mode:<14} " + " ".join(f"{cell:>17}" for cell in cells))
