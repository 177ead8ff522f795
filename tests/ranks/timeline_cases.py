"""Cases for timelines; each compares a rank, set up as a worker is, with one process and one block."""

from __future__ import annotations

import json
import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

sys.path.append(str(Path(__file__).parents[1]))

import numpy as np
import torch
from limits import library_limits
from run_cases import EPOCH, SEED, Case, RankOfCase, Recipe, Runs, broken, layout_of, summed_beside, write_run
from torch import Tensor, nn

from batch_view import BlockView
from plain_view import PlainView
from trisect.graph.adjacency import Adjacency
from trisect.graph.edge_features import Merge
from trisect.graph.timeline.smoothing import Smoothing
from trisect.graph.timeline.timeline import Timeline
from trisect.nn import GRU, FromPyG, GATLayer, GCNLayer, HeteroLayer, LinearLayer, SAGELayer, SpatialTemporal
from trisect.nn.models.source import AnyModel, NamedModel
from trisect.nn.temporal.dynamic import DynamicModel
from trisect.noise import Noise
from trisect.partition.cut import boundary_of
from trisect.partition.partition import Partition
from trisect.partition.timeline import cut_timeline, union_graph
from trisect.plan.build import schedule_of
from trisect.tasks import make_task
from trisect.train.job import SHARDS

FEATURES, CLASSES, EDGE_FEATURES = 3, 3, 4
RELATIONS = ("cites", "writes", "likes", "nothing")
LATER = 3  # steps after those of training
# what of a case says how the ranks do it, and not what one process does
_OF_RANKS = ("layout", "run", "cut", "uneven", "evaluate", "twice", "delayed", "aggregated", "break", "train", "limits")


def dense_snapshots(steps: int, n: int, *, symmetric: bool = False, near: int = 0) -> list[Tensor]:
    """Graphs of growing size; step 2 has no edges, and the last two vertices never have one.

    Args:
        symmetric: edges go both ways with the same weight; otherwise they are directed.
        near: so many of the last vertices have edges to those alone whose id is as they, even or odd.
    """
    generator = torch.Generator().manual_seed(3)
    patterns = []
    for step in range(steps):
        dense = (torch.rand(n, n, generator=generator) < 0.05 + 0.01 * step).double()
        dense *= torch.rand(n, n, generator=generator, dtype=torch.float64) + 0.2
        if step == 2:
            dense.zero_()
        dense[-2:] = 0
        dense[:, -2:] = 0
        vertex = torch.arange(n)
        far = ((vertex[:, None] + vertex[None, :]) % 2 == 1) & (torch.maximum(vertex[:, None], vertex) >= n - near)
        dense[far] = 0
        dense = torch.maximum(dense, dense.T) if symmetric else dense
        dense.fill_diagonal_(0.0)
        patterns.append(dense)
    return patterns


def cut_steps(steps: int, blocks: int, times: int) -> Runs:
    """Give uneven runs of each block: the first has one step, the second of several has none."""
    result = []
    for b in range(blocks):
        start, stop = steps * b // blocks, steps * (b + 1) // blocks
        size = stop - start
        cuts = [0, *[min(1, size)] * (times - 1), size]
        result.append(tuple(range(start + a, start + b) for a, b in pairwise(cuts)))
    return tuple(result)


def runs_of(sizes: Sequence[Sequence[int]]) -> Runs:
    """Give consecutive runs: the number of steps of each run of each block."""
    result, at = [], 0
    for block in sizes:
        row = []
        for size in block:
            row.append(range(at, at + size))
            at += size
        result.append(tuple(row))
    return tuple(result)


