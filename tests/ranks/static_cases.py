"""Cases for graphs cut by vertex and layer; each compares a rank, set up as a worker is, with one process."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

import torch
from limits import library_limits
from run_cases import EPOCH, SEED, Case, RankOfCase, Recipe, broken, layout_of, options_of, run_again, write_run
from torch import Tensor, nn

from plain_view import PlainView
from stale_view import StaleView
from trisect.graph.graph import Graph
from trisect.nn import FromPyG
from trisect.nn.base import Model
from trisect.nn.models.source import AnyModel, NamedModel
from trisect.noise import Noise
from trisect.partition import cut_graph
from trisect.partition.partition import Partition
from trisect.plan.build import schedule_of
from trisect.schedule.action import Action, Verb
from trisect.tasks import make_task
from trisect.train.job import SHARDS
from trisect.train.loop import Trainer
from trisect.train.recorders import NoRecorder

FEATURES, CLASSES, EDGE_FEATURES = 5, 3, 4


def pattern_of(name: str, n: int = 41) -> Tensor:
    """Give a dense pattern without loops; row i reads column j."""
    generator = torch.Generator().manual_seed(3)
    dense = torch.zeros(n, n, dtype=torch.float64)
    if name in ("community", "mutual"):
        group = torch.arange(n) * 4 // n
        near = group[:, None] == group[None, :]
        dense = (torch.rand(n, n, generator=generator) < torch.where(near, 0.4, 0.04)).double()
        dense = torch.maximum(dense, dense.T) if name == "mutual" else dense
    elif name == "star":
        dense[0, :] = 1
        dense[:, 0] = 1
    elif name == "path":
        dense += torch.diag(torch.ones(n - 1, dtype=torch.float64), 1)
        dense += torch.diag(torch.ones(n - 1, dtype=torch.float64), -1)
    elif name == "components":
        for low, high in ((0, n // 3), (n // 3, n)):
            size = high - low
            dense[low:high, low:high] = (torch.rand(size, size, generator=generator) < 0.2).double()
    elif name == "isolated":
        dense[: n // 2, : n // 2] = (torch.rand(n // 2, n // 2, generator=generator) < 0.2).double()
    return dense.fill_diagonal_(0)


@cache
def data_of(name: str) -> Graph:
    """Give a graph with features, classes and a training mask."""
    dense = pattern_of(name)
    n = dense.shape[0]
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(n, FEATURES, generator=generator)
    y = torch.randint(CLASSES, (n,), generator=generator)
    train = torch.rand(n, generator=generator) < 0.5
    target, source = torch.nonzero(dense, as_tuple=True)
    splits = {"train": train, "val": ~train, "test": ~train}
    edge_x = torch.randn(source.numel(), EDGE_FEATURES, generator=generator)
    return Graph.from_edges(source, target, vertices=n, x=x, y=y, splits=splits, edge_x=edge_x)


@cache
def metis_of(name: str, parts: int, chunks: int) -> Partition:
    """Cut a graph once for all cases of a world."""
    return cut_graph(data_of(name).adjacency, parts, chunks)


def partition_of(case: Case) -> Partition:
    """METIS, the stream, or by hand: `components` (parts that do not read each other), `uneven` (one of two)."""
    layout, name = layout_of(case), case.get("graph", "community")
    how = case.get("cut", "metis")
    if how == "metis":
        return metis_of(name, layout.vertex, layout.chunks)
    if how == "stream":
        return cut_graph(data_of(name).adjacency, layout.vertex, layout.chunks, method="stream")
    vertex = torch.arange(data_of(name).vertices)
    part = (vertex >= len(vertex) // 3).long() if how == "components" else (vertex >= len(vertex) - 2).long()
    return Partition.from_assignment(part * layout.chunks + vertex % layout.chunks, layout.vertex, layout.chunks)


def recipe_of(case: Case) -> Recipe:
    """Give what the case trains.

    `untrained`: the first part has no vertex to train on; `one_class`: all that is trained on has one class, so that
    the gradients of rows add up and do not cancel.
    """
    data, partition = data_of(case.get("graph", "community")), partition_of(case)
    if case.get("untrained"):
        train = data.splits["train"].clone()
        train[partition.order[slice(*partition.part(0))]] = False
        data = Graph(data.adjacency, data.x, data.y, {**data.splits, "train": train}, edge_x=data.edge_x)
    if case.get("one_class") and data.y is not None:
        y = data.y.masked_fill(data.splits["train"], 0)
        data = Graph(data.adjacency, data.x, y, data.splits, edge_x=data.edge_x)
    task = {"name": "node-classification", "hidden": 5, "decoder": case.get("decoder", "auto")}
    return Recipe(data, model_of(case), make_task(task), partition)


def model_of(case: Case) -> NamedModel | AnyModel:
    """Give the case's model by name, or convolutions of PyG as a caller hands them over, two of which attend."""
    if case["model"] != "pyg":
        return NamedModel(case["model"], case.get("options", {}), 11)
    from torch_geometric.nn import GATConv, GATv2Conv, SAGEConv

    head = case.get("options", {}).get("hidden", 6) // 2
    width = 2 * head
    convolutions = [
        FromPyG(SAGEConv(FEATURES, width), "relu", 0.3),
        FromPyG(GATv2Conv(width, head, heads=2, add_self_loops=False, edge_dim=EDGE_FEATURES), "elu"),
        FromPyG(GATConv(width, head, heads=2, add_self_loops=False), "elu"),
        FromPyG(SAGEConv(width, width), "relu"),
        FromPyG(SAGEConv(width, CLASSES)),
    ]
    model = Model(convolutions, normalisation="none", self_loops=True)
    model.reset_parameters(11)
    return model


