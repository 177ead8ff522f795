"""A configuration on several ranks: what the launcher does before they start, and what each of them does."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from trisect import __version__
from trisect.config import Config
from trisect.data.records import TimelineRecord
from trisect.errors import LayoutError
from trisect.graph.graph import Graph
from trisect.layout import Layout
from trisect.runtime.exchange import Exchange
from trisect.runtime.launch import World
from trisect.runtime.ledger import Ledger
from trisect.runtime.mesh import connect, disconnect
from trisect.train.fit import model_maker
from trisect.train.from_config import load_record, resolve, seconds_per_epoch, train_options
from trisect.train.loop import Trainer
from trisect.train.ranks import RankRecorder, cut_data, history_of, rank_setup
from trisect.train.run_directory import RunDirectory
from trisect.train.setup import ModelMaker
from trisect.train.shares import Cut, read_cut
from trisect.train.supported import require_fit
from trisect.train.tasks import SPLITS

Say = Callable[[str], None]


def cut_from_config(config: Config, layout: Layout, folder: Path, data_dir: str | Path | None = None) -> Config:
    """Check everything, cut the data into `folder`, and give the configuration with every option filled in."""
    config = resolve(config, data_dir)
    record = load_record(config)
    if isinstance(record, TimelineRecord):
        require_fit(layout, layers=1, vertices=record.vertices, timeline=True)
        raise LayoutError("this version runs timelines on one rank; leave the layout out.")
    cut_data(Graph.from_record(record), _maker(config), config.task.model_dump(), layout, train_options(config), folder)
    return config


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
    device = torch.device(f"cuda:{world.local_rank}" if config.train.device.startswith("cuda") else "cpu")
    mesh = connect(layout, device, config.train.timeout)
    gather = Exchange(mesh, Ledger()).gather
    own_folder: Path | None = None
    try:
        if shares is None and world.local_rank == 0:
            own_folder = Path(tempfile.mkdtemp(prefix="trisect-shares-"))
            cut_from_config(config, layout, own_folder, data_dir)
        folders = gather(None if own_folder is None else str(own_folder))
        cut = read_cut(shares if shares is not None else Path(str(folders[world.rank - world.local_rank])))
        config = resolve(config, data_dir)
        directory = open_directory(config) if mesh.rank == 0 else None
        path = gather(None if directory is None else str(directory.path))[0]
        if directory is None:
            directory = RunDirectory(Path(path), config)
        history = history_of(layout, config.layout.history)
        options = train_options(config)
        setup = rank_setup(cut, _maker(config), config.task.model_dump(), mesh, options, history)
        state = None
        if resume:
            checkpoint = directory.checkpoints.latest(say)
            gather(None)  # nobody writes before all have read
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
        summary = _summary(config, layout, result, cut, directory, history is not None)
        if mesh.rank == 0:
            directory.write_summary(summary)
        return directory, summary
    finally:
        disconnect()
        if own_folder is not None:
            shutil.rmtree(own_folder, ignore_errors=True)


def _maker(config: Config) -> ModelMaker:
    model = config.model.model_dump(exclude_none=True)
    return model_maker(model.pop("name"), model, config.train.seed)


def _summary(
    config: Config, layout: Layout, result: Any, cut: Cut, directory: RunDirectory, stale: bool
) -> dict[str, Any]:
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
        "staleness": {"history": config.layout.history, "chunks": layout.chunks} if stale else None,
        "partition": cut.quality,
        "plan": {
            "seconds_per_epoch": None,
            "bytes_per_epoch": result.communication["formula_bytes_per_epoch"],
            "memory_bytes": None,
        },
    }