@cache
def data_of(
    steps: int,
    vertices: int,
    *,
    fixed: bool,
    symmetric: bool,
    near: int,
    merge: str | None = None,
    slides: bool = False,
    related: bool = False,
) -> Timeline:
    """Give a timeline with features and classes; about half of the vertices have one in a step.

    Args:
        fixed: features are the same in all steps.
        merge: events have features, which become this where pairs meet; None: they have none.
        slides: events have no weights.
        related: events have relations, one of which none has.
    """
    every = steps + LATER
    snapshots = dense_snapshots(every, vertices, symmetric=symmetric, near=near)
    # of an undirected timeline each event counts both ways
    pairs = [torch.nonzero(torch.triu(dense) if symmetric else dense) for dense in snapshots]
    weight = torch.cat([dense[pair[:, 0], pair[:, 1]] for dense, pair in zip(snapshots, pairs, strict=True)])
    offsets = [0, *torch.cumsum(torch.tensor([len(pair) for pair in pairs]), 0).tolist()]
    generator = torch.Generator().manual_seed(5)
    shape = (vertices, FEATURES) if fixed else (every, vertices, FEATURES)
    x = torch.randn(*shape, generator=generator)
    y = torch.randint(CLASSES, (every, vertices), generator=generator)
    y[torch.rand(every, vertices, generator=generator) < 0.5] = -1
    target, source = torch.cat(pairs).T
    named: dict[str, Any] = {}
    if related:
        relation = torch.randint(len(RELATIONS) - 1, (len(source),), generator=generator)
        named = {"relation": relation, "relations": RELATIONS, "smoothing": Smoothing("edge-life", 2)}
    given = None if slides and related else weight.float()
    timeline = Timeline.from_arrays(
        source, target, offsets, vertices=vertices, weight=given, undirected=symmetric, x=x, y=y, **named
    )
    if merge is None or related:
        return timeline
    # events without weights slide through a window of two steps, in which the same pairs meet
    return replace(
        timeline,
        weight=None if slides else timeline.weight,
        smoothing=Smoothing("edge-life", 2),
        edge_x=torch.randn(len(source), EDGE_FEATURES, generator=generator),
        merge=cast(Merge, merge),
    )


def timeline_of(case: Case) -> tuple[Timeline, int]:
    """Give the case's timeline, and how many of its steps are trained on."""
    vertices = case.get("vertices", 23)
    steps = case.get("steps", sum(map(sum, case.get("runs", [[7]]))))
    near = vertices // 3 if case.get("overlap") else 0
    symmetric = bool(case.get("symmetric"))
    edges = {"merge": case.get("merge"), "slides": bool(case.get("slides")), "related": bool(case.get("related"))}
    return data_of(steps, vertices, fixed=bool(case.get("fixed")), symmetric=symmetric, near=near, **edges), steps


_METIS: dict[tuple[int, int], Partition] = {}


def partition_of(case: Case, timeline: Timeline) -> Partition | None:
    """METIS, once for all cases of a world; or by hand `interleaved`: vertices go to the parts in turn."""
    parts = layout_of(case).vertex
    if parts == 1 or layout_of(case).spatial == "redistribute":
        return None
    if case.get("cut", "interleaved") == "metis":
        key = (id(timeline), parts)  # timelines are kept by `data_of`
        if key not in _METIS:
            _METIS[key] = cut_timeline(timeline, parts)
        return _METIS[key]
    owner = torch.arange(timeline.vertices) % parts
    return Partition.from_assignment(owner, parts, first=boundary_of(union_graph(timeline), owner))


def recipe_of(case: Case) -> Recipe:
    """Give what the case trains: classes of vertices, or with `pairs` the links of the next step."""
    timeline, steps = timeline_of(case)
    layout = layout_of(case)
    task: Case = {"name": "node-classification", "split": [steps, 1, 2]}
    if case.get("decoder"):
        task |= {"decoder": case["decoder"], "hidden": 5}
    if case.get("pairs"):
        task = {"name": "link-prediction", "hidden": 4, "eval_negatives": 3, "split": [steps, 1, 1]}
    runs: Runs | None = None
    if "runs" in case:
        runs = runs_of(case["runs"])
    elif case.get("uneven"):
        runs = cut_steps(steps, layout.block_count, layout.time)
    return Recipe(timeline, model_of(case), make_task(task), partition_of(case, timeline), runs)


