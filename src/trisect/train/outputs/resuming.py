"""`Resuming`: where a prediction of a recurrent model begins, and the state that it keeps for the next one."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from trisect.config import Config
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.nn.models.source import AnyModel, full_model, outline_of
from trisect.nn.temporal.dynamic import DynamicModel
from trisect.tasks import TaskContext
from trisect.train.assemble import feature_width
from trisect.train.job import Job
from trisect.train.outputs.new_data import Say
from trisect.train.outputs.predict import trained_parameters
from trisect.train.outputs.states import (
    StateFile,
    collect,
    digest_before,
    hand_to_ranks,
    isolated_states,
    state_file,
    state_files,
)
from trisect.train.outputs.steps import parse_steps
from trisect.train.run.digest import digest_arrays
from trisect.train.run.run_directory import RunDirectory
from trisect.views.trace import LayerTrace, trace_of


class Resuming:
    """Decides, once the data are read, with which step the ranks begin, and keeps a state when they have ended.

    Args:
        job: that predicts.
        folder: where ranks put their rows.
    """

    def __init__(self, job: Job, directory: RunDirectory, config: Config, folder: Path, say: Say) -> None:
        self._job, self._directory, self._config, self._folder, self._say = job, directory, config, folder, say
        self._next: StateFile | None = None
        self._sentence = ""

    def prepare(self, data: Graph | Timeline) -> None:
        """Tell the ranks where to begin; nothing where no state is carried along time."""
        if not isinstance(data, Timeline):
            return
        wanted = parse_steps(self._job.steps, data.steps)
        layers = [trace_of(layer, timeline=True) for layer in self._model(data, outline=True).stack]
        if not all(layer.state in ("vertex", "weight") for layer in layers):
            return
        if self._job.layout.time > 1:
            if wanted.start > 0:
                self._say("Runs from step 0: states are kept and used where time is not cut, as with --layout time=1.")
            return
        parameters = trained_parameters(self._directory)
        digest = digest_arrays({name: t for name, t in parameters.items() if name.startswith("model.")})
        first, states = self._begin(data, wanted.start, layers, digest)
        last = data.steps - 1
        keep = last if wanted.stop == data.steps and last > first else None
        if keep is not None:
            self._next = state_file(self._directory.path, keep, digest, data)
        if wanted.start > 0:
            kept = "" if keep is None else f" The state before step {keep} is kept for the next prediction."
            self._say(self._sentence + kept)
        hand_to_ranks(self._folder, first, keep, states)

    def keep(self) -> None:
        """Put the state that ranks handed back into the run directory."""
        if self._next is not None:
            try:
                self._next.write(collect(self._folder, self._next.vertices))
            except (OSError, SafetensorError) as error:  # a run directory may be there to read alone
                self._say(f"The state is not kept in {self._next.path.parent}: {error}")

    def _begin(
        self, data: Timeline, limit: int, layers: list[LayerTrace], parameters: str
    ) -> tuple[int, dict[str, Tensor]]:
        """Give the step to begin with and the states before it, of the latest file that fits; step 0 without one."""
        reason = "no state is kept yet" if limit > 0 else ""
        for file in state_files(self._directory.path):
            new = data.vertices - file.vertices
            if file.step > limit:
                reason = f"no state is kept of a step up to {limit}"
            elif file.parameters != parameters:
                reason = "the kept state is of other parameters"
            elif new < 0 or digest_before(data, file.step, file.vertices) != file.data:
                reason = f"the data before step {file.step} are not those of the kept state"
            elif new > 0 and any(layer.summarises for layer in layers):
                reason = f"{new:,} new vertices take part in what the weights evolve from, at earlier steps too"
            else:
                states = file.read()
                if states is not None and _fits(states, file.vertices, layers, self._config.train.dtype):
                    self._sentence = f"Begins at step {file.step} with the state that was kept before it."
                    return file.step, states if new == 0 else self._with_new(data, file, states, layers)
                reason = f"{file.path} is damaged"
        self._sentence = f"Runs from step 0: {reason}."
        return 0, {}

    def _with_new(
        self, data: Timeline, file: StateFile, states: dict[str, Tensor], layers: list[LayerTrace]
    ) -> dict[str, Tensor]:
        """Give the states with those of vertices that are new, and therefore had no edge before the step."""
        if not any(layer.state == "vertex" for layer in layers):
            return states
        model = self._model(data, outline=False)
        own = {n.removeprefix("model."): t for n, t in trained_parameters(self._directory).items()}
        dtype = self._config.train.dtype
        model.to(dtype).load_state_dict({name: own[name] for name in model.state_dict()})
        if not isinstance(model, DynamicModel):
            raise TypeError("internal error: a model without time has a state")
        for layer, state in isolated_states(model, data, file.step, file.vertices, dtype).items():
            for i, tensor in enumerate(state):
                states[f"{layer}.{i}"] = torch.cat([states[f"{layer}.{i}"], tensor])
        return states

    def _model(self, data: Timeline, *, outline: bool) -> AnyModel:
        channels = self._job.task.bind(data, TaskContext(self._job.options.seed, None)).channels
        make = outline_of if outline else full_model
        return make(self._job.model, feature_width(data), channels, data.edge_channels)


def _fits(states: dict[str, Tensor], vertices: int, layers: list[LayerTrace], dtype: torch.dtype) -> bool:
    """Say whether these are the states of such layers, by names, shapes and type."""
    shapes: dict[str, tuple[int, int]] = {}
    for number, layer in enumerate(layers):
        rows = layer.in_channels if layer.state == "weight" else vertices
        shapes |= {f"{number}.{i}": (rows, width) for i, width in enumerate(layer.form.widths if layer.form else ())}
    return {name: tuple(t.shape) for name, t in states.items()} == shapes and all(
        t.dtype == dtype for t in states.values()
    )