def prepare(case: Case, folder: Path) -> None:
    """Do the launcher's part of a case."""
    write_run(case, recipe_of(case), folder)
    if case.get("break") == "edge":  # one edge of the first part has another feature
        import numpy as np

        path = folder / SHARDS / "part-0" / "edge_x.npy"
        features = np.load(path)
        features[3, 1] += 0.5
        np.save(path, features)
    if case.get("break") == "halo":  # every part sends its first row instead of those that others read
        import numpy as np

        for path in (folder / SHARDS).glob("part-*/send.npy"):
            np.save(path, np.zeros_like(np.load(path)))


class RankOfGraph(RankOfCase):
    """A rank of a graph; one process reads the whole matrix."""

    def __init__(self, case: Case, folder: Path) -> None:
        super().__init__(case, recipe_of(case), folder)
        data, model = self.recipe.data, self.model
        assert isinstance(data, Graph)
        self.graph = data
        self.matrix = data.normalised(model.normalisation, self_loops=model.self_loops, dtype=self.features.dtype)

    def outputs(self, noise: Noise | None) -> Tensor:
        """Give the outputs of one process, [vertices, channels]."""
        output: Tensor = self.model(self.features, PlainView([self.matrix], noise))
        return output

    def loss(self, output: Tensor) -> Tensor:
        """Give the mean cross entropy of the training vertices; with a decoder, the task's, undivided."""
        if self.decoder is not None:
            return self.bound.loss(self.decoder, output[None], 0, Noise(SEED, EPOCH))
        train, y = self.graph.splits["train"], self.graph.y
        assert y is not None
        return nn.functional.cross_entropy(output[train], y[train])


def relative(value: float, wanted: Tensor) -> float:
    """Give the relative difference of two losses."""
    return abs(value - float(wanted.detach())) / abs(float(wanted.detach()))


def planned_again(actions: Sequence[Action], groups: Sequence[Sequence[int]]) -> int:
    """Return how often a group of layers goes forward on the way back, by the first work of the group."""
    count, starts = 0, {group[0] for group in groups if group}
    for action in actions:
        for work in action.works:
            if work.layer in starts and work.part in ("before", "ready", "local"):
                # forward once; back once, and once more where nothing was kept
                count += 1 if action.verb is Verb.BACKWARD else -1 if action.verb is Verb.FORWARD else 0
    return count


