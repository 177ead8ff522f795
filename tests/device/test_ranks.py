"""Every cut on the pretend device, in real worlds of ranks: it equals the CPU, and copies what the plan says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Case = dict[str, Any]
Ran = Callable[[int, str], list[tuple[Case, list[Case]]]]

SMALL = {"layers": 4, "hidden": 6, "dropout": 0.3}
STATIC: dict[str, Case] = dict.fromkeys(("gcn", "sage", "gin", "gcnii", "resgcn+"), SMALL)
STATIC["gat"] = {**SMALL, "heads": 2}
THIN = {"hidden": 4, "dropout": 0.3}
# options, and the exchanges along time that fit
DYNAMIC: dict[str, tuple[Case, tuple[str, ...]]] = {
    "cd-gcn": (THIN, ("carry", "redistribute")),
    "wd-gcn": (THIN, ("carry", "redistribute")),
    "tm-gcn": ({**THIN, "window": 3}, ("halo", "carry", "redistribute")),
    "recurrent": ({**THIN, "spatial": "gat", "temporal": "gru", "heads": 2}, ("carry", "redistribute")),
    "evolvegcn-o": (THIN, ("auto",)),
    "evolvegcn-h": (THIN, ("auto",)),
}
LINKS = {"name": "link-prediction", "decoder": "mlp", "hidden": 4, "eval_negatives": 5}
CLASSES = {"name": "edge-classification", "decoder": "bilinear"}
PAIRS = (LINKS, CLASSES)


def on_graph(layout: str, model: str, **more: Any) -> Case:
    return {"layout": layout, "model": model, "options": STATIC[model], **more}


def on_timeline(layout: str, model: str, **more: Any) -> Case:
    options = SMALL | {"layers": 3} | STATIC[model] if model in STATIC else DYNAMIC[model][0]
    return {"layout": layout, "model": model, "data": "timeline", "options": options, **more}


def every_model_on_timelines(*layouts: str) -> list[Case]:
    """Each model under each layout; where it cuts time, with each exchange that fits the model."""
    return [
        on_timeline(f"{layout},temporal={temporal}" if "time" in layout and model in DYNAMIC else layout, model)
        for layout in layouts
        for model in (*STATIC, *DYNAMIC)
        # attention does more with its neighbours than sum them up
        if not ("spatial=redistribute" in layout and model in ("gat", "recurrent"))
        for temporal in (DYNAMIC[model][1] if "time" in layout and model in DYNAMIC else ("auto",))
    ]


CASES: dict[tuple[int, str], list[Case]] = {
    (2, "fast"): [
        on_graph("vertex=2,spatial=halo", "gcn"),
        on_graph("vertex=2,spatial=redistribute", "gcnii"),
        on_graph("layer=2", "gcnii"),
        on_graph("layer=2,recompute=true", "resgcn+"),
        on_graph("vertex=2,spatial=halo,transport=network", "gat"),
        on_graph("layer=2,chunks=3", "gcnii", same=True),
        on_graph("vertex=2,spatial=halo,wire=bfloat16", "gcn", same=True),
        on_graph("vertex=2,spatial=halo,wire=int8", "gcn", same=True),
        on_timeline("time=2,temporal=carry", "cd-gcn"),
        on_timeline("time=2,temporal=redistribute", "cd-gcn"),
        on_timeline("time=2,temporal=halo", "tm-gcn"),
        # room for the features, and for no snapshot
        on_timeline("time=2,temporal=carry,blocks=2", "wd-gcn", memory="16000"),
        on_timeline("vertex=2,spatial=halo", "evolvegcn-h"),
        on_timeline("layer=2,blocks=2", "gcnii"),
        on_timeline("vertex=2,spatial=halo", "tm-gcn", task=LINKS),
    ],
    (4, "fast"): [
        on_graph("vertex=2,layer=2,spatial=halo", "gcnii"),
        on_timeline("vertex=2,time=2,spatial=halo,temporal=carry", "cd-gcn"),
        on_timeline("layer=2,time=2,temporal=redistribute", "cd-gcn"),
    ],
    (2, "graphs"): [
        on_graph(f"{layout}{more}", model)
        for layout in (
            "vertex=2,spatial=halo",
            "vertex=2,spatial=redistribute",
            "layer=2",
            "layer=2,chunks=3,history=exact",
        )
        for more in ("", ",recompute=true", ",transport=network")
        for model in STATIC
        if not ("redistribute" in layout and model == "gat")
    ],
    (2, "forms"): [
        *(
            on_graph(f"{layout},wire={wire}", "gcnii", same=True)
            for layout in ("vertex=2,spatial=halo", "vertex=2,spatial=redistribute", "layer=2")
            for wire in ("bfloat16", "int8")
        ),
        *(
            on_timeline(f"{layout},wire={wire}", "cd-gcn", same=True)
            for layout in ("vertex=2,spatial=halo", "layer=2", "time=2,temporal=carry", "time=2,temporal=redistribute")
            for wire in ("bfloat16", "int8")
        ),
        on_timeline("time=2,temporal=halo,wire=bfloat16", "tm-gcn", same=True),
        *(on_graph("layer=2,chunks=3", model, same=True) for model in STATIC),
        on_graph("vertex=2,chunks=3,spatial=halo", "gcn", same=True),
        on_graph("layer=2,chunks=4,history=gnnpipe", "gcnii", same=True),
    ],
    (2, "timelines"): every_model_on_timelines(
        "vertex=2,spatial=halo", "vertex=2,spatial=redistribute", "layer=2,blocks=2", "time=2,blocks=2"
    ),
    (2, "again"): [
        *every_model_on_timelines("time=2,recompute=true,transport=network", "layer=2,recompute=true"),
        *every_model_on_timelines("vertex=2,spatial=halo,recompute=true,transport=network"),
    ],
    (2, "pairs"): [
        on_timeline(layout, model, task=task)
        for layout in ("vertex=2,spatial=halo", "vertex=2,spatial=redistribute", "layer=2", "time=2,blocks=2")
        for model in ("cd-gcn", "evolvegcn-h", "gcnii")
        for task in PAIRS
    ],
    (4, "graphs"): [
        on_graph(layout, model)
        for layout in (
            "vertex=2,layer=2,spatial=halo",
            "vertex=4,spatial=halo",
            "vertex=2,layer=2,spatial=redistribute",
        )
        for model in STATIC
        if not ("redistribute" in layout and model == "gat")
    ],
    (4, "timelines"): [
        *every_model_on_timelines(
            "vertex=2,layer=2,spatial=halo",
            "vertex=2,time=2,spatial=halo",
            "layer=2,time=2",
            "vertex=2,time=2,spatial=redistribute,blocks=2",
        ),
    ],
    (4, "pairs"): [
        on_timeline(layout, model, task=task)
        for layout in ("vertex=2,layer=2,spatial=halo", "vertex=2,time=2,spatial=halo", "layer=2,time=2")
        for model in ("cd-gcn", "gcnii")
        for task in PAIRS
    ],
}
SPOILT = on_graph("vertex=2,spatial=halo", "gcn", broken={"seed": 1})
COPYING = on_graph("vertex=2,spatial=halo", "gcn", copies=True)
ALL = [
    pytest.param(
        *key, id=f"{key[0]}-{key[1]}", marks=[] if key[1] == "fast" else [pytest.mark.slow, pytest.mark.timeout(1800)]
    )
    for key in CASES
]


@pytest.fixture(scope="module")
def ran(ranks: ModuleType, available: None, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Cases of a world, with what each rank saw; all in one start of the world. The last two are to fail."""

    @cache
    def run(world: int, kind: str) -> list[tuple[Case, list[Case]]]:
        chosen = CASES[world, kind] + ([SPOILT, COPYING] if (world, kind) == (2, "fast") else [])
        cases = [{"run": "fitted", "module": "device_cases", **case} for case in chosen]
        folder: Path = tmp_path_factory.mktemp(f"{world}-{kind}")
        return list(zip(chosen, ranks.run_forks(world, cases, folder, timeout=1800), strict=True))

    return run


