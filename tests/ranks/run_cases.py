"""A case of a cut goes the way of a run: the launcher writes a job and shards, each rank reads them and sets itself up.

The launcher's part (`write_run`) is done once for a world, before its ranks start. Hand-made cuts, which no partitioner
would choose, are handed to the writer of shards in place of the partitioner's.
"""

from __future__ import annotations

import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.append(str(Path(__file__).parents[1]))

import torch
from limits import library_limits
from torch import Tensor, nn

from plain_norm import with_plain_norms
from trisect.comm import wire
from trisect.comm.ledger import Ledger
from trisect.comm.mesh import Mesh, connect
from trisect.comm.rows import Rows
from trisect.comm.transport import Transport
from trisect.config import TrainOptions
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.nn.models.source import AnyModel, NamedModel, full_model
from trisect.ops import elementwise
from trisect.ops.packing import Packed
from trisect.partition.partition import Partition
from trisect.pipeline.stage import Stage
from trisect.plan.build import schedule_of
from trisect.plan.volume import volume
from trisect.tasks import BoundTask, Task, TaskContext
from trisect.train import assemble, ranks
from trisect.train.job import SHARDS, Job
from trisect.train.loop import Trainer
from trisect.train.program import Program
from trisect.train.recorders import NoRecorder
from trisect.train.setup import Setup
from trisect.train.worker import read_cut
from trisect.views import halo
from trisect.views.rows import same_rows

SEED, EPOCH = 9, 2
HANDED = "handed"
Case = dict[str, Any]
Runs = tuple[tuple[range, ...], ...]
_MESHES: dict[tuple[int, int, int], Mesh] = {}


@dataclass(frozen=True)
class Recipe:
    """What a case trains: the data, the model and the task; `partition` and `runs` where the case cuts by hand."""

    data: Graph | Timeline
    model: NamedModel | AnyModel
    task: Task
    partition: Partition | None = None
    runs: Runs | None = None


def layout_of(case: Case) -> Layout:
    """Give the case's layout, whose rows cross as a halo unless it says otherwise."""
    return options_of(case).steps.laid_out(Layout(**{"spatial": "halo", **case["layout"]}))


def options_of(case: Case) -> TrainOptions:
    """Give the options of a case: float64 unless it says otherwise."""
    return TrainOptions(
        seed=case.get("seed", SEED),
        precision=case.get("precision", "float64"),
        epochs=20,
        eval_every=20,
        **case.get("train", {}),
    )


def write_run(case: Case, recipe: Recipe, folder: Path) -> None:
    """Do what a launcher does: write the job, and cut the data into the shards of all ranks."""
    job = Job("fit", recipe.model, recipe.task, options_of(case), layout_of(case))
    shards = folder / SHARDS
    shards.mkdir(parents=True)
    (folder / HANDED).write_bytes(job.write(folder))
    # the first aggregation of a timeline is kept where memory allows it
    free = 1 << 40 if case.get("aggregated") else 0
    with _cut_by_hand(recipe), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ranks.cut_data(recipe.data, job.model, job.task, job.layout, job.options, shards, free=free)


@contextmanager
def _cut_by_hand(recipe: Recipe) -> Iterator[None]:
    with ExitStack() as stack:
        if recipe.partition is not None:
            files = sys.modules[ranks.Cut.__module__]  # which writes the shards of a graph
            stack.enter_context(patch.object(files, "cut_graph", lambda *values, **named: recipe.partition))
            stack.enter_context(patch.object(ranks, "cut_timeline", lambda *values, **named: recipe.partition))
        if recipe.runs is not None:
            stack.enter_context(patch.object(ranks, "deal", lambda *values: recipe.runs))
        yield


def mesh_of(layout: Layout) -> Mesh:
    """Give this rank's mesh; groups are made once for all cases of a world."""
    key = (layout.time, layout.layer, layout.vertex)
    if key not in _MESHES:
        _MESHES[key] = connect(layout, torch.device("cpu"), 60)
    return replace(_MESHES[key], layout=layout)


