"""States of a recurrent model before a step, kept in the run directory, so that a later prediction begins there.

A file has `LAYER.NUMBER`, the state tensors of each layer: a row a vertex in the user's order, or an evolved weight.
It is used with the same parameters and the same data before its step, and with no others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from trisect.graph.timeline.timeline import Timeline
from trisect.nn.base import State
from trisect.nn.temporal.dynamic import DynamicModel
from trisect.pipeline.resumption import Resumption
from trisect.settings.writing import drafted, to_json
from trisect.train.run.digest import digest_arrays
from trisect.train.setup import Setup
from trisect.views.along import Alone
from trisect.views.local import Local
from trisect.views.verbs import Asked
from trisect.views.view import View

FOLDER = "state"
_KEPT = 3
_BLOCK = 16
_BEGIN, _STATES = "begin.json", "begin.safetensors"


@dataclass(frozen=True)
class StateFile:
    """A state that is kept, and what it belongs to.

    Attributes:
        step: it is the state before this step.
        vertices: how many there were.
        parameters, data: digests of the model's parameters and of the data before the step.
    """

    path: Path
    step: int
    vertices: int
    parameters: str
    data: str

    def read(self) -> dict[str, Tensor] | None:
        """Give the tensors; None where they are not what was written."""
        try:
            with safe_open(self.path, "pt") as file:
                expected = (file.metadata() or {}).get("content")
            tensors = load_file(self.path)
        except (OSError, SafetensorError):
            return None
        return tensors if digest_arrays(tensors) == expected else None

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """Write it, and remove the oldest where there are many."""
        self.path.parent.mkdir(exist_ok=True)
        meta = {"step": self.step, "vertices": self.vertices, "parameters": self.parameters, "data": self.data}
        plain = {name: str(value) for name, value in meta.items()} | {"content": digest_arrays(tensors)}
        with drafted(self.path) as draft:
            save_file(dict(tensors), draft, plain)
        by_age = sorted(self.path.parent.glob("step-*.safetensors"), key=lambda path: path.stat().st_mtime)
        for path in by_age[:-_KEPT]:
            path.unlink(missing_ok=True)


def state_file(run: Path, step: int, parameters: str, timeline: Timeline) -> StateFile:
    """Name the file of the state before a step of a timeline."""
    data = digest_before(timeline, step, timeline.vertices)
    path = run / FOLDER / f"step-{step}-{data[:8]}.safetensors"
    return StateFile(path, step, timeline.vertices, parameters, data)


def state_files(run: Path) -> list[StateFile]:
    """List the states that are kept, those of late steps first; files that are none are passed over."""
    files = [_described(path) for path in (run / FOLDER).glob("step-*.safetensors")]
    return sorted((file for file in files if file is not None), key=lambda file: -file.step)


def _described(path: Path) -> StateFile | None:
    if not path.is_file():
        return None
    try:
        with safe_open(path, "pt") as file:
            meta = file.metadata() or {}
        step, vertices = int(meta["step"]), int(meta["vertices"])
        return StateFile(path, step, vertices, meta["parameters"], meta["data"]) if min(step, vertices) >= 0 else None
    except (OSError, SafetensorError, KeyError, ValueError):
        return None


def digest_before(timeline: Timeline, step: int, vertices: int) -> str:
    """Give the digest of all that the steps before one say of the first so many vertices."""
    events = int(timeline.offsets[step])
    x = timeline.x
    arrays = {name: getattr(timeline, name) for name in ("src", "dst", "weight", "edge_x")}
    cut: dict[str, Tensor | None] = {name: None if a is None else a[:events] for name, a in arrays.items()}
    cut["offsets"] = timeline.offsets[: step + 1]
    cut["x"] = None if x is None else x[:vertices] if x.dim() == 2 else x[:step, :vertices]
    return digest_arrays({**cut, f"{timeline.undirected} {timeline.smoothing} {timeline.merge}": None})


@torch.no_grad()
def isolated_states(
    model: DynamicModel, timeline: Timeline, steps: int, first: int, dtype: torch.dtype
) -> dict[int, State]:
    """Give by layer the state, before step `steps`, of the vertices first, first + 1, …, without an edge until then.

    It is computed from their own features, since biases and features act without edges too.
    """
    x, weight, edge_x = (
        timeline.x,
        timeline.weight,
        timeline.edge_x if model.edge_channels or timeline.relations else None,
    )
    alone = replace(
        timeline,
        src=timeline.src[:0],
        dst=timeline.dst[:0],
        weight=None if weight is None else weight[:0],
        edge_x=None if edge_x is None else edge_x[:0],
        vertices=timeline.vertices - first,
        offsets=torch.zeros(steps + 1, dtype=torch.int64),
        x=None if x is None else x[first:] if x.dim() == 2 else x[:steps, first:],
        y=None,
        edge_y=None,
        splits={},
        names=None,
        steps=steps,
    )
    form: dict[str, Any] = {"normalisation": model.normalisation, "self_loops": model.self_loops}
    form["dtype"] = torch.float64 if dtype == torch.float64 else torch.float32
    features, states = alone.features().to(dtype), dict[Asked, State]()
    for start in range(0, steps, _BLOCK):
        stop = min(start + _BLOCK, steps)
        xs = features.expand(stop - start, -1, -1) if features.dim() == 2 else features[start:stop]
        along, snapshots = Alone(states, start), alone.snapshots(**form, start=start, stop=stop)
        model(xs, View(Local(snapshots, alone.vertices), along, steps=range(start, stop), relations=timeline.relations))
        states = along.after
    return {call[0]: state for call, state in states.items()}


# Between the process that reads the data and the ranks: files in the folder of the rows


def hand_to_ranks(folder: Path, first: int, keep: int | None, tensors: Mapping[str, Tensor]) -> None:
    """Tell ranks with which step to begin, with which states, and before which step to keep them."""
    save_file(dict(tensors), folder / _STATES)
    (folder / _BEGIN).write_text(to_json({"first": first, "keep": keep}))


def resume(setup: Setup, folder: Path) -> None:
    """Let the outputs of a rank begin as `hand_to_ranks` says; at step 0 where it says nothing."""
    if not (folder / _BEGIN).exists():
        return
    program, told = setup.program, json.loads((folder / _BEGIN).read_text())
    resumption = program.resumption = Resumption(told["first"], {}, told["keep"])
    plan, vertices = program.plan, program.shard.vertices
    with safe_open(folder / _STATES, "pt") as file:
        names = set(file.keys())
        for layer in range(plan.bounds[program.mesh.stage_index], plan.bounds[program.mesh.stage_index + 1]):
            own = [file.get_tensor(f"{layer}.{i}") for i in range(len(names)) if f"{layer}.{i}" in names]
            if plan.layers[layer].state == "vertex" and vertices is not None:
                own = [tensor[vertices.cpu()] for tensor in own]
            if own:
                resumption.states[layer] = tuple(tensor.to(program.mesh.device) for tensor in own)


def hand_back(setup: Setup, folder: Path) -> None:
    """Write the states of a rank's rows that were kept, for `collect`."""
    program = setup.program
    if program.resumption is None or not program.resumption.kept:
        return
    rows, vertices = program.shard.rows, program.shard.vertices
    tensors = {"vertices": torch.arange(rows) if vertices is None else vertices}
    for layer, state in program.resumption.kept.items():
        kind = program.plan.layers[layer].state
        tensors |= {f"{kind}.{layer}.{i}": tensor for i, tensor in enumerate(state)}
    plain = {name: tensor.cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    save_file(plain, folder / f"state-{program.mesh.rank:05d}.safetensors")


def collect(folder: Path, vertices: int) -> dict[str, Tensor]:
    """Give the states that all ranks handed back, as a `StateFile` has them; empty where there are none."""
    states: dict[str, Tensor] = {}
    for path in sorted(folder.glob("state-*.safetensors")):
        tensors = load_file(path)
        rows = tensors.pop("vertices")
        for name, tensor in tensors.items():
            kind, _, key = name.partition(".")
            if kind == "weight":
                states[key] = tensor
            else:
                states.setdefault(key, tensor.new_empty(vertices, tensor.shape[1]))[rows] = tensor
    return states
