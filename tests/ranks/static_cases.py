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

from batch_view import BatchView
from plain_view import PlainView
from stale_view import StaleView
from trisect import ops
from trisect.graph.adjacency import Adjacency
from trisect.graph.graph import Graph
from trisect.nn import FromPyG, GATLayer, GCNLayer, GINLayer, HeteroLayer, SAGELayer
from trisect.nn.base import Layer, Model
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
RELATIONS = ("cites", "writes", "likes", "nothing")


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
def data_of(name: str, *, related: bool = False) -> Graph:
    """Give a graph with features, classes and a training mask; `related`: with relations, of which one has no edge."""
    dense = pattern_of(name)
    n = dense.shape[0]
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(n, FEATURES, generator=generator)
    y = torch.randint(CLASSES, (n,), generator=generator)
    train = torch.rand(n, generator=generator) < 0.5
    target, source = torch.nonzero(dense, as_tuple=True)
    splits = {"train": train, "val": ~train, "test": ~train}
    if related:
        # some pairs have edges of two relations, and some two of one
        both = torch.rand(source.numel(), generator=generator) < 0.3
        source, target = torch.cat([source, source[both]]), torch.cat([target, target[both]])
        relation = torch.randint(len(RELATIONS) - 1, (source.numel(),), generator=generator)
        named: dict[str, Any] = {"relation": relation, "relations": RELATIONS}
        return Graph.from_edges(source, target, vertices=n, x=x, y=y, splits=splits, **named)
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
    data = data_of(case.get("graph", "community"), related=bool(case.get("related")))
    partition = partition_of(case)
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
    if case["model"] == "hetero":
        return hetero_of(case)
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


