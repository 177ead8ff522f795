"""Start a job on local ranks: cut once, write the job beside the shards, and wait for the workers."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trisect.train.job import SHARDS, TOLD, Job
from trisect.train.processes.launch import launch, require_room
from trisect.train.processes.listening import Listener, Relay


@contextmanager
def run_on_ranks(
    job: Job,
    cut: Callable[[Path], None],
    listener: Listener,
    *,
    before: Callable[[Path], None] = lambda shards: None,
    folders: Sequence[Path] = (),
) -> Iterator[Path]:
    """Run a job on ranks that are started here. What they left for us is in the folder, as long as the context lasts.

    Args:
        cut: writes the shards into a folder.
        listener: is told what rank 0 says.
        before: called with the shards before any rank starts; a last chance to refuse.
        folders: more temporary folders of the caller, which the ranks remove if this process is killed.
    """
    require_room(job.layout.world)
    with tempfile.TemporaryDirectory(prefix="trisect-job-") as name:
        folder = Path(name)
        shards = folder / SHARDS
        shards.mkdir()
        cut(shards)
        before(shards)
        objects = job.write(folder)
        launch(
            [sys.executable, "-m", "trisect.train.worker", name],
            job.layout.world,
            threads=job.options.threads,
            handed=objects,
            folders=[name, *folders],
            on_poll=Relay(folder / TOLD, listener).tell,
        )
        yield folder
