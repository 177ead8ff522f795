"""`ExactCase`: one drawn configuration as plain values, and the data, the model and the layout that it describes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch_geometric import nn as pyg  # here, so that forks have it

from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.nn import GRU, DynamicModel, FromPyG, LinearLayer, Model, SpatialTemporal

Plain = dict[str, Any]


@dataclass(frozen=True)
class ExactCase:
    """A configuration that is trained on ranks and in one process.

    Attributes:
        data: see `make_data`.
        model: its name and options; `pyg`: convolutions of PyG, see `make_model`.
        task, layout, train: as `trisect.fit` takes them.
        reference: the layout of one process; not empty where chunks read history, which one process does alike.
        cut: how vertices are given to parts: `layout`: by the layout's partitioner, otherwise by hand (`hand_cut.py`).
        runs: whether the steps are dealt to ranks by hand, with empty runs.
        thresholds: constants of the library and their values on the ranks (`thresholds.py`); one process has its own.
        native: the kernels of the ranks, as TRISECT_NATIVE names them; empty: the library's choice.
        threads: of each rank.
        prefetch: whether ranks make the next matrix in the background.
        memory: what TRISECT_MEMORY says to the ranks; empty: nothing.
        spoil: how ranks are made to fail (`spoilt_ranks.py`); empty: not at all.
    """

    data: Plain
    model: Plain
    task: Plain
    layout: Plain
    train: Plain
    reference: Plain = field(default_factory=dict)
    cut: str = "turn"
    runs: bool = False
    thresholds: Plain = field(default_factory=dict)
    native: str = ""
    threads: int = 1
    prefetch: bool = False
    memory: str = ""
    spoil: str = ""

    @property
    def ranks(self) -> int:
        """Number of ranks of the layout."""
        world = 1
        for axis in ("time", "layer", "vertex"):
            world *= self.layout.get(axis, 1)
        return world

    def text(self) -> str:
        """The case as JSON, which `parse` reads back."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def parse(cls, text: str) -> ExactCase:
        """Read a case from its JSON."""
        return cls(**json.loads(text))


def make_data(case: ExactCase) -> Graph | Timeline:
    """Make the graph or the timeline of a case; the same in every process."""
    return _timeline(case.data) if "steps" in case.data else _graph(case.data)