def model_of(case: Case) -> NamedModel | AnyModel:
    """Give the case's model by name, or one with a convolution of PyG that reads the features of edges."""
    if case["model"] == "hetero":
        return hetero_of(case)
    if case["model"] != "pyg":
        return NamedModel(case["model"], case.get("options", {}), 11)
    from torch_geometric.nn import GATv2Conv

    width = case.get("options", {}).get("hidden", 4)
    # the second layer reads rows of other parts that the first one made
    convolutions = [
        FromPyG(GATv2Conv(channels, width // 2, heads=2, add_self_loops=False, edge_dim=EDGE_FEATURES), "elu")
        for channels in (FEATURES, width // 2 * 2)
    ]
    layers = [SpatialTemporal(conv, GRU(width // 2 * 2, width // 2 * 2)) for conv in convolutions]
    model = DynamicModel(layers, LinearLayer(width // 2 * 2, CLASSES), normalisation="none")
    model.reset_parameters(11)
    return model


def hetero_of(case: Case) -> DynamicModel:
    """Give two layers, each of a layer for each relation and a recurrent module behind."""
    layers, width = [], 4
    for channels in (FEATURES, width):
        kinds: dict[str, Any] = {"cites": GCNLayer(channels, width), "writes": SAGELayer(channels, width)}
        kinds["likes"] = GATLayer(channels, width // 2, heads=2)
        forms: Any = {"cites": "symmetric", "writes": "row"}
        spatial = HeteroLayer(kinds, "attention", normalisation=forms, self_loops={"cites": True, "likes": True})
        layers.append(SpatialTemporal(spatial, GRU(width, width)))
    # loops that this normalisation adds to the union belong to no relation
    model = DynamicModel(layers, LinearLayer(width, CLASSES), normalisation=case.get("normalisation", "none"))
    model.reset_parameters(11)
    return model


def prepare(case: Case, folder: Path) -> None:
    """Do the launcher's part of a case."""
    write_run(case, recipe_of(case), folder)
    if case.get("break") == "edge":  # one event has another feature
        shards = folder / SHARDS
        path = next(path for path in (shards / "part-0" / "edge_x.npy", shards / "edge_x.npy") if path.exists())
        features = np.load(path)
        features[3, 1] += 0.5
        np.save(path, features)


@dataclass(frozen=True)
class Reference:
    """What one process has: the loss, every gradient by name, and the outputs of all steps."""

    loss: float
    gradients: dict[str, Tensor]
    outputs: Tensor
    hidden: Tensor


_REFERENCES: dict[str, Reference] = {}


class RankOfTimeline(RankOfCase):
    """A rank of a timeline; one process reads all snapshots, in one block."""

    def __init__(self, case: Case, folder: Path) -> None:
        super().__init__(case, recipe_of(case), folder)
        assert isinstance(self.recipe.data, Timeline)
        self.timeline = self.recipe.data
        self.steps = timeline_of(case)[1]

    @property
    def reference(self) -> Reference:
        """What one process has; once for all cases that differ in how ranks do it alone."""
        key = json.dumps({name: value for name, value in self.case.items() if name not in _OF_RANKS}, sort_keys=True)
        if key not in _REFERENCES:
            with library_limits():
                loss = self.loss(self.frames(self.steps, Noise(SEED, EPOCH)))
                gradients, every = self.taken_gradients(loss), range(self.timeline.steps)
                with torch.no_grad():
                    outputs = self.frames(every.stop, None)
            _REFERENCES[key] = Reference(float(loss.detach()), gradients, outputs, self.alone(every, hidden=True))
        return _REFERENCES[key]

    @cached_property
    def snapshots(self) -> list[Adjacency]:
        """The matrices of all steps, as the model reads them."""
        form = self.model
        return [
            self.timeline.snapshot(step, form.normalisation, self_loops=form.self_loops, dtype=torch.float64)
            for step in range(self.timeline.steps)
        ]

    def frames(self, steps: int, noise: Noise | None) -> Tensor:
        """Give the outputs of one process: a dynamic model over the timeline, or a static one in each snapshot."""
        x = self.features
        frames = x.expand(steps, *x.shape) if x.dim() == 2 else x[:steps]
        view = PlainView(self.snapshots[:steps], noise, relations=self.timeline.relations)
        return cast(Tensor, self.model(frames, view))

    def loss(self, frames: Tensor) -> Tensor:
        """Give the mean cross entropy of all labels of training; that of pairs is the task's, undivided."""
        if self.decoder is not None:
            return self.bound.loss(self.decoder, frames, 0, Noise(SEED, EPOCH))
        y = self.timeline.y
        assert y is not None
        labels = y[: self.steps]
        return nn.functional.cross_entropy(frames[labels >= 0], labels[labels >= 0])


def clipped(case: Case, folder: Path) -> dict[str, Any]:
    """Compare a step by clipped gradients with that of one process."""
    rank = RankOfTimeline(case, folder)
    return rank.clipped(rank.reference.gradients)


def timeline(case: Case, folder: Path) -> dict[str, Any]:
    """Compare every parameter's gradient, the loss and the bytes of this rank with one process and the formula."""
    rank = RankOfTimeline(case, folder)
    wanted, expected = rank.reference.gradients, rank.reference.loss
    result: dict[str, Any] = {"loss": 0.0, "gradient": 0.0}
    # twice, since an epoch must leave nothing behind
    for _ in range(2 if case.get("twice") else 1):
        with broken(case.get("break")), summed_beside() as beside:
            total = rank.epoch()
        result["loss"] = max(result["loss"], abs(total - expected) / abs(expected))
        result["gradient"] = max(result["gradient"], rank.worst(wanted))
    plan, mesh = rank.program.plan, rank.program.mesh
    result["compared"], result["parameters"] = rank.own_parameters(), sorted(wanted)
    result["along"] = [layer.along for layer in plan.layers]
    result["across"] = [layer.across for layer in plan.layers]
    result["runs"] = [[len(run) for run in block] for block in plan.runs]
    halo = plan.parts > 1 and "halo" in result["across"]
    result["interior"] = rank.program.shard.rows - rank.program.shard.interior()[0] if halo else 0
    planned = schedule_of(plan).ranks[mesh.rank]
    result["sides"] = sum(work.side != "" for action in planned for work in action.works)
    result["beside"] = len(beside)
    result["bytes"], result["formula"] = rank.sent(), rank.formula()
    result["packed"] = rank.packed()
    if case.get("evaluate"):
        every = range(rank.timeline.steps)
        result["outputs"] = rank.evaluated(every, rank.reference.outputs, hidden=False)
        result["hidden"] = rank.evaluated(every, rank.reference.hidden, hidden=True)
    return result


def blocks(case: Case, folder: Path) -> dict[str, Any]:
    """Compare every gradient of every step of two epochs with those of one process that steps for the same blocks."""
    rank = RankOfTimeline(case, folder)
    y, plan, options = rank.timeline.y, rank.program.plan, rank.job.options
    assert y is not None
    result: dict[str, Any] = {"gradient": 0.0, "loss": 0.0, "steps": 0}
    count = int((y[: rank.steps] >= 0).sum())
    for epoch in (1, 2):
        total, states = 0.0, dict[Hashable, tuple[Tensor, ...]]()
        rank.program.ledger.clear()
        for batch in rank.program.batches(epoch):
            if batch is None or batch.block is None:
                raise AssertionError("an epoch is one step")
            own = plan.steps(batch.block)
            x = rank.features
            frames = x.expand(len(own), *x.shape) if x.dim() == 2 else x[own.start : own.stop]
            if case.get("break") == "states":
                states.clear()
            view = BlockView(rank.snapshots[own.start : own.stop], own.start, states, Noise(SEED, epoch))
            output, labels = rank.model(frames, view), y[own.start : own.stop]
            loss = nn.functional.cross_entropy(output[labels >= 0], labels[labels >= 0], reduction="sum") / count
            total += float(loss.detach())
            wanted = rank.taken_gradients(loss * batch.count)
            rank.setup.modules.zero_grad()
            rank.program.begin(epoch, batch)
            rank.program.run()
            if batch.is_last:
                result["loss"] = max(result["loss"], abs(rank.program.finish() - total) / abs(total))
            else:
                rank.program.end_step()
            errors = [error / max(size, 1e-4) for error, size in rank.errors(wanted).values()]
            result["gradient"] = max(result["gradient"], *errors)
            result["steps"] += 1
            with torch.no_grad():
                for modules in (rank.modules, rank.setup.modules):
                    for name, parameter in modules.named_parameters():
                        parameter -= options.lr * wanted[name]
        result["bytes"], result["formula"] = rank.sent(), rank.program.formula_bytes
    return result
