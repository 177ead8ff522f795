"""Layers on a view against `PlainView`, and cut by vertex against one process: every gradient.

The random numbers are those of the plain view, also where a layer draws for several purposes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parents[1]))

import trisect.nn as layers
from plain_view import PlainView
from ranks import on_ranks
from trisect.comm.ledger import Ledger
from trisect.comm.mesh import Mesh
from trisect.comm.transport import Transport
from trisect.graph.adjacency import Adjacency
from trisect.graph.build import adjacency_from_edges, normalise
from trisect.nn.base import Layer, Temporal
from trisect.nn.conv.gat import Attending
from trisect.noise import Noise
from trisect.ops import aggregate, memory
from trisect.partition.halo import part_graph_of
from trisect.partition.partition import Partition
from trisect.views.alone import Alone
from trisect.views.door import Door
from trisect.views.halo import Halo
from trisect.views.local import Local
from trisect.views.trace import trace_of
from trisect.views.view import View

ROWS, WIDTH, EDGES, NUMBER = 40, 6, 3, 2
RELATIONS = ("cites", "writes", "likes")


def from_pyg(make: Callable[[Any], nn.Module], **options: Any) -> Layer:
    return layers.FromPyG(make(pytest.importorskip("torch_geometric.nn")), **options)


def hetero(together: Any, first: Layer, second: Layer, **options: Any) -> Layer:
    of = {RELATIONS[0]: first, RELATIONS[2]: second}
    loops = {RELATIONS[0]: True}
    return layers.HeteroLayer(of, together, normalisation={RELATIONS[0]: "symmetric"}, self_loops=loops, **options)


LAYERS: dict[str, Callable[[], Layer]] = {
    "gcn": lambda: layers.GCNLayer(WIDTH, 4),
    "gcn, relu": lambda: layers.GCNLayer(WIDTH, 4, activation="relu", dropout=0.4),
    "gcn, widening": lambda: layers.GCNLayer(WIDTH, 9, activation="relu", dropout=0.4),
    "gcn, norm": lambda: layers.GCNLayer(WIDTH, WIDTH, norm="layer", activation="relu", dropout=0.4, residual=True),
    "gcn, norm and elu": lambda: layers.GCNLayer(WIDTH, 4, norm="layer", activation="elu", dropout=0.4, bias=False),
    "gcn, batch norm": lambda: layers.GCNLayer(
        WIDTH, WIDTH, norm="batch", activation="relu", dropout=0.4, residual=True, root_weight=True
    ),
    "gcn, rrelu": lambda: layers.GCNLayer(WIDTH, WIDTH, activation="rrelu", dropout=0.4, residual=True),
    "sage": lambda: layers.SAGELayer(WIDTH, 4, activation="relu", dropout=0.4),
    "sage, widening": lambda: layers.SAGELayer(WIDTH, 9, activation="relu", dropout=0.4),
    "sage, alone": lambda: layers.SAGELayer(WIDTH, WIDTH, root_weight=False, residual=True),
    "sage, max": lambda: layers.SAGELayer(WIDTH, 4, reduce="max", activation="relu", dropout=0.4),
    "gcnii": lambda: layers.GCN2Layer(WIDTH, activation="relu", dropout=0.4),
    "gcnii, no h0": lambda: layers.GCN2Layer(WIDTH, alpha=0.0, norm="layer", residual=True),
    "gin": lambda: layers.GINLayer(WIDTH, 4, train_eps=True, eps=0.3, activation="relu", dropout=0.4),
    "gin, widening": lambda: layers.GINLayer(WIDTH, 4, hidden_channels=9, mlp_norm="layer", train_eps=True),
    "gin, norm": lambda: layers.GINLayer(WIDTH, 4, mlp_norm="layer", eps=0.3, norm="layer", activation="tanh"),
    "gine": lambda: layers.GINELayer(WIDTH, 4, EDGES, train_eps=True, activation="relu", dropout=0.4),
    "gat": lambda: layers.GATLayer(WIDTH, 3, heads=2, activation="elu", dropout=0.4, residual=True),
    "gat, dropping": lambda: layers.GATLayer(WIDTH, 3, heads=2, concat=False, attention_dropout=0.4, dropout=0.3),
    "gatv2": lambda: layers.GATv2Layer(WIDTH, 3, heads=2, activation="elu", dropout=0.4, norm="layer"),
    "gatv2, edges": lambda: layers.GATv2Layer(
        WIDTH, 3, EDGES, heads=2, concat=False, attention_dropout=0.4, dropout=0.3
    ),
    "linear": lambda: layers.LinearLayer(WIDTH, 4, activation="relu", dropout=0.4),
    "linear, norm": lambda: layers.LinearLayer(WIDTH, 4, activation="gelu", norm="layer", dropout=0.4),
    "dropout": lambda: layers.DropoutLayer(WIDTH, 0.4),
    "batch norm": lambda: layers.BatchNorm(WIDTH),
    "batch norm, plain": lambda: layers.BatchNorm(WIDTH, affine=False, track_running_stats=False),
    "resgcn": lambda: layers.ResGCNLayer(WIDTH, dropout=0.4),
    "readout": lambda: layers.ReadoutLayer(WIDTH, 4, dropout=0.4),
    "rgcn": lambda: layers.RGCNLayer(WIDTH, 4, EDGES, activation="relu", dropout=0.4),
    "rgcn, narrowing": lambda: layers.RGCNLayer(WIDTH, 2, EDGES, bases=2, norm="layer", root_weight=False),
    "hetero": lambda: hetero("sum", layers.GCNLayer(WIDTH, 4), layers.SAGELayer(WIDTH, 4), dropout=0.4),
    "hetero, attention": lambda: hetero(
        "attention", layers.GATLayer(WIDTH, 3, heads=2, attention_dropout=0.4), layers.GINLayer(WIDTH, WIDTH)
    ),
    "hetero, types": lambda: layers.HeteroLayer(
        {"cites": layers.SAGELayer(WIDTH - 2, 4), "likes": layers.GCNLayer(WIDTH - 2, 4)},
        types=("cites", "likes"),
        activation="relu",
        dropout=0.4,
    ),
    "hetero linear, types": lambda: layers.HeteroLinearLayer([4, 2], 3, types=True, norm="layer"),
    "hetero linear": lambda: layers.HeteroLinearLayer([3, 0, 1], 4, activation="relu", dropout=0.4),
    "pyg sage": lambda: from_pyg(lambda pyg: pyg.SAGEConv(WIDTH, 4), activation="rrelu", dropout=0.4),
    "pyg gat": lambda: from_pyg(lambda pyg: pyg.GATConv(WIDTH, 2, heads=2, add_self_loops=False), activation="elu"),
    "pyg graph": lambda: from_pyg(lambda pyg: pyg.GraphConv(WIDTH, 4), edge_weight="edge_weight"),
    "pyg edges": lambda: from_pyg(lambda pyg: pyg.TransformerConv(WIDTH, 4, edge_dim=EDGES)),
}
ALONG: dict[str, Callable[[], layers.DynamicLayer]] = {
    "lstm": lambda: layers.SpatialTemporal(
        layers.GCNLayer(WIDTH, 4, activation="relu", dropout=0.4), layers.LSTM(4 + WIDTH, 5), concat=True
    ),
    "gru": lambda: layers.SpatialTemporal(
        layers.GATv2Layer(WIDTH, 2, EDGES, heads=2, attention_dropout=0.4), layers.GRU(4, 5)
    ),
    "mproduct": lambda: layers.SpatialTemporal(layers.SAGELayer(WIDTH, 4), layers.MProduct(4, window=2)),
    "evolving O": lambda: layers.Evolving(WIDTH, 4),
    "evolving O, widening": lambda: layers.Evolving(WIDTH, 9, activation="relu", dropout=0.4),
    "evolving O, elu": lambda: layers.Evolving(WIDTH, 9, activation="elu", dropout=0.4),
    "evolving H": lambda: layers.Evolving(WIDTH, 4, variant="H", activation="rrelu", dropout=0.4),
    "evolving H, widening": lambda: layers.Evolving(WIDTH, 9, variant="H"),
}


def asked(steps: int) -> list[str]:
    """Return the names of layers for a graph (0) or a timeline."""
    return [*LAYERS, *ALONG] if steps else list(LAYERS)


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def matrix(seed: int, form: str = "row", rows: int = ROWS, *, self_loops: bool = True) -> Adjacency:
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(0, rows, (4 * rows,), generator=generator)
    target = (source + torch.randint(1, 9, source.shape, generator=generator)) % rows
    weight = torch.rand(source.shape, generator=generator, dtype=torch.float64) + 0.1
    if form == "symmetric":
        source, target, weight = torch.cat([source, target]), torch.cat([target, source]), torch.cat([weight] * 2)
    made = adjacency_from_edges(source, target, weight, rows, dtype=torch.float64)
    made = normalise(made, form, self_loops)  # type: ignore[arg-type]
    return made.with_features(draw(made.entries, EDGES, seed=seed).abs())


def built(make: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    layer = make().double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def gradients(out: Tensor, leaves: dict[str, Tensor], module: nn.Module, seed: int = 9) -> dict[str, Tensor]:
    """Return the output with all gradients of a fixed sum of it; zeros where there is none."""
    wanted = {**leaves, **dict(module.named_parameters())}
    found = torch.autograd.grad(out, list(wanted.values()), draw(*out.shape, seed=seed), allow_unused=True)
    result = {name: torch.zeros_like(x) if g is None else g for (name, x), g in zip(wanted.items(), found, strict=True)}
    return {"out": out.detach(), **result}


def difference(got: dict[str, Tensor], want: dict[str, Tensor]) -> float:
    assert got.keys() == want.keys()
    assert all(got[name].shape == want[name].shape for name in want)
    return max(
        float((got[name] - value).abs().max() / value.abs().max().clamp_min(1e-3)) if value.numel() else 0.0
        for name, value in want.items()
    )


def close(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    assert difference(got, want) < 1e-10
    assert difference({**got, "out": got["out"] + 1e-6}, want) > 1e-10


def view(matrices: Sequence[Adjacency], noise: Noise | None, first: int = 0, **options: Any) -> View:
    steps = range(first, first + len(matrices))
    return View(Local(matrices, ROWS), Alone(None, first), steps=steps, noise=noise, relations=RELATIONS, **options)


def plain(matrices: Sequence[Adjacency], noise: Noise | None, first: int = 0) -> PlainView:
    made = PlainView(matrices, noise, relations=RELATIONS)
    made.steps = range(first, first + len(matrices))
    return made


def leaf(x: Tensor) -> Tensor:
    return x.clone().requires_grad_()


@pytest.fixture
def pooled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In training, let tensors of a test's size come from the pool too, as large ones do."""
    if request.getfixturevalue("noise") is not None:
        monkeypatch.setattr(memory, "SMALLEST", 1)