def gradients(case: Case, folder: Path) -> dict[str, Any]:
    """Compare every parameter's gradient, the loss and the exact outputs of this rank with one process."""
    rank = RankOfGraph(case, folder)
    with library_limits():
        loss = rank.loss(rank.outputs(Noise(SEED, EPOCH)))
        wanted = rank.taken_gradients(loss)
    with broken(case.get("break")), run_again() as again:
        total = rank.epoch()
    plan = rank.program.plan
    actions = schedule_of(plan).ranks[rank.program.mesh.rank]
    result = {
        "across": [layer.across for layer in plan.layers],
        "again": len(again),
        "planned again": planned_again(actions, plan.groups(rank.program.mesh.stage_index)),
        "gradient": rank.worst(wanted),
        "errors": rank.errors(wanted),
        "compared": rank.own_parameters(),
        "parameters": sorted(wanted),
        "loss": relative(total, loss),
        "bytes": rank.sent(),
        "formula": rank.formula(),
        "halo": sum(plan.remote),
        "packed": rank.packed(),
    }
    if not case.get("break") and plan.layout.wire == "float32":
        with library_limits(), torch.no_grad():
            outputs = rank.outputs(None)[None]
        result["outputs"] = rank.evaluated(range(1), outputs, hidden=False)
        result["hidden"] = rank.evaluated(range(1), None, hidden=True)
    return result


def clipped(case: Case, folder: Path) -> dict[str, Any]:
    """Compare a step by clipped gradients with that of one process."""
    rank = RankOfGraph(case, folder)
    return rank.clipped(rank.taken_gradients(rank.loss(rank.outputs(Noise(SEED, EPOCH)))))


def losses(case: Case, folder: Path) -> dict[str, Any]:
    """Train twenty epochs in float32 with Adam; give the largest relative difference of a loss to one process."""
    rank = RankOfGraph(case, folder)
    result = Trainer(rank.setup, rank.job.options, NoRecorder()).run()
    optimiser = torch.optim.Adam(rank.model.parameters(), options_of(case).lr)
    worst = 0.0
    for epoch, found in enumerate(result.loss, 1):
        optimiser.zero_grad()
        loss = rank.loss(rank.outputs(Noise(SEED, epoch)))
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        worst = max(worst, relative(found, loss))
    return {"loss": worst, "epochs": len(result.loss)}


def stale(case: Case, folder: Path) -> dict[str, Any]:
    """Compare four epochs of the pipeline over chunks with its definition, literally."""
    rank = RankOfGraph(case, folder)
    recipe, layout, order = rank.job.layout.recipe, rank.job.layout, rank.cut.order
    assert recipe is not None
    starts = rank.cut.starts
    rows = [order[a:b] for a, b in pairwise(starts)]
    chunks = [torch.cat(rows[chunk :: layout.chunks]) for chunk in range(layout.chunks)]
    everyone = [torch.arange(rank.graph.vertices)]
    # what is summed up once reads no history
    kept = rank.features if rank.program.plan.aggregated else None
    history: dict[Hashable, Tensor] = {}
    worst, worst_loss, stale_epochs = 0.0, 0.0, 0
    for epoch in range(1, 5):
        exact = recipe.is_exact(epoch)
        sequence = [0] if exact else recipe.order(layout.chunks, SEED, epoch)
        if case.get("break") == "order":
            sequence = sequence[::-1]
        view = StaleView(
            rank.matrix,
            everyone if exact else chunks,
            sequence,
            history,
            Noise(SEED, epoch),
            scale=recipe.scale,
            features=kept,
        )
        loss = rank.loss(rank.model(rank.features, view))
        if recipe.keeps(epoch):
            keep = 0.0 if exact else recipe.blend
            fresh = view.fresh
            history = {k: fresh[k] if keep == 0.0 else torch.lerp(history[k], fresh[k], 1 - keep) for k in fresh}
        wanted = rank.taken_gradients(loss)
        worst_loss = max(worst_loss, relative(rank.epoch(epoch), loss))
        worst = max(worst, rank.worst(wanted))
        stale_epochs += not exact
        with torch.no_grad():
            for modules in (rank.modules, rank.setup.modules):
                for name, parameter in modules.named_parameters():
                    parameter -= 0.1 * wanted[name]
    return {"gradient": worst, "loss": worst_loss, "stale epochs": stale_epochs}
