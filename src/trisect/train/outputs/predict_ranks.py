"""Outputs of a finished run on several ranks: each computes and writes its own rows, exactly, and nobody holds all."""

from __future__ import annotations

from dataclasses import replace

from trisect.comm.mesh import Mesh
from trisect.comm.neighbours import Gather
from trisect.errors import ConfigError
from trisect.layout import Layout
from trisect.shards.shares import Cut
from trisect.shards.timeline_shares import TimelineCut
from trisect.train.job import Job
from trisect.train.outputs.predict import load_parameters, outputs, trained_parameters
from trisect.train.outputs.saved_rows import RowsWriter
from trisect.train.processes.listening import Listener
from trisect.train.ranks import rank_setup
from trisect.train.run.run_directory import RunDirectory


def predicting(layout: Layout) -> Layout:
    """The same cut for outputs: exact, so that nothing is stale and rows cross as they are."""
    return replace(layout, chunks=1, wire="float32")


def write_rows(
    job: Job,
    directory: RunDirectory,
    cut: Cut | TimelineCut,
    mesh: Mesh,
    gather: Gather,
    local_ranks: int,
    listener: Listener,
) -> None:
    """Write this rank's rows, with the parameters of the run's best epoch, into the job's folder of saved rows."""
    if job.rows is None:
        raise ConfigError("internal error: a job that predicts has no folder for its rows")
    parameters = trained_parameters(directory, listener.say, rank=mesh.rank, gather=gather)
    rows = RowsWriter(job.rows, mesh.rank)
    setup = rank_setup(cut, job.model, job.task, mesh, job.options, local_ranks)
    load_parameters(setup, parameters, directory)
    for first, columns in outputs(setup):
        rows.add(first, setup.vertices, columns)
