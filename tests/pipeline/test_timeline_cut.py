"""Timelines cut by time, blocks, vertex and layer: every gradient against one process, in real worlds of ranks.

A case goes the way of a run: job and shards on disk, each rank set up from them (`tests/ranks/run_cases.py`). METIS
cuts the vertices of some cases; in the others they go to the parts in turn, which no partitioner would choose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import pytest

Case = dict[str, Any]
Results = list[tuple[Case, list[Case]]]

# model, its options, the exchanges that fit it
MODELS: list[tuple[str, Case, tuple[str, ...]]] = [
    ("cd-gcn", {"hidden": 4, "dropout": 0.3}, ("carry", "redistribute")),
    ("wd-gcn", {"hidden": 4, "dropout": 0.3}, ("carry", "redistribute")),
    ("evolvegcn-o", {"hidden": 4, "dropout": 0.3}, ("auto",)),
    ("evolvegcn-h", {"hidden": 4, "dropout": 0.3}, ("auto",)),
    ("tm-gcn", {"hidden": 4, "window": 3, "dropout": 0.3}, ("halo", "carry", "redistribute")),
    (
        "recurrent",
        {"hidden": 4, "spatial": "gat", "temporal": "gru", "heads": 2, "dropout": 0.3},
        ("carry", "redistribute"),
    ),
    ("recurrent", {"hidden": 4, "spatial": "sage", "temporal": "gru", "dropout": 0.3}, ("carry", "redistribute")),
]
ALONG = {"evolvegcn-o": "none", "evolvegcn-h": "carry"}
CD, TM = {"hidden": 4}, {"hidden": 4, "window": 3}
BARE = {"hidden": 4, "head": False}
PAIRED = {"time": 2, "vertex": 2, "blocks": 2}
DEEP: Case = {"hidden": 4, "layers": 3, "dropout": 0.3}
STATIC = [("gcnii", DEEP), ("resgcn+", DEEP), ("gcn", DEEP)]
DYNAMIC = [("cd-gcn", {**CD, "dropout": 0.3}), ("evolvegcn-h", CD), ("tm-gcn", TM)]
# steps of each run of each block: a run may have none where others have some, first, last or between
HOLES = [[2, 1], [1, 0], [0, 2], [1, 0]]
EDGES: list[tuple[str, Case]] = [
    ("recurrent", {"hidden": 4, "spatial": "gatv2", "heads": 2, "dropout": 0.3}),
    ("recurrent", {"hidden": 4, "spatial": "gine", "temporal": "lstm", "concat": True}),
    ("gatv2", {"hidden": 4, "heads": 2, "attention_dropout": 0.3}),
    ("pyg", {}),
]
CUTS: dict[int, list[Case]] = {
    2: [{"vertex": 2}, {"layer": 2, "blocks": 2}, {"time": 2, "blocks": 2}],
    4: [{"vertex": 2, "layer": 2, "blocks": 2}, {"time": 2, "vertex": 2}, {"time": 2, "layer": 2}, {"vertex": 4}],
}


def case(layout: Case, model: str, options: Case, **more: Any) -> Case:
    return {"module": "timeline_cases", "run": "timeline", "layout": layout, "model": model, "options": options, **more}


def every_model(layout: Case, **more: Any) -> list[Case]:
    """Each model, along time with each exchange that fits it."""
    return [
        case({**layout, "temporal": temporal}, model, options, **more)
        for model, options, able in MODELS
        for temporal in (able if "time" in layout else able[:1])
    ]


def along_time(times: int) -> list[Case]:
    return [
        *every_model({"time": times}),
        *every_model({"time": times, "blocks": 3}),
        *every_model({"time": times, "blocks": 2}, uneven=True, evaluate=True),
    ]


def static_models(world: int) -> list[Case]:
    """Static models on a timeline, under every cut, computed again or not."""
    return [
        case({**layout, "recompute": again}, model, options, evaluate=not again)
        for layout in CUTS[world]
        for again in (False, True)
        for model, options in STATIC
    ]


def by_columns(world: int) -> list[Case]:
    return [
        case({**layout, "spatial": "redistribute"}, model, options, evaluate=True)
        for layout in CUTS[world]
        if "vertex" in layout
        for model, options in (*STATIC, *DYNAMIC)
    ]


def computed_again(world: int) -> list[Case]:
    return [
        case({**layout, "recompute": True}, model, options, twice=True)
        for layout in CUTS[world]
        for model, options in DYNAMIC
    ]


def again_with_holes(world: int) -> list[Case]:
    """Groups of layers are run again while some ranks have no steps: all ranks post their messages in one order."""
    layout = {"time": 2, "vertex": world // 2, "recompute": True}
    return [given for blocks in (5, 7) for given in every_model({**layout, "blocks": blocks})]


def with_holes(layout: Case) -> list[Case]:
    return every_model({**layout, "blocks": len(HOLES)}, runs=HOLES, evaluate=True)


def beside_the_halo() -> list[Case]:
    """Interior rows are computed while the halo is on its way."""
    return [
        case({"vertex": 2, **layout}, model, options, overlap=True, symmetric=symmetric, evaluate=True)
        for symmetric in (False, True)
        for layout in ({}, {"blocks": 2}, {"recompute": True})
        for model, options in (
            *STATIC,
            DYNAMIC[0],
            DYNAMIC[2],
            ("recurrent", {"hidden": 4, "spatial": "gat", "temporal": "gru", "heads": 2, "dropout": 0.3}),
        )
    ]


def with_edges(world: int) -> list[Case]:
    """Layers that read the features of events, merged where the same pairs meet; each layout has another form."""
    forms: list[Case] = [
        {"merge": "mean"},
        {"merge": "sum", "slides": True, "symmetric": True},
        {"merge": "last", "symmetric": True, "evaluate": True},
        {"merge": "count", "slides": True, "twice": True},
    ]
    layouts: dict[int, list[Case]] = {
        1: [{"blocks": 3}, {"blocks": 2, "recompute": True}],
        2: [*CUTS[2], {"vertex": 2, "blocks": 2, "recompute": True}, {"time": 2}],
        4: [{"time": 2, "vertex": 2, "blocks": 2}, {"vertex": 2, "layer": 2}],
    }
    return [
        # PyG's convolution reads four features, of which `count` makes one
        case(layout, model, options, **forms[(number + k) % (3 if model == "pyg" else 4)])
        for number, layout in enumerate(layouts[world])
        for k, (model, options) in enumerate(EDGES)
        if model != "pyg" or "layer" not in layout
    ]


def with_decoders(world: int) -> list[Case]:
    """Decoders of vertices and of pairs, under every cut."""
    return [
        case(layout, *DYNAMIC[0], **more)
        for layout in CUTS[world]
        for more in ({"decoder": "linear"}, {"decoder": "mlp"}, {"pairs": True})
    ]


def clipped(world: int) -> list[Case]:
    """A step by clipped gradients under every cut; a norm that counts replicas twice is seen."""
    train = {"clip": 0.01, "optimiser": "sgd", "momentum": 0.0, "nesterov": False, "lr": 0.5}
    cases = [{**given, "run": "clipped", "train": train} for given in with_decoders(world)[1::3]]
    return [*cases, *({**given, "break": "norm"} for given in cases if given["layout"].keys() & {"vertex", "time"})]


# the cases of each test, and of how many ranks; all of a world run in one
CASES: dict[str, tuple[int, list[Case]]] = {
    "blocks": (
        1,
        [
            *every_model({"blocks": 3}, evaluate=True, twice=True),
            *every_model({}),
            *every_model({}, steps=1),
            case({"blocks": 7}, "cd-gcn", CD, fixed=True, aggregated=True),
        ],
    ),
    "time 2": (2, along_time(2)),
    "time 3": (3, along_time(3)),
    "time 4": (4, along_time(4)),
    "forms": (
        2,
        [
            *every_model({"time": 2, "blocks": 2}, aggregated=True, twice=True)[:6],
            *every_model({"time": 2, "blocks": 2}, fixed=True)[:9],
            *every_model({"time": 2}, steps=2)[::2],
            # windows longer than runs and blocks
            case({"time": 2, "blocks": 3, "temporal": "halo"}, "tm-gcn", {**TM, "window": 6}),
            case({"time": 2, "blocks": 3, "temporal": "halo"}, "tm-gcn", {**TM, "window": 6}, uneven=True),
            case({"time": 2, "temporal": "halo"}, "tm-gcn", {**TM, "window": 1}),
            # more chunks than rows
            case({"time": 2, "temporal": "carry", "chunks": 50}, "cd-gcn", CD, vertices=9),
            case({"time": 2, "temporal": "carry", "chunks": 3}, "cd-gcn", {**CD, "layers": 3}),
        ],
    ),
    "auto": (2, [case({"time": 2}, model, options) for model, options, _ in MODELS]),
    "few steps": (
        2,
        [
            case({"time": 2, "blocks": 3, "temporal": temporal}, "wd-gcn", {"hidden": 4}, steps=6)
            for temporal in ("auto", "carry", "redistribute")
        ],
    ),
    "vertex": (
        2,
        [
            *every_model({"vertex": 2}, evaluate=True),
            *every_model({"vertex": 2, "blocks": 3}, cut="metis"),
            *every_model({"vertex": 2, "blocks": 2}, aggregated=True)[:4],
            *every_model({"vertex": 2, "blocks": 2}, fixed=True),
            *(case({"vertex": 2, "blocks": 2}, model, options, pairs=True) for model, options, _ in MODELS[:3]),
            # fewer rows than a summary has
            case({"vertex": 2}, "evolvegcn-h", {"hidden": 8}, vertices=7),
        ],
    ),
    "layer": (
        2,
        [*every_model({"layer": 2, "blocks": 3}, evaluate=True, twice=True), *every_model({"layer": 2}, steps=1)],
    ),
    "vertex time": (
        4,
        [
            *every_model({"time": 2, "vertex": 2, "blocks": 2}, evaluate=True, cut="metis"),
            *every_model({"time": 2, "vertex": 2}, pairs=True, uneven=True)[:3],
        ],
    ),
    "layer time": (4, every_model({"time": 2, "layer": 2, "blocks": 3}, evaluate=True)),
    "layer vertex": (4, every_model({"layer": 2, "vertex": 2, "blocks": 2}, evaluate=True, cut="metis")),
    # ranks that are late at random
    "delayed": (
        4,
        [
            case({**layout, "blocks": 2}, model, options, delayed=True)
            for model, options in (("cd-gcn", CD), ("tm-gcn", TM))
            for layout in (
                {"time": 4, "temporal": "carry"},
                {"time": 4, "temporal": "redistribute"},
                {"time": 2, "layer": 2},
                {"time": 2, "vertex": 2, "temporal": "redistribute"},
                {"layer": 2, "vertex": 2},
            )
        ],
    ),
    "edges 1": (1, with_edges(1)),
    "edges 2": (2, with_edges(2)),
    "edges 4": (4, with_edges(4)),
    "decoders 2": (2, with_decoders(2)),
    "decoders 4": (4, with_decoders(4)),
    "clipped 2": (2, clipped(2)),
    "clipped 4": (4, clipped(4)),
    "static models 2": (2, static_models(2)),
    "static models 4": (4, static_models(4)),
    "columns 2": (2, by_columns(2)),
    "columns 4": (4, by_columns(4)),
    "again 2": (2, computed_again(2)),
    "again 4": (4, computed_again(4)),
    "again holes 2": (2, again_with_holes(2)),
    "again holes 4": (4, again_with_holes(4)),
    "holes 2": (
        2,
        [
            *with_holes({"time": 2}),
            case({"time": 2, "blocks": 4, "temporal": "halo"}, "tm-gcn", {**TM, "window": 6}, runs=HOLES),
        ],
    ),
    "holes 4": (
        4,
        [
            *with_holes({"time": 2, "vertex": 2}),
            *with_holes({"time": 2, "layer": 2}),
            *with_holes({"time": 2, "vertex": 2, "spatial": "redistribute"})[:8],
        ],
    ),
    "overlap": (2, beside_the_halo()),
    # the loss reads what the last layer gives, without a head between
    "no head 2": (
        2,
        [
            case({**layout, "blocks": 2}, model, BARE, pairs=True)
            for model, layout in (
                ("cd-gcn", {"time": 2, "temporal": "redistribute"}),
                ("cd-gcn", {"time": 2, "temporal": "carry"}),
                ("cd-gcn", {"vertex": 2}),
                ("evolvegcn-h", {"layer": 2}),
            )
        ],
    ),
    "no head 4": (
        4,
        [
            *(
                case({**PAIRED, "temporal": temporal}, "cd-gcn", BARE, pairs=True, uneven=uneven)
                for temporal, uneven in (("carry", True), ("redistribute", False), ("redistribute", True))
            ),
            case({**PAIRED, "temporal": "halo"}, "tm-gcn", {**TM, "head": False}, pairs=True),
            case({**PAIRED, "spatial": "redistribute"}, "cd-gcn", BARE, pairs=True),
            case({"layer": 2, "time": 2, "temporal": "redistribute"}, "cd-gcn", BARE, pairs=True),
        ],
    ),
    "all three": (
        8,
        [
            case({"time": 2, "layer": 2, "vertex": 2, "blocks": 2, "temporal": able[0]}, model, options, evaluate=True)
            for model, options, able in (MODELS[0], MODELS[3], MODELS[4])
        ],
    ),
    "wrong": (
        2,
        [
            case({"time": 2, "temporal": "carry"}, "cd-gcn", CD, **{"break": "carry"}),
            case({"time": 2, "temporal": "redistribute"}, "cd-gcn", CD, **{"break": "swap"}),
            case({"time": 2, "temporal": "halo"}, "tm-gcn", TM, **{"break": "send"}),
            case({"vertex": 2}, "cd-gcn", CD, **{"break": "swap"}),
            case({"layer": 2}, "cd-gcn", CD, **{"break": "send"}),
            case({"vertex": 2}, "evolvegcn-h", {"hidden": 4}, **{"break": "swap"}),
            case({"vertex": 2}, "gcnii", DEEP, **{"break": "swap"}),
            case({"vertex": 2, "spatial": "redistribute"}, "gcnii", DEEP, **{"break": "swap"}),
            case({"vertex": 2}, "gcn", DEEP, overlap=True, symmetric=True, **{"break": "swap"}),
            case({"time": 2, "blocks": 4, "temporal": "halo"}, "tm-gcn", TM, runs=HOLES, **{"break": "send"}),
            *(case({"vertex": 2}, model, options, merge="mean", **{"break": "edge"}) for model, options in EDGES),
            case({"time": 2}, *EDGES[0], merge="sum", **{"break": "edge"}),
        ],
    ),
    "coarse": (
        2,
        [
            case({**layout, "wire": wire}, "wd-gcn", {"hidden": 4})
            for wire in ("bfloat16", "int8")
            for layout in ({"time": 2, "temporal": "redistribute"}, {"vertex": 2}, {"layer": 2})
        ],
    ),
}


# on three ranks, or on two, the same is part of the fast tests
SLOW = ("time 4", "holes 4", "again holes 4")


def marked(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in names]


@pytest.fixture(scope="module")
def by_name(tmp_path_factory: pytest.TempPathFactory, ranks: ModuleType) -> Callable[[str], Results]:
    """The results of a test's cases; a world runs when the first test asks for one of its cases."""
    done: dict[str, Results] = {}

    def get(name: str) -> Results:
        if name not in done:
            world = CASES[name][0]
            names = [other for other, (size, _) in CASES.items() if size == world and (other in SLOW) == (name in SLOW)]
            cases = [given for other in names for given in CASES[other][1]]
            results = iter(ranks.run_forks(world, cases, tmp_path_factory.mktemp(f"world-{world}")))
            for other in names:
                done[other] = [(given, next(results)) for given in CASES[other][1]]
        return done[name]

    return get