def _graph(data: Plain) -> Graph:
    generator = torch.Generator().manual_seed(data["seed"])
    n = data["vertices"]
    src, dst = _edges(data, n, generator)
    splits = None
    if data["masks"]:
        kind = torch.randint(3, (n,), generator=generator)
        kind[: min(3, n)] = torch.arange(min(3, n))  # each split has a vertex
        if data["untrained"]:  # training vertices are few and near each other, so that parts have none
            kind = torch.where((kind == 0) & (torch.arange(n) > max(2, n // 6)), 1, kind)
        splits = {name: kind == number for number, name in enumerate(("train", "val", "test"))}
    return Graph.from_edges(
        src,
        dst,
        _weights(data, src.numel(), generator),
        vertices=n,
        undirected=data["undirected"],
        x=torch.randn(n, data["features"], generator=generator),
        y=_targets(data, (n,), generator),
        splits=splits,
        edge_x=_edge_features(data, src.numel(), generator),
        merge=data["merge"],
        relation=_relations(data, src.numel(), generator),
        relations=[f"relation {number}" for number in range(data.get("relations", 0))] or None,
    )


def _timeline(data: Plain) -> Timeline:
    generator = torch.Generator().manual_seed(data["seed"])
    n, steps = data["vertices"], data["steps"]
    pieces: list[tuple[Tensor, Tensor]] = []
    for step in range(steps):
        present = n
        if data["late"]:  # vertices appear in their order
            present = max(2, min(n, 1 + n * (step + 1) // max(1, steps - 1)))
        src, dst = _edges(data, present, generator)
        empty = step in data["empty"]
        pieces.append((src[:0], dst[:0]) if empty else (src, dst))
        if pieces and data["repeats"] and step and not empty:  # part of a snapshot is that of the step before
            half = pieces[-2][0].numel() // 2
            pieces[-1] = tuple(  # type: ignore[assignment]
                torch.cat([own, before[:half]]) for own, before in zip(pieces[-1], pieces[-2], strict=True)
            )
    src, dst = (torch.cat(ends) for ends in zip(*pieces, strict=True))
    offsets = [0, *torch.cumsum(torch.tensor([piece[0].numel() for piece in pieces]), 0).tolist()]
    x: Tensor | None = None
    if data["features"]:
        shape = (n, data["features"]) if data["fixed"] else (steps, n, data["features"])
        x = torch.randn(*shape, generator=generator)
    edge_y = None
    if data["edge_classes"]:
        edge_y = torch.randint(data["edge_classes"], (src.numel(),), generator=generator)
        edge_y[torch.rand(src.numel(), generator=generator) < 0.2] = -1
        if data.get("few_labels"):
            edge_y[src > max(4, n // 6)] = -1
    return Timeline.from_arrays(
        src,
        dst,
        offsets,
        vertices=n,
        weight=_weights(data, src.numel(), generator),
        undirected=data["undirected"],
        smoothing=data["smoothing"],
        x=x,
        y=_targets(data, (steps, n) if data["by_step"] else (n,), generator),
        edge_y=edge_y,
        edge_x=_edge_features(data, src.numel(), generator),
        merge=data["merge"],
        relation=_relations(data, src.numel(), generator),
        relations=[f"relation {number}" for number in range(data.get("relations", 0))] or None,
    )


def _edges(data: Plain, present: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Edges among the first vertices, without those that stay isolated."""
    joined = max(1, round(present * (1.0 - data["isolated"])))
    count = max(1, round(joined * data["degree"]))
    src, dst = torch.randint(joined, (2, count), generator=generator)
    if data["hub"]:
        src[::2] = 0
    if data["near"]:  # neighbours have near numbers, so that stretches of vertices have an interior
        dst = (src + torch.randint(1, 4, (count,), generator=generator)) % joined
    if data["loops"]:
        dst[::5] = src[::5]
    else:
        other = src != dst
        src, dst = src[other], dst[other]
    if data["duplicates"]:
        half = count // 3
        src, dst = torch.cat([src, src[:half], dst[:half]]), torch.cat([dst, dst[:half], src[:half]])
    return src, dst


def _weights(data: Plain, count: int, generator: torch.Generator) -> Tensor | None:
    return torch.rand(count, generator=generator) + 0.25 if data["weights"] else None


def _edge_features(data: Plain, count: int, generator: torch.Generator) -> Tensor | None:
    width = data["edge_features"]
    return torch.randn(count, width, generator=generator) if width else None


def _relations(data: Plain, count: int, generator: torch.Generator) -> Tensor | None:
    """Of each edge one of the relations, the last of which has no edges where there are several."""
    number = data.get("relations", 0)
    return torch.randint(max(1, number - 1), (count,), generator=generator) if number else None


def _targets(data: Plain, shape: tuple[int, ...], generator: torch.Generator) -> Tensor | None:
    if data["targets"] == "none":
        return None
    missing = torch.rand(*shape, generator=generator) < data["missing"]
    if data.get("few_labels"):  # of near vertices alone, so that parts have none
        missing |= torch.arange(shape[-1]) > max(4, shape[-1] // 6)
    if data["targets"] == "classes":
        y = torch.randint(data["classes"], shape, generator=generator)
        y.view(-1)[: data["classes"]] = torch.arange(data["classes"])[: y.numel()]
        return torch.where(missing & (torch.arange(shape[-1]) >= data["classes"]), -1, y)
    y = torch.randn(*shape, data["classes"], generator=generator)
    y[missing] = float("nan")
    return y.squeeze(-1) if data["classes"] == 1 else y


def make_model(case: ExactCase) -> tuple[Any, Plain]:
    """What `trisect.fit` takes as the model, and the options beside it."""
    options = dict(case.model)
    name = options.pop("name")
    return (_pyg_model(options), {}) if name == "pyg" else (name, options)


def _pyg_model(options: Plain) -> Any:
    """Convolutions of PyG one after the other, with a GRU behind each where the model is dynamic."""
    widths, edge_dim = options["widths"], options["edge_features"] or None

    def convolution(kind: str, first: int, second: int) -> FromPyG:
        conv: torch.nn.Module
        if kind in ("mean", "max"):
            conv = pyg.SAGEConv((first, first), second, aggr=kind)
        elif kind == "graph":
            return FromPyG(pyg.GraphConv((first, first), second), "relu", options["dropout"], edge_weight="edge_weight")
        elif kind == "gat":
            conv = pyg.GATConv((first, first), second, add_self_loops=False, edge_dim=edge_dim)
        else:
            conv = pyg.GATv2Conv((first, first), second, add_self_loops=False, edge_dim=edge_dim)
        return FromPyG(conv, "relu", options["dropout"])

    layers = [convolution(kind, *widths[k : k + 2]) for k, kind in enumerate(options["kinds"])]
    head = LinearLayer(widths[-1], options["outputs"])
    model: Model | DynamicModel
    if options["dynamic"]:
        cells = [SpatialTemporal(layer, GRU(layer.out_channels, layer.out_channels)) for layer in layers]
        model = DynamicModel(cells, head, normalisation="none", self_loops=True)
    else:
        model = Model([*layers, head], normalisation="none", self_loops=True)
    model.reset_parameters(options["seed"])
    return model
