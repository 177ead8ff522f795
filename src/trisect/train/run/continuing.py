"""Whether a run can go on from its checkpoint; found out before any rank starts."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from trisect.errors import CheckpointError
from trisect.layout import Layout
from trisect.shards.graph_files import Cut, read_cut
from trisect.shards.timeline_files import TimelineCut
from trisect.train.assemble import name_modules, outlined
from trisect.train.job import Job
from trisect.train.program import history_name
from trisect.train.run.digest import FILE, require_same_data
from trisect.train.run.manifest import read_manifest
from trisect.train.run.run_directory import RunDirectory
from trisect.train.run.state import REMEDY, Shapes, require_state


def check_settings(job: Job) -> None:
    """Raise where another process writes to the run of a job, or the run was made with other settings."""
    with _opened(job):
        pass


def check_resume(job: Job, shards: Path) -> None:
    """Raise where a resumed run would stop: its settings differ from the run's, or its checkpoint does not fit.

    Sizes and hashes of files are compared by the ranks, which read them.

    Args:
        job: which trains a run directory.
        shards: the cut data.
    """
    with _opened(job) as directory:
        _check_newest(job, shards, directory)


def _opened(job: Job) -> AbstractContextManager[RunDirectory]:
    if job.run is None or job.config is None:
        raise CheckpointError("internal error: a job that is resumed has no run directory")
    return RunDirectory.writing(job.run, job.config, resume=True)


def _check_newest(job: Job, shards: Path, directory: RunDirectory) -> None:
    paths = directory.checkpoints.paths()
    for path in reversed(paths):
        try:
            manifest = read_manifest(path)
        except CheckpointError:
            if path == paths[0]:
                raise  # there is no other one to take
            continue  # the ranks say so, and take the one before
        if manifest["run"] != directory.checkpoints.run:
            continue
        require_same_data(manifest["meta"], (shards / FILE).read_text(), directory.path)
        cut = read_cut(shards)
        shapes = {name: tuple(entry["shape"]) for name, entry in manifest["tensors"].items()}
        require_state(shapes, _parameters(job, cut), f"The checkpoint {path}", complete=True)
        if isinstance(cut, Cut):
            _require_history(shapes, cut, job.layout, path)
        return


def _parameters(job: Job, cut: Cut | TimelineCut) -> dict[str, tuple[int, ...]]:
    """Give the shapes of all parameters of a run, by name."""
    data = cut.labels() if isinstance(cut, Cut) else cut.timeline
    bound, model = outlined(job.model, cut, data, job.task, job.options)
    modules = name_modules(model, bound.decoder(model.out_channels))
    return {name: tuple(value.shape) for name, value in modules.state_dict().items()}


def _require_history(shapes: Shapes, cut: Cut, layout: Layout, path: Path) -> None:
    """Raise where history that this layout would take up lacks a row for one that a rank reads."""
    history = history_name(layout, cut.order)
    for rank in range(layout.world):
        prefix = f"program.{history}rank-{rank}."
        rows = cut.rows(rank % layout.vertex)
        wanted = rows.stop - rows.start + cut.remote[rank % layout.vertex]
        for name, shape in shapes.items():
            if name.startswith(prefix) and (len(shape) != 2 or shape[0] != wanted):
                raise CheckpointError(
                    f"The checkpoint {path} has {name!r} of shape {list(shape)}, and the cut needs {wanted} rows (the"
                    f" graph was cut in another way); {REMEDY}"
                )