def as_tested(ran: Ran, world: int, kind: str) -> list[tuple[Case, list[Case]]]:
    return ran(world, kind)[: len(CASES[world, kind])]


@pytest.mark.parametrize(("world", "kind"), ALL)
def test_cuts_equal_the_cpu(world: int, kind: str, ran: Ran) -> None:
    """In one process; or, where a layout is no exact one, under the same layout."""
    for case, results in as_tested(ran, world, kind):
        for result in results:
            assert result["loss"] < 1e-10, case
            assert result["gradients"] < 1e-10, case
            assert result["parameters"] < 1e-10, case
            assert result["metrics"] < 1e-8, case
            assert result["devices"] == ["sim"], case
            communication = result["communication"]
            assert communication["bytes_per_epoch"] == communication["formula_bytes_per_epoch"], case


def test_the_comparison_can_fail(ran: Ran) -> None:
    case, results = ran(2, "fast")[-2]
    assert case == SPOILT
    for result in results:
        assert result["loss"] > 1e-6
        assert result["gradients"] > 1e-6


def unplanned(case: Case, results: list[Case]) -> list[str]:
    """How the copies of an epoch differ from the plan, in words.

    Rows that cross ranks are copied to the host by the sender and to the device by the reader. The gradients of
    parameters that several ranks hold are copied to the host and back as one, and the loss to the host. Snapshots that
    do not fit are brought in each epoch, as the ledger says. A task on
    pairs under a cut by vertex also reads how many rows each part wants of each other.
    """
    layout = dict(item.split("=") for item in case["layout"].split(","))
    shared = int(layout.get("vertex", 1)) * int(layout.get("time", 1)) > 1
    weights = [(result["weights"],) for result in results if shared]
    counts = Counter[tuple[int, ...]]()
    if case.get("task") in PAIRS and "vertex" in layout:
        parts = int(layout["vertex"])
        counts = Counter(shape for r in results for shape in map(tuple, r["copies_to_host"]) if parts in shape[:1])
        counts = Counter({shape: n for shape, n in counts.items() if shape in ((parts,), (parts, parts + 1))})
    sent = Counter(tuple(shape) for result in results for shape in result["copies_to_host"]) - counts
    read = Counter(tuple(shape) for result in results for shape in result["copies_to_device"])
    lost = sent - Counter(weights) - Counter({(): len(results)})
    planned = results[0]["planned"] + 8 * sum(shape[0] for shape in weights)
    brought = sum(result["brought"] for result in results)
    numbers = 8 * len(results) + 8 * sum(n * (s[0] * s[1] if len(s) == 2 else s[0]) for s, n in counts.items())
    found = []
    if brought == 0 and lost != read - Counter(weights):
        found.append(f"{lost} leave devices, and {read - Counter(weights)} come to them")
    if sum(result["copies_host_bytes"] for result in results) != planned + numbers:
        found.append(
            f"{sum(result['copies_host_bytes'] for result in results)} bytes to hosts, not {planned + numbers}"
        )
    if sum(result["copies_device_bytes"] for result in results) != planned + brought:
        found.append(f"{sum(r['copies_device_bytes'] for r in results)} bytes to devices, not {planned} + {brought}")
    if (brought > 0) != ("memory" in case):
        found.append(f"{brought} bytes of snapshots")
    if any(result["copies_lists"] for result in results):
        found.append("lists of rows lie on the host")
    # a task on pairs, the staleness of history and a snapshot that is built on the device read numbers; masks choose
    # the rows of a chunk or step
    reads = case.get("task") is not None or "chunks" in layout or brought > 0
    if not reads and any(result["copies_reads"] for result in results):
        found.append("the host reads single numbers")
    if case.get("data") is None and "chunks" not in layout and any(result["copies_sizes"] for result in results):
        found.append("sizes follow from numbers on the device")
    messages, posts = sum(lost.values()), sum(result["posts"] for result in results)
    if all(int(layout.get(axis, 1)) <= 2 for axis in ("vertex", "layer", "time")) and messages != posts:
        found.append(f"{messages} messages where {posts} are posted")
    return found


