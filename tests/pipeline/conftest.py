"""A rank of a run in this process: job and shards on disk, and the rank set up from them as a worker is."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from trisect.comm.mesh import Mesh
from trisect.config import TrainOptions
from trisect.graph.graph import Graph
from trisect.nn.models.source import NamedModel
from trisect.tasks import make_task
from trisect.train.job import SHARDS, Job
from trisect.train.ranks import cut_data
from trisect.train.setup import Setup
from trisect.train.worker import read_cut

RankOf = Callable[[Graph, NamedModel, Mesh, Path], Setup]


def _rank_of(data: Graph, model: NamedModel, mesh: Mesh, folder: Path) -> Setup:
    """Do the launcher's part, and then that of the rank at this place of the mesh, for node classification."""
    (folder / SHARDS).mkdir(parents=True)
    task = make_task("node-classification")
    written = Job("fit", model, task, TrainOptions(order="none"), mesh.layout)
    stream = io.BytesIO(written.write(folder))
    cut_data(data, written.model, task, written.layout, written.options, folder / SHARDS)
    job = Job.read(folder, stream)
    assert job.layout == mesh.layout
    cut, ranks = read_cut(folder / SHARDS), job.layout.world
    return Setup.of(job.model, cut, job.task, job.options, job.layout, mesh=mesh, local_ranks=ranks)


@pytest.fixture(scope="session")
def rank_of() -> RankOf:
    return _rank_of
