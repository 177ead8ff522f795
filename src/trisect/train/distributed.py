"""A configuration on several ranks: what the launcher does before they start, and what each of them does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import torch

from trisect import __version__
from trisect.config import Config
from trisect.data.records import Record
from trisect.errors import CheckpointError
from trisect.layout import Layout
from trisect.runtime.exchange import Exchange
from trisect.runtime.joined import joined
from trisect.runtime.ledger import Ledger
from trisect.runtime.memory import watched_memory
from trisect.runtime.neighbours import Gather
from trisect.runtime.world import World
from trisect.train.fit import model_maker
from trisect.train.from_config import (
    data_of,
    load_record,
    resolve,
    seconds_per_epoch,
    settled_layout,
    train_options,
)
from trisect.train.loop import Trainer
from trisect.train.ranks import RankRecorder, cut_data, history_of, rank_setup
from trisect.train.run_directory import RunDirectory
from trisect.train.setup import ModelMaker
from trisect.train.shares import Cut, read_cut
from trisect.train.tasks import SPLITS
from trisect.train.timeline_shares import TimelineCut

Say = Callable[[str], None]


def cut_from_config(config: Config, layout: Layout, folder: Path, data_dir: str | Path | None = None) -> Config:
    """Check everything, cut the data into `folder`, and give the configuration with every option filled in."""
    config = resolve(config, data_dir)
    cut_record(config, load_record(config), layout, folder)
    return config


def cut_record(config: Config, record: Record, layout: Layout, folder: Path) -> None:
    """Check that the layout fits the data and the model, and cut the data into `folder`."""
    data, task = data_of(config, record), config.task.model_dump()
    cut_data(data, maker_of(config), task, layout, train_options(config), folder, config.layout.partition)


def run_rank(
    config: Config,
    layout: Layout,
    world: World,
    open_directory: Callable[[Config], RunDirectory],
    *,
    shares: Path | None,
    data_dir: str | Path | None = None,
    resume: bool = False,
    say: Say = lambda sentence: None,
    on_epoch: Callable[[Mapping[str, Any]], None] = lambda record: None,
) -> tuple[RunDirectory, dict[str, Any]]:
    """Train this rank's share. All ranks return the same summary; rank 0 has written the files.

    Args:
        open_directory: makes or reopens the run directory; called by rank 0 alone.
        shares: where the data lie, cut; None (under torchrun): the first rank of each host cuts them here.
    """
    if config.train.threads is not None:
        torch.set_num_threads(config.train.threads)
    device = rank_device(config, world)
    source = shares if shares is not None else partial(_cut, config, layout, data_dir)
    with watched_memory(), joined(layout, world, device, config.train.timeout, source) as (mesh, folder):
        gather = Exchange(mesh, Ledger()).gather
        cut = read_cut(folder)
        config = resolve(config, data_dir)
        directory = open_directory(config) if mesh.rank == 0 else None
        path = gather(None if directory is None else str(directory.path.absolute()))[0]
        if directory is None:
            directory = RunDirectory(Path(path), config)
        require_visible(directory.path, gather)
        history = history_of(layout, config.layout.history.plain())
        options = train_options(config)
        setup = rank_setup(cut, maker_of(config), config.task.model_dump(), mesh, options, history, world.local_size)
        state = None
        if resume:
            # which returns when all have read, and not before: rank 0 writes next
            checkpoint = directory.checkpoints.latest(say, rank=mesh.rank, gather=gather)
            if checkpoint is not None:
                say(f"Continuing after epoch {checkpoint.epoch}.")
                state = (checkpoint.tensors, checkpoint.meta)
            if mesh.rank == 0:
                directory.continue_from(checkpoint)
            gather(None)
        with directory if mesh.rank == 0 else nullcontext():
            recorder = RankRecorder(directory, mesh, gather, on_epoch)
            try:
                trainer = Trainer(setup, options, recorder)
                if state is not None:
                    trainer.load(*state)
                result = trainer.run()
            finally:
                recorder.close()
        gather(None)  # every rank's events are on disk
        summary = _summary(settled_layout(layout, setup.program), result, cut, directory)
        if mesh.rank == 0:
            directory.write_summary(summary)
        return directory, summary


def rank_device(config: Config, world: World) -> torch.device:
    """The device of this rank among those of its host."""
    return torch.device(f"cuda:{world.local_rank}" if config.train.device.startswith("cuda") else "cpu")


def require_visible(folder: Path, gather: Gather) -> None:
    """Raise on all ranks where one of them does not see the folder that rank 0 sees."""
    blind = [str(rank) for rank, seen in enumerate(gather(folder.is_dir())) if not seen]
    if blind:
        raise CheckpointError(
            f"The directory {folder} does not exist where rank {', '.join(blind)} runs; put it on a file system that"
            " all hosts share."
        )


def _cut(config: Config, layout: Layout, data_dir: str | Path | None, folder: Path) -> None:
    cut_from_config(config, layout, folder, data_dir)


def maker_of(config: Config) -> ModelMaker:
    """The configuration's model, yet to be made."""
    model = config.model.model_dump(exclude_none=True)
    return model_maker(model.pop("name"), model, config.train.seed)


def _summary(layout: Layout, result: Any, cut: Cut | TimelineCut, directory: RunDirectory) -> dict[str, Any]:
    return {
        "version": __version__,
        "layout": {field.name: getattr(layout, field.name) for field in fields(Layout)},
        "world": layout.world,
        "epochs": result.epochs,
        "stopped_early": result.stopped_early,
        "seconds_per_epoch": seconds_per_epoch(directory.metrics()) if result.epochs else None,
        "loss": result.loss,
        "metrics": {split: result.metrics.get(split, {}) for split in SPLITS},
        "monitor": result.monitor,
        "best_epoch": result.best_epoch,
        "communication": result.communication,
        "transfer": result.transfer,
        "memory": result.memory,
        "staleness": result.staleness,
        "partition": cut.quality,
        "plan": {
            "seconds_per_epoch": None,
            "bytes_per_epoch": result.communication["formula_bytes_per_epoch"],
            "memory_bytes": None,
        },
    }