def worst(results: list[Case], what: str) -> float:
    return max(result[what] for result in results)


@pytest.mark.parametrize(
    "name", marked(name for name in CASES if name.split()[0] not in ("wrong", "coarse", "clipped"))
)
def test_equal_to_one_process(name: str, by_name: Callable[[str], Results]) -> None:
    for given, results in by_name(name):
        assert worst(results, "gradient") < 1e-10, given
        assert worst(results, "loss") < 1e-12, given
        assert results[0]["bytes"] == results[0]["formula"], given
        compared = {parameter for result in results for parameter in result["compared"]}
        assert sorted(compared) == results[0]["parameters"], given
        if "runs" in given:
            assert results[0]["runs"] == given["runs"]
        if given.get("evaluate"):
            assert worst(results, "outputs") < 1e-12, given
            assert worst(results, "hidden") < 1e-12, given


@pytest.mark.parametrize("name", ["clipped 2", "clipped 4"])
def test_clipped_steps_are_those_of_one_process(name: str, by_name: Callable[[str], Results]) -> None:
    for given, results in by_name(name):
        assert results[0]["scale"] < 0.5, given
        assert {parameter for result in results for parameter in result["compared"]} == set(results[0]["parameters"])
        assert worst(results, "step") > 0.1 if "break" in given else worst(results, "step") < 1e-10, given


