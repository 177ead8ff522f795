"""`fit` under a layout: each rank is a process of its own, started here or by torchrun.

A rank that we start is `python -m trisect.train.fit_ranks`, a fresh interpreter: it never imports the caller's main
module, so that notebooks and scripts without a guard work. (A fork would inherit torch's thread pools in the middle of
their work, and autograd refuses it.) What to train is handed over on its standard input, pickled by this process and
read by its own child, never from a file of the user; the data lie cut in a temporary folder, as for the command line.
"""

from __future__ import annotations

import io
import json
import pickle
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trisect.errors import ConfigError
from trisect.graph.graph import Graph
from trisect.graph.timeline import Timeline
from trisect.layout import Layout
from trisect.runtime.exchange import Exchange
from trisect.runtime.faults import leave, reporting_failures
from trisect.runtime.joined import joined
from trisect.runtime.launch import launch, require_room
from trisect.runtime.ledger import Ledger
from trisect.runtime.memory import watched_memory
from trisect.runtime.world import World, world_from_environment
from trisect.train.loop import Recorder, Result, Trainer
from trisect.train.options import TrainOptions
from trisect.train.ranks import cut_data, history_of, rank_setup
from trisect.train.setup import ModelMaker
from trisect.train.shares import read_cut
from trisect.train.tasks import Task

_SHARES, _EPOCHS, _RESULT, _PARAMETERS = "shares", "epochs.jsonl", "result.json", "parameters.safetensors"
Found = tuple[dict[str, Any], dict[str, Tensor]]


@dataclass(frozen=True)
class Job:
    """What every rank of a call is told.

    Attributes:
        maker: makes the model, or gives the caller's.
        history: the parts of the recipe.
        timeout: seconds that a rank waits for another.
    """

    maker: ModelMaker
    task: Task
    layout: Layout
    history: Mapping[str, Any]
    options: TrainOptions
    timeout: float


def train_on_ranks(job: Job, graph: Graph | Timeline, recorder: Recorder) -> Found:
    """The measured part of a `Result`, as plain values, and all trained parameters by name.

    Under torchrun every rank of the world calls this, and all get the same; otherwise the ranks are started here.

    Args:
        recorder: told of epochs alone.
    """
    world = world_from_environment()
    cut = partial(_cut, job, graph)
    if world is not None:
        return _train(job, world, cut, _EpochsOnly(recorder.epoch))
    require_room(job.layout.world)
    with tempfile.TemporaryDirectory(prefix="trisect-fit-") as name:
        folder = Path(name)
        cut(folder / _SHARES)
        told = _Told(folder / _EPOCHS, recorder.epoch)
        command = [sys.executable, "-m", "trisect.train.fit_ranks"]
        launch(command, job.layout.world, given=_pickled((sys.path, name, job)), folders=[name], on_poll=told.tell)
        from safetensors.torch import load_file

        return json.loads((folder / _RESULT).read_text()), load_file(folder / _PARAMETERS)


def _cut(job: Job, graph: Graph | Timeline, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    cut_data(graph, job.maker, job.task, job.layout, job.options, folder)


def _train(job: Job, world: World, shares: Path | Callable[[Path], None], recorder: Recorder) -> Found:
    """One rank's work; what it returns is the same on all."""
    cuda = job.options.device.startswith("cuda")
    device = torch.device(f"cuda:{world.local_rank}" if cuda else "cpu")
    with watched_memory(), joined(job.layout, world, device, job.timeout, shares) as (mesh, folder):
        history = history_of(job.layout, job.history)
        setup = rank_setup(read_cut(folder), job.maker, job.task, mesh, job.options, history, world.local_size)
        result = Trainer(setup, job.options, recorder).run()
        own = {name: value.detach().cpu() for name, value in result.modules.state_dict().items()}
        tensors: dict[str, Tensor] = {}
        # ways and moments of a stage hold the same parameters
        for found in Exchange(mesh, Ledger()).gather(own if mesh.way == 0 and mesh.moment == 0 else {}):
            tensors.update(found)
    plain = {
        field.name: getattr(result, field.name) for field in fields(Result) if field.name not in ("modules", "program")
    }
    return plain, tensors


def _be_rank() -> None:
    """The main function of a rank that `train_on_ranks` has started."""
    given = io.BytesIO(sys.stdin.buffer.read())
    name, job = _unpickled(given)
    world = world_from_environment()
    if world is None:
        raise ConfigError("trisect.train.fit_ranks is started by trisect.fit alone.")
    with reporting_failures(world):
        folder = Path(name)
        recorder = _EpochsOnly(_Lines(folder / _EPOCHS).write if world.rank == 0 else lambda record: None)
        result, tensors = _train(job, world, folder / _SHARES, recorder)
        if world.rank == 0:
            from safetensors.torch import save_file

            save_file({name: value.contiguous() for name, value in tensors.items()}, folder / _PARAMETERS)
            (folder / _RESULT).write_text(json.dumps(result))
    leave(0)


class _EpochsOnly:
    """A recorder that hands on epochs: actions and checkpoints are a rank's own affair."""

    def __init__(self, epoch: Callable[[Mapping[str, Any]], None]) -> None:
        self._epoch = epoch

    def epoch(self, record: Mapping[str, Any]) -> None:
        self._epoch(record)

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        """Ignore."""

    def checkpoint(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, best: bool) -> None:
        """Ignore."""


class _Lines:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def write(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(dict(record)) + "\n")
        self._file.flush()


class _Told:
    """Hands on the lines that rank 0 has written since the last look."""

    def __init__(self, path: Path, epoch: Callable[[Mapping[str, Any]], None]) -> None:
        self._path, self._epoch, self._done = path, epoch, 0

    def tell(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._done)
            for line in file:
                if line.endswith(b"\n"):
                    self._done += len(line)
                    self._epoch(json.loads(line))


class _Pickler(pickle.Pickler):
    """Refuses what another process could not find."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type) and value.__module__ == "__main__":
            raise ConfigError(
                f"{value.__name__} is defined in the main module, which other processes do not import; move it to a"
                " module of its own, or install cloudpickle."
            )
        return NotImplemented


def _pickled(parts: tuple[Any, ...]) -> bytes:
    """Each part by itself, so that the first can be used to read the rest."""
    kind: type[pickle.Pickler] = _Pickler
    with suppress(ImportError):  # it can also send classes of a notebook, by value
        import cloudpickle  # type: ignore[import-untyped]

        kind = cloudpickle.Pickler
    out = io.BytesIO()
    try:
        for part in parts:
            kind(out).dump(part)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"the model or the task cannot be handed to other processes ({error}); leave out what holds files, threads"
            " or local functions, or leave out the layout."
        ) from None
    return out.getvalue()


def _unpickled(given: io.BytesIO) -> tuple[str, Job]:
    # written by our parent for us; the job may need modules that only the caller's path has
    sys.path[:] = pickle.load(given)  # noqa: S301
    return pickle.load(given), pickle.load(given)  # noqa: S301


if __name__ == "__main__":
    # under its own name, so that the job that was pickled there is of the same class
    from trisect.train import fit_ranks

    fit_ranks._be_rank()