@pytest.mark.parametrize(("world", "kind"), ALL)
def test_copies_are_those_of_the_plan(world: int, kind: str, ran: Ran) -> None:
    differences = [(case, unplanned(case, results)) for case, results in as_tested(ran, world, kind)]
    assert [difference for difference in differences if difference[1]] == []


def test_one_more_copy_is_noticed(ran: Ran) -> None:
    case, results = ran(2, "fast")[-1]
    assert case == COPYING
    assert len(unplanned(case, results)) >= 2


@pytest.mark.parametrize(
    ("layout", "messages"),
    [
        # each rank has 45 of 90 vertices, and 3 of 6 columns of all; from rows to columns and back, in each of four
        # layers, forward and backward, on both ranks
        ("vertex=2,spatial=redistribute", {(45, 3): 32}),
        # 90 vertices, 6 activations beside GCNII's 6 of the first layer; forward, and gradients back
        ("layer=2", {(90, 12): 2}),
        # 40 vertices, the 2 frames of 4 numbers before the run; two layers, forward, and gradients back
        ("time=2,temporal=halo", {(80, 4): 4}),
    ],
)
def test_messages_have_the_shapes_of_the_plan(layout: str, messages: dict[tuple[int, int], int], ran: Ran) -> None:
    ((_, results),) = [(case, results) for case, results in as_tested(ran, 2, "fast") if case["layout"] == layout]
    rows = Counter(tuple(shape) for result in results for shape in result["copies_to_host"] if len(shape) == 2)
    assert rows == messages