@pytest.mark.parametrize("name", marked(["time 2", "time 3", "time 4"]))
def test_the_exchange_is_the_one_asked_for(name: str, by_name: Callable[[str], Results]) -> None:
    for given, [first, *_] in by_name(name):
        along = ALONG.get(given["model"], given["layout"]["temporal"])
        assert first["along"] == [along] * 2
        moved = [key for key in first["bytes"] if key.startswith("time/")]
        assert moved == ([] if along == "none" else [f"time/{along}"])


def test_one_rank_sends_nothing(by_name: Callable[[str], Results]) -> None:
    assert all(results[0]["bytes"] == {} for _, results in by_name("blocks"))


def test_auto_takes_what_moves_least(by_name: Callable[[str], Results]) -> None:
    along = [results[0]["along"][0] for _, results in by_name("auto")]
    assert along == ["carry", "carry", "none", "carry", "halo", "carry", "carry"]
    taken, *others = [results[0] for _, results in by_name("few steps")]
    moved = [sum(size for key, size in other["bytes"].items() if key.startswith("time")) for other in (taken, *others)]
    assert moved[0] == min(moved[1:])
    assert moved[1] != moved[2]


def test_kinds_of_bytes(by_name: Callable[[str], Results]) -> None:
    for given, [first, *_] in [*by_name("vertex"), *by_name("layer")]:
        cut, moved = given["layout"], first["bytes"]
        assert ("vertex/halo" in moved) == ("vertex" in cut)
        assert ("layer/activations" in moved) == ("layer" in cut)
        assert ("vertex/summary" in moved) == (given["model"] == "evolvegcn-h" and "vertex" in cut)
        assert ("vertex/fetch" in moved) == bool(given.get("pairs"))


@pytest.mark.parametrize("name", ["columns 2", "columns 4"])
def test_rows_are_redistributed_instead_of_a_halo(name: str, by_name: Callable[[str], Results]) -> None:
    for given, [first, *_] in by_name(name):
        assert set(first["across"]) <= {"redistribute", "none"}, given
        assert "redistribute" in first["across"], given
        assert "vertex/halo" not in first["bytes"], given


def test_interior_rows_are_done_beside_the_halo(by_name: Callable[[str], Results]) -> None:
    for given, results in by_name("overlap"):
        assert all(result["interior"] > 0 and result["sides"] > 0 for result in results), given
    assert all(result["sides"] == 0 for _, results in by_name("vertex") for result in results)


def test_wrong_exchanges_are_seen(by_name: Callable[[str], Results]) -> None:
    for given, results in by_name("wrong"):
        assert worst(results, "gradient") > 1e-5, given


def test_coarse_wires_are_near_and_counted(by_name: Callable[[str], Results]) -> None:
    for given, results in by_name("coarse"):
        assert 1e-6 < worst(results, "gradient") < 0.2, given
        assert results[0]["bytes"] == results[0]["formula"], given
