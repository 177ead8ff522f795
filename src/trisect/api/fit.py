"""`trisect.fit`: a model, a graph and a task in one call, with progress and, where wanted, a run directory."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from trisect.api.progress import Progress
from trisect.api.stopping import conclude_stopped
from trisect.comm.world import world_from_environment
from trisect.config import TrainOptions
from trisect.errors import TrisectError
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.report import write_report
from trisect.tasks import Task, make_task
from trisect.tasks.edge_classification import EdgeClassification
from trisect.train.fit import ModelLike, as_data
from trisect.train.fit import fit as fit_quietly
from trisect.train.outputs.run import Run
from trisect.train.processes.faults import LostRankError, tell_torchrun
from trisect.train.processes.stopping import undisturbed
from trisect.train.recorders import Recorder
from trisect.train.run.run_directory import RunDirectory

_PATIENCE = 2.0  # seconds


def fit(
    model: ModelLike,
    graph: Any,
    task: str | Mapping[str, Any] | Task = "node-classification",
    layout: str | Mapping[str, Any] | Layout = "",
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    recorder: Recorder | None = None,
    **options: Any,
) -> Run:
    """Train a model on a graph or a timeline, in one process or under a layout.

        >>> graph = trisect.Graph.generate("community", vertices=20_000)                      # doctest: +SKIP
        >>> run = trisect.fit("gcnii", graph, "node-classification", epochs=50, layers=16)    # doctest: +SKIP
        >>> run.metrics["test"]["accuracy"]                                                   # doctest: +SKIP

    Args:
        model: a name (`gcn`, `gcnii`, `cd-gcn`, …), a `trisect.nn` model, or a list of layers.
        graph: a `Graph`, a `Timeline`, or PyG's `Data`, `TemporalData` or list of `Data`.
        task: a name, {name: …, options}, or a `Task`.
        layout: such as `vertex=2,layer=2`, a mapping, a `Layout`, or `auto`: what the planner picks. Where it cuts, the
            ranks are processes that are started here (no guard around the main module is needed), or under torchrun
            the world that is found. The model ends up with the trained parameters all the same.
        out: a run directory, with all that `trisect train` writes into one, the report too. Checkpoints are then
            written every `checkpoint_every` epochs (10); without it, none. After Ctrl-C it has a summary and a report
            of the epochs that were done, and KeyboardInterrupt is raised.
        resume: go on from the newest checkpoint in `out`, with the same model, data and task.
        progress: show how far the run is: a bar in a terminal and in a notebook, a line now and then elsewhere.
        recorder: receives epochs, events and checkpoints in one process; only epochs when the layout uses several.
        **options: of training (`TrainOptions`), and of the model where it is given by name. `loss`, `optimizer`,
            `scheduler`, `metrics` and `callbacks` may be functions, classes and objects of your own, which go to each
            rank (docs/guide.md); `clip`, `ema`.

    Parameters of a model given by name, and all randomness, are a function of `seed`; torch's global random state is
    neither read nor changed.
    """
    world = world_from_environment()
    first = world is None or world.rank == 0
    shown = Progress(options.get("epochs", TrainOptions.epochs)) if progress and first else None
    more: dict[str, Any] = {"out": out, "resume": resume, "recorder": recorder, **options}
    try:
        data, task = as_data(graph), make_task(task)
        with nullcontext() if shown is None else shown:
            run = fit_quietly(model, data, task, layout, listener=shown, **more)
    except TrisectError as error:
        if world is not None and not isinstance(error, LostRankError):
            tell_torchrun(str(error))
            if world.local_rank > 0 and "TORCHELASTIC_ERROR_FILE" in os.environ:
                time.sleep(_PATIENCE)  # torchrun ends this rank meanwhile: the first of a host prints the traceback
        raise
    except KeyboardInterrupt:
        if out is not None and first:
            with undisturbed():
                conclude_stopped(out, "SIGINT", (lambda text: None) if shown is None else shown.say)
        raise
    if shown is not None:
        shown.metrics(run.summary)
    if out is not None and first:
        directory = RunDirectory.reopen(out)
        if isinstance(data, Timeline) and isinstance(task, EdgeClassification):
            directory.name_classes(data.edge_class_names)
        else:
            directory.name_classes(data.class_names)
        report = write_report(directory)
        if shown is not None:
            shown.say(f"Report: {report}")
            shown.say(f"Run directory: {out}")
    return run