class RankOfCase:
    """One rank of a case, set up from the job and its shard as a worker is, and one process to compare it with.

    Attributes:
        modules: `model` and, where the task trains something, `decoder` of one process; the same names as the rank's.
    """

    def __init__(self, case: Case, recipe: Recipe, folder: Path) -> None:
        self.case, self.recipe = case, recipe
        halo.OVERLAP_ROWS = 1 if case.get("overlap", isinstance(recipe.data, Graph)) else 1 << 30
        with (folder / HANDED).open("rb") as stream:
            self.job = job = Job.read(folder, stream)
        self.cut = read_cut(folder / SHARDS)
        mesh = mesh_of(job.layout)
        world = job.layout.world
        self.setup = Setup.of(job.model, self.cut, job.task, job.options, job.layout, mesh=mesh, local_ranks=world)
        self.program: Program = self.setup.program
        self.gather = Transport(mesh, Ledger()).gather
        self.bound: BoundTask = job.task.bind(recipe.data, TaskContext(job.options.seed))
        features = recipe.data.features()
        self.features = features.to(job.options.dtype)
        self.model: Any = full_model(recipe.model, features.shape[-1], self.bound.channels, recipe.data.edge_channels)
        self.decoder = assemble.make_decoder(self.bound, self.model, job.options)
        self.modules = nn.ModuleDict({"model": self.model})
        if self.decoder is not None:
            self.modules["decoder"] = self.decoder
        self.modules.to(job.options.dtype)
        with_plain_norms(self.modules)

    def epoch(self, number: int = EPOCH) -> float:
        """Run one epoch of the program; the gradients are in the rank's modules. Give the loss of all ranks."""
        self.setup.modules.zero_grad()
        self.program.ledger.clear()
        self.program.begin(number)
        observer = _Late(self.program.mesh.rank) if self.case.get("delayed") else None
        self.program.run(observer)
        return self.program.finish()

    def taken_gradients(self, loss: Tensor) -> dict[str, Tensor]:
        """Give every gradient of one process by name."""
        loss.backward()  # type: ignore[no-untyped-call]
        wanted = {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for name, p in self.modules.named_parameters()
        }
        self.modules.zero_grad()
        return wanted

    def errors(self, wanted: dict[str, Tensor]) -> dict[str, tuple[float, float]]:
        """Give the largest error of each gradient of this rank's modules, and the largest element of that gradient."""
        own = dict(self.setup.modules.named_parameters())
        assert own.keys() <= wanted.keys()
        errors = {}
        for name, parameter in own.items():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            errors[name] = (float((gradient - wanted[name]).abs().max()), float(wanted[name].abs().max()))
        return errors

    def running(self) -> float:
        """Give the largest difference of a buffer of this rank's modules to one process."""
        wanted = dict(self.modules.named_buffers())
        own = self.setup.modules.named_buffers()
        pairs = [(value, wanted[name]) for name, value in own if not name.endswith("num_batches_tracked")]
        return max((float((a - b).abs().max()) for a, b in pairs), default=0.0)

    def worst(self, wanted: dict[str, Tensor]) -> float:
        """Give the largest relative error of a gradient of this rank's modules."""
        return max((error / max(size, 1e-12) for error, size in self.errors(wanted).values()), default=0.0)

    def clipped(self, wanted: dict[str, Tensor]) -> dict[str, Any]:
        """Run one epoch of the trainer, by plain descent with `clip`; compare each step with that of one process, whose
        gradients all have the factor `scale`."""
        options = self.job.options
        assert options.clip is not None
        norm = float(sum(g.square().sum() for g in wanted.values())) ** 0.5
        scale = options.clip / (norm + 1e-6)  # as torch.nn.utils.clip_grad_norm_ has it
        own = dict(self.setup.modules.named_parameters())
        before = {name: parameter.detach().clone() for name, parameter in own.items()}
        trainer = Trainer(self.setup, options, NoRecorder())
        wrong = patch.object(Program, "total_square", lambda program, square: program.total(square))
        with wrong if self.case.get("break") == "norm" else nullcontext():
            trainer.train_epoch(EPOCH)
        step = {name: (before[name] - parameter.detach()) / options.lr for name, parameter in own.items()}
        errors = [
            float((step[name] - scale * wanted[name]).abs().max() / (scale * wanted[name]).abs().max().clamp(min=1e-12))
            for name in own
        ]
        return {"scale": scale, "step": max(errors), "compared": sorted(own), "parameters": sorted(wanted)}

    def packed(self) -> list[int] | None:
        """Give the bytes of activations in full, and as they were held, where they are packed."""
        packed = self.program.engine.packed
        return None if packed is None else [packed.full_bytes, packed.held_bytes]

    def own_parameters(self) -> list[str]:
        """Give the names of the parameters that this rank holds."""
        return [name for name, _ in self.setup.modules.named_parameters()]

    def sent(self) -> dict[str, int]:
        """Give the bytes that all ranks sent in the last epoch, by axis and kind."""
        total: dict[str, int] = {}
        entries = [(f"{entry.axis}/{entry.kind}", entry.bytes) for entry in self.program.ledger.entries()]
        for key, size in (entry for one_rank in self.gather(entries) for entry in one_rank if entry[1]):
            total[key] = total.get(key, 0) + size
        return dict(sorted(total.items()))

    def formula(self) -> dict[str, int]:
        """Give the bytes of an exact epoch by formula; their sum is what the program says of itself."""
        plan, fetched = self.program.plan, []
        if plan.fetches:
            divided = self.setup.task.divide(self.cut.starts, 0)
            steps = range(plan.runs[-1][-1].stop)
            fetched = [sum(r.numel() for r in divided.wanted(s, self.program.noise) or ()) for s in steps]
        moved = volume(plan, schedule_of(plan), fetched)
        assert sum(moved.values()) == self.program.formula_bytes
        return {"/".join(key): size for key, size in sorted(moved.items()) if size}

    def alone(self, steps: range, *, hidden: bool) -> Tensor:
        """Give the outputs of a program of one process [steps, vertices, channels]."""
        recipe, job = self.recipe, self.job
        with library_limits(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            alone = Setup.of(self.model, recipe.data, job.task, job.options)
            pieces = [frames for _, frames in alone.program.outputs(steps, hidden=hidden)]
        return alone.to_user_order(torch.cat(pieces), 1)

    def evaluated(self, steps: range, wanted: Tensor | None, *, hidden: bool) -> float:
        """Give the largest error of exact outputs of the own rows against `wanted` [steps, vertices, channels].

        Without `wanted` they are compared with the outputs of a program of one process.
        """
        if wanted is None:
            wanted = self.alone(steps, hidden=hidden)
        vertices = self.program.shard.vertices
        own = torch.arange(wanted.shape[1]) if vertices is None else vertices
        worst, seen = 0.0, torch.zeros(steps.stop, dtype=torch.int64)
        for first, frames in self.program.outputs(steps, hidden=hidden):
            reference = wanted[first : first + len(frames), own]
            assert frames.shape == reference.shape
            if frames.numel():
                worst = max(worst, float((frames - reference).abs().max()))
            seen[first : first + len(frames)] += 1
        everywhere = torch.stack(self.gather(seen)).sum(0)
        complete = bool((everywhere == self.program.plan.parts).all())
        return worst if complete else float("inf")


@contextmanager
def run_again() -> Iterator[list[int]]:
    """The groups of layers that a rank runs a second time, since nothing of them was kept for backward."""
    honest, again, seen = Stage.run, list[int](), set[tuple[int, int]]()

    def run(stage: Stage, group: int, values: Any, view: Any) -> Any:
        if (id(stage), group) in seen:
            again.append(group)
        seen.add((id(stage), group))
        return honest(stage, group, values, view)

    with patch.object(Stage, "run", run):
        yield again


@contextmanager
def summed_beside() -> Iterator[list[int]]:
    """How many rows each sum had that a rank did while a halo was on its way."""
    begin, arrived, aggregate = halo.Halo._begin, halo.Halo._arrived, halo.aggregate_into
    away, sums = set[object](), list[int]()

    def begun(self: Any, *values: Any, **named: Any) -> Any:
        away.add(self)
        return begin(self, *values, **named)

    def ended(self: Any, *values: Any, **named: Any) -> Any:
        away.discard(self)
        return arrived(self, *values, **named)

    def summed(out: Tensor, *values: Any, **named: Any) -> Any:
        if away:
            sums.append(len(out))
        return aggregate(out, *values, **named)

    with (
        patch.object(halo.Halo, "_begin", begun),
        patch.object(halo.Halo, "_arrived", ended),
        patch.object(halo, "aggregate_into", summed),
    ):
        yield sums


class _Late:
    """An observer that makes its rank late at random."""

    def __init__(self, rank: int) -> None:
        self._delays = random.Random(rank)

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        time.sleep(self._delays.random() * 0.002)


@contextmanager
def broken(which: str | None) -> Iterator[None]:
    """Make what one exchange sends, or what was packed, a little too large, so that the comparison must fail.

    `pooled`: a product in memory of the pool, which tensors of few bytes are not in, is too large.
    `wire`: all that is read off the wire is twice what was sent, as with a wrong scale of int8. `follow`: halo rows are
    read as if they followed the own ones, wherever they lie.
    """
    begin_swap, send = Transport.begin_swap, Transport.send

    def spoilt(rows: Any) -> Tensor:
        return (rows.gathered() if isinstance(rows, Rows) else rows) * 1.01

    def wrong_swap(self: Transport, outgoing: Sequence[Any], *values: Any, **named: Any) -> Any:
        return begin_swap(self, [spoilt(rows) for rows in outgoing], *values, **named)

    def wrong_send(self: Transport, x: Any, *values: Any, **named: Any) -> Any:
        return send(self, spoilt(x) if which == "send" or which in values else x, *values, **named)

    unpack, decode, product = Packed.unpack, wire.decode, elementwise._Scale.forward
    changes: dict[str, tuple[Any, str, Callable[..., Any]]] = {
        "swap": (Transport, "begin_swap", wrong_swap),
        "send": (Transport, "send", wrong_send),
        "carry": (Transport, "send", wrong_send),
        "pack": (Packed, "unpack", lambda packed: unpack(packed) * 1.01),
        "follow": (halo, "joined", lambda own, rows: same_rows(own, 0, len(own) + len(rows))),
        "wire": (wire, "decode", lambda *values: decode(*values) * 2),
        "pooled": (elementwise._Scale, "forward", lambda *values: product(*values) * 1.01),
    }
    with ExitStack() as stack:
        if which in changes:
            stack.enter_context(patch.object(*changes[which]))
        yield