# A layer


@pytest.mark.usefixtures("pooled")
@pytest.mark.parametrize("noise", [None, Noise(5, 1)], ids=["evaluation", "training"])
@pytest.mark.parametrize("form", ["row", "symmetric"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_graph(name: str, form: str, noise: Noise | None) -> None:
    """Outputs and every gradient equal those in dense matrices."""
    layer, block, x, h0 = built(LAYERS[name]), matrix(0, form), leaf(draw(ROWS, WIDTH)), leaf(draw(ROWS, WIDTH, seed=2))
    found = []
    for g in (view([block], noise), plain([block], noise)):
        g.enter(NUMBER)
        g.shared["h0"] = h0
        found.append(gradients(g.tie(layer(x, g)), {"x": x, "h0": h0}, layer))
    close(*found)


@pytest.mark.usefixtures("pooled")
@pytest.mark.parametrize("noise", [None, Noise(5, 1)], ids=["evaluation", "training"])
@pytest.mark.parametrize("fixed", [False, True], ids=["frames", "fixed"])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("name", LAYERS)
def test_a_timeline(name: str, steps: int, fixed: bool, noise: Noise | None) -> None:
    """The same on several steps, also where they share one memory."""
    layer, matrices = built(LAYERS[name]), [matrix(t) for t in range(steps)]
    x = leaf(draw(ROWS, WIDTH) if fixed else draw(steps, ROWS, WIDTH))
    h0 = leaf(draw(steps, ROWS, WIDTH, seed=2))
    frames, found = x.expand(steps, ROWS, WIDTH) if fixed else x, []
    for g in (view(matrices, noise, first=4), plain(matrices, noise, first=4)):
        g.enter(NUMBER)
        g.shared["h0"] = h0
        found.append(gradients(g.tie(layer(frames, g)), {"x": x, "h0": h0}, layer))
    close(*found)


@pytest.mark.parametrize(("name", "steps"), [(name, steps) for steps in (0, 1, 3) for name in asked(steps)])
def test_kept_sums(name: str, steps: int) -> None:
    """Nothing is summed up again where the sums of the features are kept."""
    layer, matrices = built({**LAYERS, **ALONG}[name]), [matrix(t) for t in range(max(1, steps))]
    x = draw(steps, ROWS, WIDTH) if steps else draw(ROWS, WIDTH)
    sums = torch.stack([aggregate(x[t] if steps else x, block) for t, block in enumerate(matrices)])
    found = []
    empty = [block.with_values(torch.zeros(block.entries, dtype=torch.float64)) for block in matrices]
    for blocks, features in ((matrices, None), (empty, (x, sums if steps else sums[0])), (empty, None)):
        g = view(blocks, Noise(5, 1), features=features)
        g.shared["h0"] = x * 0.5
        out = layer(x, g)
        found.append(gradients(out, {}, layer) if out.requires_grad else {"out": out})
    if trace_of(layer, timeline=steps > 0).preaggregates:
        close(found[1], found[0])
        assert difference(found[2], found[0]) > 1e-10  # the matrices are read where no sums are kept
    else:
        close(found[1], found[2])


@pytest.mark.parametrize("name", LAYERS)
def test_no_steps(name: str) -> None:
    """A rank without steps calls a layer all the same."""
    layer, x = built(LAYERS[name]), draw(0, ROWS, WIDTH).requires_grad_()
    g = view([], Noise(5, 1))
    g.shared["h0"] = x
    out = layer(x, g)
    assert out.shape == (0, ROWS, layer.out_channels)
    if out.requires_grad:
        g.tie(out).sum().backward()


@pytest.mark.parametrize("name", LAYERS)
def test_verbs_are_counted_alike(name: str) -> None:
    """By their number a rank finds states again and messages their reader: with kept sums and without steps, too."""
    layer, x, blocks, counted = built(LAYERS[name]), draw(2, ROWS, WIDTH), [matrix(0), matrix(1)], []
    for frames, matrices, features in ((x, blocks, None), (x, blocks, (x, x)), (x[:0], [], None)):
        g = view(matrices, Noise(5, 1), features=features)
        g.shared["h0"] = frames
        layer(frames, g)
        counted.append(g._call(1))
    assert counted == [counted[0]] * 3
    assert g._call(1) != counted[0]


def test_chance_is_told_apart() -> None:
    """Another layer, step or epoch draws other numbers."""
    block, x = matrix(0), draw(ROWS, WIDTH)
    for name in ("gcn, rrelu", "gat, dropping", "pyg sage", "resgcn"):
        layer, found = built(LAYERS[name]), []
        for noise, number, first in (
            (Noise(5, 1), 2, 0),
            (Noise(5, 2), 2, 0),
            (Noise(5, 1), 3, 0),
            (Noise(5, 1), 2, 1),
        ):
            g = view([block], noise, first)
            g.enter(number)
            found.append(layer(x, g).detach())
        assert all(not torch.allclose(found[0], other) for other in found[1:])


# A model


def model_of(name: str, **options: Any) -> Any:
    return built(lambda: layers.build(name, WIDTH, 3, edge_channels=EDGES, seed=3, **options))


STATIC: dict[str, tuple[str, dict[str, Any]]] = {
    "gcn": ("gcn", {"hidden": 8, "layers": 3, "residual": True, "input_dropout": 0.2}),
    "sage": ("sage", {"hidden": 8, "norm": "layer"}),
    "sage, batch norm": ("sage", {"hidden": 8, "norm": "batch"}),
    "gcnii": ("gcnii", {"hidden": 8, "layers": 4, "input_dropout": 0.2}),
    "resgcn+": ("resgcn+", {"hidden": 8, "layers": 3}),
    "resgcn+, batch norm": ("resgcn+", {"hidden": 8, "layers": 2, "norm": "batch"}),
    "resgcn+, plain": ("resgcn+", {"hidden": 8, "layers": 2, "final_norm": False}),
    "gat": ("gat", {"hidden": 8, "heads": 2, "attention_dropout": 0.3}),
    "gatv2": ("gatv2", {"hidden": 8, "heads": 2, "out_heads": 2}),
    "gin": ("gin", {"hidden": 8, "train_eps": True, "activation": "rrelu"}),
    "gin, batch norm": ("gin", {"hidden": 8, "norm": "batch", "mlp_norm": "batch", "activation": "tanh"}),
    "gine": ("gine", {"hidden": 8}),
    "rgcn": ("rgcn", {"hidden": 8, "bases": 2}),
}
DYNAMIC: dict[str, tuple[str, dict[str, Any]]] = {
    "cd-gcn": ("cd-gcn", {"dropout": 0.3, "norm": "batch"}),
    "wd-gcn": ("wd-gcn", {"dropout": 0.3, "head": False}),
    "tm-gcn": ("tm-gcn", {"window": 2}),
    "evolvegcn-o": ("evolvegcn-o", {"hidden": 4}),
    "evolvegcn-o, batch norm": ("evolvegcn-o", {"hidden": 4, "norm": "batch", "dropout": 0.3}),
    "evolvegcn-o, wide": ("evolvegcn-o", {"hidden": 8, "dropout": 0.3, "activation": "tanh"}),
    "evolvegcn-h": ("evolvegcn-h", {"hidden": 4, "activation": "rrelu", "dropout": 0.3}),
    "evolvegcn-h, wide": ("evolvegcn-h", {"hidden": 8, "activation": "relu", "head": False}),
    **{
        f"recurrent, {spatial}": ("recurrent", {"spatial": spatial, "hidden": 4, "dropout": 0.3, "norm": norm})
        for spatial, norm in (
            ("gcn", "none"),
            ("sage", "layer"),
            ("gat", "none"),
            ("gatv2", "layer"),
            ("gin", "none"),
            ("gine", "none"),
            ("rgcn", "none"),
        )
    },
    "recurrent, concat": ("recurrent", {"temporal": "lstm", "concat": True, "hidden": 8}),
}


def test_every_model_is_here() -> None:
    """No model of the registry is left out."""
    assert {name for name, _ in (*STATIC.values(), *DYNAMIC.values())} == set(layers.NAMES)


@pytest.mark.parametrize("noise", [None, Noise(5, 1)], ids=["evaluation", "training"])
@pytest.mark.parametrize("case", STATIC)
def test_static_models(case: str, noise: Noise | None) -> None:
    """A model equals itself in dense matrices."""
    name, options = STATIC[case]
    model, x = model_of(name, **options), leaf(draw(ROWS, WIDTH))
    block = matrix(0, "row", self_loops=model.self_loops)
    close(*(gradients(g.tie(model(x, g)), {"x": x}, model) for g in (View.whole(block, noise), plain([block], noise))))


@pytest.mark.usefixtures("pooled")
@pytest.mark.parametrize("noise", [None, Noise(5, 1)], ids=["evaluation", "training"])
@pytest.mark.parametrize("fixed", [False, True], ids=["frames", "fixed"])
@pytest.mark.parametrize("case", DYNAMIC)
def test_dynamic_models(case: str, fixed: bool, noise: Noise | None) -> None:
    """The same on three steps."""
    name, options = DYNAMIC[case]
    model, steps = model_of(name, **options), 3
    matrices = [matrix(t, self_loops=model.self_loops) for t in range(steps)]
    x = leaf(draw(ROWS, WIDTH) if fixed else draw(steps, ROWS, WIDTH))
    frames = x.expand(steps, ROWS, WIDTH) if fixed else x
    views = View.whole(matrices, noise), plain(matrices, noise)
    close(*(gradients(g.tie(model(frames, g)), {"x": x}, model) for g in views))


def test_a_head_draws_nothing() -> None:
    """The head of a dynamic model is the same in training."""
    model = layers.DynamicModel(
        [layers.Evolving(WIDTH, 4, activation="leaky")], layers.LinearLayer(4, 3, activation="rrelu")
    ).double()
    x, matrices = draw(2, ROWS, WIDTH), [matrix(t) for t in range(2)]
    assert model(x, view(matrices, Noise(5, 1))).equal(model(x, view(matrices, None)))


def test_parameters_are_registered_once() -> None:
    """What is passed to `recur` owns no parameters: their names stay."""
    names = [name for name, _ in layers.Evolving(WIDTH, 4, variant="H").named_parameters()]
    assert names == ["weight", "gru.weight_x", "gru.weight_q", "gru.bias", "summary.scorer"]


# Cut by vertex


def problem(form: str, steps: int) -> tuple[list[Adjacency], Tensor, Tensor]:
    frames = max(1, steps)
    matrices = [matrix(t, form) for t in range(frames)]
    return matrices, draw(frames, ROWS, WIDTH), draw(frames, ROWS, WIDTH, seed=2)


def run(layer: Any, g: View, x: Tensor, h0: Tensor, steps: int, loss: Tensor) -> dict[str, Tensor]:
    """Ask one layer; a graph has no dim of steps."""
    x, h0 = (leaf(rows if steps else rows[0]) for rows in (x, h0))
    g.enter(NUMBER)
    g.shared["h0"] = h0
    out = g.tie(layer(x, g))
    (g.frames(out) * loss[..., : out.shape[-1]]).sum().backward()
    leaves = {"x": x, "h0": h0, **dict(layer.named_parameters())}
    found = {name: torch.zeros_like(value) if value.grad is None else value.grad for name, value in leaves.items()}
    return {"out": out.detach(), **found}


def loss_of(steps: int) -> Tensor:
    loss = draw(max(1, steps), ROWS, 9, seed=4)
    loss[:, : ROWS // 2 + 3] = 0.0  # no row of the first part has one
    return loss


def rank(mesh: Mesh, form: str, steps: int, spoilt: bool) -> dict[str, tuple[dict[str, Tensor], dict[str, int]]]:
    matrices, x, h0 = problem(form, steps)
    partition, part = Partition.equal(ROWS, mesh.layout.vertex), mesh.part_index
    graphs = [part_graph_of(block, partition, part) for block in matrices]
    low, high = partition.part(part)
    own, found = torch.arange(low, high), {}
    ids = [torch.cat([own, graph.halo]) for graph in graphs]
    part_rows = [b - a for a, b in (partition.part(q) for q in range(mesh.layout.vertex))]
    if spoilt and part == 1:
        x = x + 1e-6 * h0
    for name in asked(steps):
        ledger = Ledger()
        spatial = Halo(graphs, Door(Transport(mesh, ledger), torch.float64), part_rows=part_rows, ids=ids)
        layer = built({**LAYERS, **ALONG}[name])
        g = View(
            spatial,
            Alone() if steps else None,
            steps=range(len(matrices)),
            vertices=ROWS,
            noise=Noise(5, 1, vertices=own),
        )
        result = run(layer, g, x[:, low:high], h0[:, low:high], steps, loss_of(steps)[:, low:high])
        for key in result.keys() - {"out", "x", "h0"}:
            torch.distributed.all_reduce(result[key])
        found[name] = result, {entry.kind: entry.bytes for entry in ledger.entries()}
    return found


def worst(form: str, steps: int, *, spoilt: bool = False) -> dict[str, float]:
    matrices, x, h0 = problem(form, steps)
    partition, size = Partition.equal(ROWS, 2), x.element_size()
    halo = sum(len(part_graph_of(block, partition, part).halo) for block in matrices for part in range(2))
    ranks, result = on_ranks(__file__, "rank", "vertex=2", form, steps, spoilt), {}
    for name in asked(steps):
        layer = built({**LAYERS, **ALONG}[name])
        want = run(layer, view(matrices, Noise(5, 1)), x, h0, steps, loss_of(steps))
        got = dict(ranks[0][name][0])
        for key in ("out", "x", "h0"):
            got[key] = torch.cat([one[name][0][key] for one in ranks], -2)
        result[name] = difference(got, want)
        calls = trace_of(layer, timeline=steps > 0).calls
        crosses = halo * size * sum(call.width for call in calls if call.verb in ("aggregate", "gather"))
        for kind in ("halo", "halo-gradients"):
            assert sum(one[name][1].get(kind, 0) for one in ranks) == crosses, (name, kind)
    return result


@pytest.mark.parametrize("steps", [0, 3], ids=["graph", "timeline"])
@pytest.mark.parametrize("form", ["row", "symmetric"])
def test_cut_by_vertex(form: str, steps: int) -> None:
    """Every layer is exact on two parts, with dropout, and moves rows as wide as it says."""
    found = worst(form, steps)
    assert max(found.values()) < 1e-10, found


def test_a_spoilt_part_is_seen() -> None:
    """The comparison fails for every layer where one part reads something else."""
    assert min(worst("row", 0, spoilt=True).values()) > 1e-10


def test_kinds_are_complete() -> None:
    """Every layer of the package is compared."""
    made = {type(make()) for make in LAYERS.values()} | {type(make()) for make in ALONG.values()}
    kinds = {
        kind
        for kind in vars(layers).values()
        if isinstance(kind, type) and issubclass(kind, (Layer, layers.DynamicLayer))
    }
    temporal = {kind for kind in vars(layers).values() if isinstance(kind, type) and issubclass(kind, Temporal)}
    assert kinds - {Layer, layers.DynamicLayer, Attending} <= made
    assert temporal - {Temporal} == {layers.LSTM, layers.GRU, layers.MProduct}
