"""Cases of the public array API: arrays of any type and shape in place of good ones.

What is accepted is compared with a plain loop over the numbers that were given; what is not, is refused in a sentence.
A crash ends the process, and so these cases run in one of their own.
"""

from __future__ import annotations

import importlib.util
import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trisect.graph import Adjacency
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.ops import aggregate

Case = Callable[[], Any]
VERTICES, EDGES, STEPS = 6, 14, 4


def _sound_tests() -> ModuleType:
    path = Path(__file__).parents[1] / "graph" / "test_sound.py"
    spec = importlib.util.spec_from_file_location("sound_tests", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def adjacency_cases(folder: Path, rng: random.Random) -> Iterator[Case]:
    """A matrix of which one array or number is another, in every use."""
    tests = _sound_tests()
    generator = torch.Generator().manual_seed(rng.randrange(2**32))
    while True:
        fields = tests.spoilt(tests.arrays(generator), rng)
        number = rng.randrange(13)
        yield lambda fields=fields, number=number: tests.uses(Adjacency(**fields))[number]()


def spoilt(value: Any, rng: random.Random) -> Any:
    """An array in another form, of another type, shape or content; some of them are as good as before."""
    array = np.array(value)
    flat = array.reshape(-1)
    number = rng.choice([-1, 0, 1, VERTICES, 3000, 2**31 - 1, 2**31, 2**63 - 1, math.nan, math.inf, -math.inf, 1e300])
    with np.errstate(all="ignore"):
        changes: list[Callable[[], Any]] = [
            lambda: array.astype(
                rng.choice(
                    ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "?", "c8", "U3", "O", ">i4"]
                )
            ),
            lambda: np.array([number if k == 1 else x for k, x in enumerate(flat.tolist())]).reshape(array.shape),
            lambda: array[: rng.randrange(len(array) + 1)],
            lambda: array[None],
            lambda: array[..., None],
            lambda: array[::-1],
            lambda: np.repeat(array, 2, 0)[::2],
            lambda: array.tolist(),
            lambda: tuple(array.tolist()),
            lambda: _read_only(array.copy()),
            lambda: torch.tensor(array.tolist()),
            lambda: torch.tensor(array.tolist()).to(
                rng.choice([torch.bfloat16, torch.int16, torch.bool, torch.complex64])
            ),
            lambda: torch.tensor(array.tolist()).to_sparse(),
            lambda: torch.tensor(array.tolist(), dtype=torch.float32, requires_grad=True),
            lambda: torch.stack([torch.tensor(array.tolist())] * 2, -1)[..., 0],
            lambda: torch.empty(array.shape, device="meta"),
            lambda: rng.choice(
                [None, 0, 3, -1, 2.5, "x", b"y", {}, [], [[]], object(), [1, [2]], range(3), np.array(3)]
            ),
            lambda: np.array([]),
            lambda: np.zeros((0, 3)),
            lambda: [str(x) for x in flat.tolist()],
            lambda: np.array(["2024-01-01", "NaT"] * len(array), "M8[s]")[: len(array)],
        ]
        try:
            return rng.choice(changes)()
        except (TypeError, ValueError, RuntimeError, OverflowError):  # not every array has every form
            return None


def _read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


def plain(value: Any) -> list[Any]:
    """The numbers of an array as Python has them."""
    if isinstance(value, Tensor):
        return value.detach().to_dense().tolist()
    if hasattr(value, "toarray"):
        value = value.toarray()
    return np.asarray(value).tolist()


def entries_of(src: Any, dst: Any, weight: Any, *, both: bool) -> dict[tuple[int, int], float]:
    """The entries (row, column) of the matrix of edges, by a plain loop."""
    out: dict[tuple[int, int], float] = {}
    weights = [1.0] * len(plain(src)) if weight is None else np.array(plain(weight), dtype=float).reshape(-1).tolist()
    for s, d, w in zip(plain(src), plain(dst), weights, strict=True):
        for row, column in {(int(d), int(s)), (int(s), int(d))} if both else {(int(d), int(s))}:
            out[row, column] = out.get((row, column), 0.0) + w
    return out


def require_matrix(name: str, matrices: Sequence[Adjacency], wanted: dict[tuple[int, int], float]) -> None:
    """Fail where the sum of matrices has other entries than were given, or its kernels other sums."""
    own: dict[tuple[int, int], float] = {}
    for matrix in matrices:
        values = [1.0] * matrix.entries if matrix.values is None else matrix.edge_weight().tolist()  # type: ignore[union-attr]
        for row, column, value in zip(*(ends.tolist() for ends in matrix.coordinates()), values, strict=True):
            own[row, column] = own.get((row, column), 0.0) + value
    assert own.keys() == wanted.keys(), f"{name} has other entries than were given"
    for key, value in wanted.items():
        assert math.isclose(own[key], value, rel_tol=1e-4, abs_tol=1e-4), f"{name} has {own[key]} at {key}, not {value}"


def require_sums(x: Tensor, matrix: Adjacency) -> None:
    """Fail where the kernels' sums are not those of the entries."""
    if matrix.rows <= 64:
        require_equal("sums", aggregate(x, matrix), matrix.dense().double() @ x.double())


def require_equal(name: str, one: Tensor, other: Tensor) -> None:
    """Fail where numbers are not those that were given."""
    assert one.shape == other.shape, f"{name}: {one.shape} instead of {other.shape}"
    close = torch.isclose(one.double(), other.double(), rtol=1e-4, atol=1e-4, equal_nan=True)
    assert bool(close.all()), f"{name} has other numbers than were given"


