"""Outputs of a finished run on several ranks: each computes and writes its own rows, exactly, and nobody holds all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from trisect.config import Config
from trisect.data.records import Names, TimelineRecord
from trisect.graph.adjacency import Adjacency
from trisect.layout import Layout
from trisect.nn.base import Context, Layer, Model
from trisect.runtime.exchange import Exchange
from trisect.runtime.joined import joined
from trisect.runtime.ledger import Ledger
from trisect.runtime.world import World
from trisect.train.distributed import cut_record, maker_of, rank_device, require_visible
from trisect.train.from_config import load_record, resolve, train_options
from trisect.train.pieces import Pieces
from trisect.train.predict import decoded, load_parameters, outputs, predictions, trained_parameters
from trisect.train.ranks import rank_setup
from trisect.train.run_directory import RunDirectory
from trisect.train.setup import AnyModel, ModelMaker
from trisect.train.shares import read_cut


def predicting(layout: Layout) -> Layout:
    """The same cut for outputs: exact, so that nothing is stale and rows cross as they are."""
    return replace(layout, chunks=1, wire="float32")


class RunCut:
    """Cuts the data of a run into a folder, and knows afterwards how its rows are called.

    Attributes:
        names: the user's vertex ids, or None where they are 0, 1, ….
        vertices, steps: how many.
    """

    def __init__(self, config: Config, layout: Layout, data_dir: str | Path | None) -> None:
        self._config, self._layout = resolve(config, data_dir), layout
        self.names: Names | None = None
        self.vertices, self.steps, self.timeline = 0, 1, False

    def __call__(self, folder: Path) -> None:
        """Read the data and cut them."""
        record = load_record(self._config)
        self.names, self.vertices = record.names, record.vertices
        if isinstance(record, TimelineRecord):
            self.steps, self.timeline = record.steps, True
        cut_record(self._config, record, self._layout, folder)


def predict_rank(
    directory: RunDirectory,
    layout: Layout,
    world: World,
    folder: Path,
    *,
    shares: Path | Callable[[Path], None],
    data_dir: str | Path | None = None,
    say: Callable[[str], None] = lambda sentence: None,
) -> None:
    """Write the pieces of this rank's rows into `folder`, which rank 0 has made; returns when all ranks have."""
    config = resolve(directory.config, data_dir)
    if config.train.threads is not None:
        torch.set_num_threads(config.train.threads)
    with joined(layout, world, rank_device(config, world), config.train.timeout, shares) as (mesh, cut_folder):
        gather = Exchange(mesh, Ledger()).gather
        require_visible(folder, gather)
        parameters = trained_parameters(directory, say, rank=mesh.rank, gather=gather)
        cut, options, task = read_cut(cut_folder), train_options(config), config.task.model_dump()
        pieces = Pieces(folder, mesh.rank)
        setup = rank_setup(cut, maker_of(config), task, mesh, options, None, world.local_size)
        load_parameters(setup, parameters, directory)
        if setup.timeline:
            found = outputs(setup)
        elif any(name.startswith("decoder.") for name in parameters):
            found = decoded(setup)
        else:
            # what the last layer reads is the output of a model whose last layer hands on what it reads
            below = rank_setup(cut, _Below(maker_of(config)), task, mesh, options, None)
            if "decoder" in below.modules:  # narrower or wider than the outputs, the task would decode it
                del below.modules["decoder"]
            load_parameters(below, parameters, directory)
            for first, frames in below.program.outputs(range(below.steps)):
                pieces.add(first, below.vertices, {"embedding": frames})
            found = predictions(setup)
        for first, columns in found:
            pieces.add(first, setup.vertices, columns)
        gather(None)


class _Below:
    """Makes a model without its last layer (but a model of one layer as it is)."""

    def __init__(self, maker: ModelMaker) -> None:
        self._maker = maker

    def __call__(self, in_channels: int, out_channels: int | None) -> AnyModel:
        model = self._maker(in_channels, out_channels)
        if not isinstance(model, Model) or len(model.stack) == 1:
            return model
        layers = [*model.stack[:-1], _Passing(model.stack[-1].in_channels)]
        return Model(layers, normalisation=model.normalisation, self_loops=model.self_loops)


class _Passing(Layer):
    spatial = False

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.in_channels = self.out_channels = channels

    def forward(self, x: Tensor, adjacency: Adjacency, context: Context) -> Tensor:
        return x