def hetero_of(case: Case) -> Model:
    """Give layers of three kinds, each with the edges of a relation alone, twice; and sums over one relation."""
    hidden, together = case.get("options", {}).get("hidden", 6), case.get("options", {}).get("together", "sum")
    layers: list[Any] = []
    for width, out in ((FEATURES, hidden), (hidden, hidden)):
        kinds: dict[str, Any] = {
            "cites": GCNLayer(width, out),
            "writes": SAGELayer(width, out, activation="relu"),
            "likes": GATLayer(width, out // 2, heads=2, attention_dropout=0.3),
            "nothing": GINLayer(width, out),
        }
        forms: Any = {"cites": "symmetric", "writes": "row", "likes": "none", "nothing": "none"}
        loops = {"cites": True, "likes": True}
        layers.append(
            HeteroLayer(kinds, together, normalisation=forms, self_loops=loops, activation="relu", dropout=0.3)
        )
    model = Model([*layers, OneRelation(hidden, CLASSES)], normalisation="none", self_loops=False)
    model.reset_parameters(11)
    return model


class OneRelation(Layer):
    """Sums over one relation, and what another gives at most."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.linear, self.other = nn.Linear(in_channels, out_channels), nn.Linear(in_channels, out_channels)

    def forward(self, x: Tensor, g: Any) -> Tensor:
        most = g.gather(x, then=lambda near, own, at: ops.aggregate(near, at.block, "max"), relation="writes")
        cited = g.aggregate(x, self.linear.weight, bias=self.linear.bias, relation="cites")
        return torch.tanh(cited) + self.other(most)  # type: ignore[no-any-return]


def prepare(case: Case, folder: Path) -> None:
    """Do the launcher's part of a case."""
    write_run(case, recipe_of(case), folder)
    if case.get("break") == "edge":  # one edge of the first part has another feature
        import numpy as np

        path = folder / SHARDS / "part-0" / "edge_x.npy"
        features = np.load(path)
        features[3] += 1.0 if case.get("related") else np.array([0.0, 0.5, 0.0, 0.0])  # an edge of each relation more
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
        view = PlainView([self.matrix], noise, relations=self.graph.relations)
        output: Tensor = self.model(self.features, view)
        return output

    def loss(self, output: Tensor) -> Tensor:
        """Give the mean cross entropy of the training vertices; with a decoder, the task's, undivided."""
        if self.decoder is not None:
            return self.bound.loss(self.decoder, output[None], 0, Noise(SEED, EPOCH))
        train, y = self.graph.splits["train"], self.graph.y
        assert y is not None
        return nn.functional.cross_entropy(output[train], y[train])

    def loss_of(self, output: Tensor, rows: Tensor) -> Tensor:
        """Give what some rows add to the mean cross entropy of the training vertices."""
        train, y = self.graph.splits["train"], self.graph.y
        assert y is not None
        own = rows[train[rows]]
        total: Tensor = nn.functional.cross_entropy(output[own], y[own], reduction="sum") / train.sum()
        return total

    def without(self, inside: Tensor) -> Adjacency:
        """Give the matrix of the graph that has no edges to or from other vertices than these."""
        data, model = self.graph, self.model
        row, column = data.adjacency.coordinates()
        mask = torch.zeros(data.vertices, dtype=torch.bool).index_fill(0, inside, value=True)
        kept = mask[row] & mask[column]
        other = Graph.from_edges(column[kept], row[kept], vertices=data.vertices, x=data.x)
        matrix = other.normalised(model.normalisation, self_loops=model.self_loops, dtype=self.features.dtype)
        features = self.matrix.edge_attributes()
        if features is None:
            return matrix
        # those of a loop that the model adds are the mean over all edges of the vertex
        keys, own = (row * data.vertices + column for row, column in (self.matrix.coordinates(), matrix.coordinates()))
        return matrix.with_features(features[torch.searchsorted(keys, own)])


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
        "running": rank.running(),
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
    worst, worst_loss, running, stale_epochs = 0.0, 0.0, 0.0, 0
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
        worst, running = max(worst, rank.worst(wanted)), max(running, rank.running())
        stale_epochs += not exact
        with torch.no_grad():
            for modules in (rank.modules, rank.setup.modules):
                for name, parameter in modules.named_parameters():
                    parameter -= 0.1 * wanted[name]
    return {"gradient": worst, "loss": worst_loss, "running": running, "stale epochs": stale_epochs}


def steps(case: Case, folder: Path) -> dict[str, Any]:
    """Compare every gradient of every step of two epochs with those of one process that trains the same batches."""
    rank = RankOfGraph(case, folder)
    layout, order, options = rank.job.layout, rank.cut.order, rank.job.options
    recipe = layout.recipe
    rows = [order[a:b] for a, b in pairwise(rank.cut.starts)]
    chunks = [torch.cat(rows[chunk :: layout.chunks]) for chunk in range(layout.chunks)]
    kept = rank.features if rank.program.plan.aggregated else None
    history: dict[Hashable, Tensor] | None = None if recipe is None else {}
    result: dict[str, Any] = {"gradient": 0.0, "loss": 0.0, "steps": 0, "bytes": None, "formula": None}
    every = torch.arange(rank.graph.vertices)
    for epoch in (1, 2):
        total, sent = 0.0, dict[str, int]()
        for batch in rank.program.batches(epoch):
            if batch is None:
                raise AssertionError("an epoch is one step")
            exact = recipe is not None and batch.number == 0 and (recipe.is_exact(epoch) or recipe.refreshes(epoch))
            if exact:
                with torch.no_grad():
                    rank.model(rank.features, BatchView(rank.matrix, every, history, features=kept))
            # each chunk is a cell where stages follow each other
            cells = [[chunk] for chunk in batch.chunks] if layout.layer > 1 else [list(batch.chunks)]
            loss = rank.features.new_zeros(())
            for cell in cells:
                inside = torch.cat([chunks[chunk] for chunk in cell])
                matrix = rank.matrix if recipe is not None else rank.without(inside)
                blend = None if recipe is None or case.get("break") == "push" else recipe.blend
                view = BatchView(matrix, inside, history, Noise(SEED, epoch), blend=blend, features=kept)
                output = rank.model(rank.features, view)
                loss = loss + batch.count * rank.loss_of(output, inside)
            wanted = rank.taken_gradients(loss)
            total += float(loss.detach()) / batch.count
            rank.setup.modules.zero_grad()
            rank.program.ledger.clear()
            rank.program.begin(epoch, batch)
            rank.program.run()
            if batch.is_last:
                result["loss"] = max(result["loss"], abs(rank.program.finish() - total) / abs(total))
            else:
                rank.program.end_step()
            for name, size in rank.sent().items():
                sent[name] = sent.get(name, 0) + size
            # some gradients of a few rows are zero but for rounding
            errors = [error / max(size, 1e-4) for error, size in rank.errors(wanted).values()]
            result["gradient"] = max(result["gradient"], *errors)
            result["steps"] += 1
            with torch.no_grad():
                for modules in (rank.modules, rank.setup.modules):
                    for name, parameter in modules.named_parameters():
                        parameter -= options.lr * wanted[name]
        result["bytes"], result["formula"] = sent, rank.program.formula_bytes
    result["parameters"] = max(
        float((own - dict(rank.modules.named_parameters())[name]).abs().max())
        for name, own in rank.setup.modules.named_parameters()
    )
    return result