def _arguments(rng: random.Random) -> dict[str, Any]:
    ends = {name: [rng.randrange(VERTICES) for _ in range(EDGES)] for name in ("src", "dst")}
    optional: dict[str, Any] = {
        "weight": [rng.random() for _ in range(EDGES)],
        "x": [[rng.random() for _ in range(2)] for _ in range(VERTICES)],
        "y": [k % 2 for k in range(VERTICES)],
        "edge_x": [[rng.random()] for _ in range(EDGES)],
        "names": [f"v{k}" for k in range(VERTICES)],
        "splits": {"train": [True] * VERTICES, "val": [k % 2 == 0 for k in range(VERTICES)]},
    }
    return {**ends, **{name: value for name, value in optional.items() if rng.random() < 0.4}}


def _spoil(arguments: dict[str, Any], options: dict[str, Sequence[Any]], rng: random.Random) -> dict[str, Any]:
    spoiled: set[str] = set()
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        good = {name for name, value in arguments.items() if isinstance(value, dict if name == "splits" else list)}
        name = rng.choice(sorted({*good, *options} - spoiled))
        spoiled.add(name)
        if name in options:
            arguments[name] = rng.choice(options[name])
        elif name == "splits":
            part = rng.choice(["train", "val", "other"])
            arguments[name] = rng.choice([{**arguments[name], part: spoilt([True] * VERTICES, rng)}, 3, [1], {}])
        else:
            arguments[name] = spoilt(arguments[name], rng)
    return arguments


OPTIONS: dict[str, Sequence[Any]] = {
    "vertices": [VERTICES, VERTICES + 2, 0, -1, 2, 2.5, "6", None, True, 2**31 - 1, 2**40, np.int64(VERTICES), [6]],
    "undirected": [True, False, None, "yes", 2],
    "merge": ["sum", "last", "count", "x", None, 3, ["sum"]],
    "split": [0, 1, -1, "a", None, 1.5],
}


def graph_cases(folder: Path, rng: random.Random) -> Iterator[Case]:
    """`Graph.from_edges`."""
    while True:
        arguments = _spoil(_arguments(rng), OPTIONS, rng)

        def make(arguments: dict[str, Any] = arguments) -> None:
            graph = Graph.from_edges(**arguments)
            _compare_graph(graph, arguments)

        yield make


def _compare_graph(graph: Graph, arguments: dict[str, Any]) -> None:
    both = bool(arguments.get("undirected"))
    wanted = entries_of(arguments["src"], arguments["dst"], arguments.get("weight"), both=both)
    require_matrix("adjacency", [graph.adjacency], wanted)
    if graph.x is not None:
        require_equal("x", graph.x, torch.tensor(plain(arguments["x"])))
    require_sums(graph.features(), graph.adjacency)
    if graph.y is not None and graph.y.dtype == torch.int64:
        require_equal("y", graph.y, torch.tensor(plain(arguments["y"]), dtype=torch.int64))
    for kind in ("symmetric", "row"):
        graph.normalised(kind, self_loops=True)  # type: ignore[arg-type]


def timeline_cases(folder: Path, rng: random.Random) -> Iterator[Case]:
    """`Timeline.from_events` and `Timeline.from_arrays`."""
    options = {
        **OPTIONS,
        "smoothing": [
            None,
            {"kind": "edge-life", "length": 2},
            {"kind": "x"},
            3,
            {"kind": "m-transform", "length": 99},
        ],
    }
    while True:
        arguments = _arguments(rng)
        if rng.random() < 0.5:
            arguments["time"] = sorted(rng.randrange(STEPS) for _ in range(EDGES))
            arguments["period"] = 1
            more = {**options, "period": [1, 2, 0, -1, "1d", "x", None, 0.5, math.nan, math.inf, 1e-300, [1], True]}
        else:
            cuts = sorted(rng.randrange(EDGES + 1) for _ in range(STEPS - 1))
            arguments["offsets"] = [0, *cuts, EDGES]
            more = options
        arguments = _spoil(arguments, more, rng)

        def make(arguments: dict[str, Any] = arguments) -> None:
            of = Timeline.from_events if "time" in arguments else Timeline.from_arrays
            _compare_timeline(of(**arguments), arguments)

        yield make


def _compare_timeline(timeline: Timeline, arguments: dict[str, Any]) -> None:
    """Compare all snapshots together, so that the plain loop need not know about steps."""
    snapshots = [timeline.snapshot(step) for step in range(min(timeline.steps, 50))]
    for step, matrix in enumerate(snapshots):
        require_sums(timeline.features_at(step), matrix)
    if timeline.smoothing.window == 1 and timeline.steps <= 50:
        both = bool(arguments.get("undirected"))
        wanted = entries_of(arguments["src"], arguments["dst"], arguments.get("weight"), both=both)
        require_matrix("snapshots", snapshots, wanted)


def table_cases(folder: Path, rng: random.Random) -> Iterator[Case]:
    """`Graph.from_table` and `Timeline.from_table` of mappings of names to arrays."""
    while True:
        columns: dict[str, Any] = {
            "a": [f"v{rng.randrange(VERTICES)}" for _ in range(EDGES)],
            "b": [f"v{rng.randrange(VERTICES)}" for _ in range(EDGES)],
            "w": [rng.random() for _ in range(EDGES)],
            "t": [rng.randrange(STEPS) for _ in range(EDGES)],
        }
        name = rng.choice(sorted(columns))
        columns[name] = spoilt(columns[name], rng) if name in "wt" else rng.choice([spoilt([1] * EDGES, rng), None, []])
        if rng.random() < 0.5:
            yield lambda columns=columns: Graph.from_table(columns, "a", "b", weight="w")
        else:
            yield lambda columns=columns: Timeline.from_table(columns, "a", "b", "t", period=1, weight="w")


CALLS = {"Adjacency": adjacency_cases, "Graph": graph_cases, "Timeline": timeline_cases, "tables": table_cases}
