"""Graphs cut by vertex, by layer, and both: every gradient against one process, in real worlds of ranks.

A case goes the way of a run: job and shards on disk, each rank set up from them (`tests/ranks/run_cases.py`).
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

MODELS: list[tuple[str, dict[str, Any]]] = [
    ("gcn", {"layers": 4, "hidden": 6, "dropout": 0.3}),
    ("gcnii", {"layers": 6, "hidden": 6, "dropout": 0.3}),
    ("sage", {"layers": 4, "hidden": 6, "dropout": 0.3}),
    ("resgcn+", {"layers": 4, "hidden": 6, "dropout": 0.3}),
    ("gat", {"layers": 3, "hidden": 6, "heads": 2, "attention_dropout": 0.4}),
    ("gin", {"layers": 3, "hidden": 6, "train_eps": True}),
    ("pyg", {}),
    # these read the features of edges, as one of PyG's convolutions does
    ("gatv2", {"layers": 3, "hidden": 6, "heads": 2, "attention_dropout": 0.4}),
    ("gine", {"layers": 3, "hidden": 6, "train_eps": True}),
]
NORMS: list[tuple[str, dict[str, Any]]] = [
    ("gcn", {"layers": 4, "hidden": 6, "dropout": 0.3, "norm": "batch", "root_weight": True}),
    ("gin", {"layers": 3, "hidden": 6, "norm": "batch", "mlp_norm": "batch", "activation": "elu"}),
    # the linear layer behind reads what biases add, which norms would take away: gradients of them that are not 0
    ("resgcn+", {"layers": 3, "hidden": 6, "dropout": 0.3, "norm": "batch", "final_norm": False}),
]
# the models whose layers do no more with what they read than sum it up
COLLECTS = ("gcn", "gcnii", "sage", "resgcn+", "gin")
# edges of `community` and `isolated` go one way, so that halo gradients are added up where they arrive
GRAPHS = ["community", "mutual", "star", "path", "isolated"]
EXACT: dict[int, list[dict[str, int]]] = {
    1: [{}],
    2: [{"vertex": 2}, {"layer": 2}],
    3: [{"vertex": 3}, {"layer": 3}],
    4: [{"vertex": 4}, {"vertex": 2, "layer": 2}],
}
STALE: dict[int, list[dict[str, int]]] = {
    1: [{"chunks": 4}],
    2: [{"layer": 2, "chunks": 4}, {"vertex": 2, "chunks": 3}],
    3: [{"layer": 3, "chunks": 5}],
    4: [{"vertex": 2, "layer": 2, "chunks": 3}],
}


def exact(case: dict[str, Any], results: list[dict[str, Any]]) -> bool:
    """Say whether every gradient, the loss and exact outputs are those of one process, and bytes the formula's."""
    compared = {name for result in results for name in result["compared"]}
    assert sorted(compared) == results[0]["parameters"], case
    assert worst(results, "gradient") < 1e-10, case
    assert worst(results, "loss") < 1e-12, case
    assert worst(results, "outputs") < 1e-10, case
    assert worst(results, "running") < 1e-10, case
    assert worst(results, "hidden") < 1e-10, case
    assert results[0]["bytes"] == results[0]["formula"], case
    return True


def recipe(scale: float = 1.0, period: int = 1, blend: float = 0.0) -> dict[str, Any]:
    return {"scale": scale, "period": period, "blend": blend, "guard": 0}


def worst(results: list[dict[str, Any]], what: str) -> float:
    return max(result[what] for result in results)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_exact_cuts_equal_one_process(world: int, tmp_path: Path, ranks: ModuleType) -> None:
    graphs = {1: GRAPHS[:1], 3: GRAPHS[:2]}.get(world, GRAPHS)
    cases = [
        {"run": "gradients", "layout": layout, "model": model, "options": options, "graph": graph}
        for layout in EXACT[world]
        for graph in graphs
        for model, options in (
            [*MODELS, *NORMS] if graph in GRAPHS[:2] else [MODELS[0], MODELS[3], MODELS[4], NORMS[0]]
        )
    ]
    for case, results in zip(cases, ranks.run_forks(world, cases, tmp_path), strict=True):
        assert exact(case, results)


@pytest.mark.parametrize("world", [2, 4])
def test_decoders_and_clipped_steps_equal_one_process(world: int, tmp_path: Path, ranks: ModuleType) -> None:
    """A decoder is trained in the last stage, by every part of it; a norm that counts replicas twice is the negative
    control of clipping."""
    clipped = {"clip": 0.01, "optimiser": "sgd", "momentum": 0.0, "nesterov": False, "lr": 0.5}
    decoded = [
        {"run": "gradients", "layout": layout, "model": model, "options": options, "decoder": decoder}
        for layout in EXACT[world]
        for decoder in ("linear", "mlp")
        for model, options in (MODELS[0], MODELS[4])
    ]
    steps = [
        {**case, "run": "clipped", "train": clipped, "decoder": decoder}
        for case in decoded[::4]
        for decoder in ("auto", "mlp")
    ]
    wrong = [{**case, "break": "norm"} for case in steps if "vertex" in case["layout"]]
    results = ranks.run_forks(world, [*decoded, *steps, *wrong], tmp_path)
    for case, result in zip(decoded, results, strict=False):
        assert exact(case, result)
        assert any(name.startswith("decoder.") for name in result[0]["parameters"])
    for case, result in zip([*steps, *wrong], results[len(decoded) :], strict=True):
        assert {name for one in result for name in one["compared"]} == set(result[0]["parameters"]), case
        assert result[0]["scale"] < 0.5
        assert worst(result, "step") > 0.1 if "break" in case else worst(result, "step") < 1e-10, case


def test_unusual_cuts_are_exact(tmp_path: Path, ranks: ModuleType) -> None:
    """Parts that do not read each other, a part without training vertices, one with fewer vertices than chunks; waits
    without overlap; ranks that are late at random."""
    common: list[dict[str, Any]] = [
        {"graph": "components", "cut": "components"},
        {"untrained": True},
        {"cut": "uneven"},
        {"cut": "stream"},
        {"overlap": False},
        {"delayed": True},
        {"graph": "mutual", "cut": "uneven"},
        {"graph": "mutual", "delayed": True},
    ]
    cases = [
        {"run": "gradients", "layout": layout, "model": model, "options": options, **setting}
        for setting in common
        for layout in EXACT[4]
        if layout.get("vertex") == 2 or "cut" not in setting
        for model, options in (MODELS[0], MODELS[1], MODELS[4])
    ]
    for case, results in zip(cases, ranks.run_forks(4, cases, tmp_path), strict=True):
        assert exact(case, results)
        assert (worst(results, "halo") == 0) == (case.get("cut") == "components"), case


def test_stale_chunks_may_be_empty_or_late(tmp_path: Path, ranks: ModuleType) -> None:
    layout = {"vertex": 2, "layer": 2, "chunks": 4, "history": recipe(scale=2.0)}
    cases = [
        {"run": "stale", "layout": layout, "model": model, "options": options, **setting}
        for setting in ({"cut": "uneven"}, {"delayed": True}, {"cut": "uneven", "graph": "mutual"})
        for model, options in (MODELS[0], MODELS[1], MODELS[4])
    ]
    for case, results in zip(cases, ranks.run_forks(4, cases, tmp_path), strict=True):
        assert worst(results, "gradient") < 1e-10, case


@pytest.mark.parametrize("world", [2, *(pytest.param(world, marks=pytest.mark.slow) for world in (3, 4))])
def test_losses_of_twenty_epochs(world: int, tmp_path: Path, ranks: ModuleType) -> None:
    chosen = [MODELS[0], MODELS[1], MODELS[5]]
    cases = [
        {"run": "losses", "layout": layout, "model": model, "options": options, "precision": "float32"}
        for layout in EXACT[world]
        for model, options in chosen
        if layout != {"vertex": 4} and layout != {"layer": 3}
    ]
    *right, broken = ranks.run_forks(world, [*cases, {**cases[0], "seed": 10}], tmp_path)
    for case, results in zip(cases, right, strict=True):
        assert worst(results, "loss") < 1e-5, case
        assert worst(results, "epochs") == 20
    assert worst(broken, "loss") > 1e-3


ATTENTION = ("att_src", "att_dst")


def coarse_error(results: list[dict[str, Any]]) -> tuple[float, float]:
    """Give the largest relative error of a gradient but for those of attention vectors, and of attention vectors.

    A GAT layer's vectors see each edge's part of the gradient less the mean over its row, since a softmax's derivative
    sums up to zero: of terms that add up to 0.019 in absolute value there remains a gradient of 0.0003 (`community`),
    or of 0.0001 (the reading vertex's vector, which would be 0 but for the kink of the leaky relu). What rounding does
    to the terms does not cancel. Their scale is therefore the gradient of the weight that makes the same layer's rows,
    0.016: the sum of the same terms without the mean taken off.
    """
    errors = {name: pair for result in results for name, pair in result["errors"].items()}
    plain, attention = 0.0, 0.0
    for name, (error, size) in errors.items():
        layer, _, last = name.rpartition(".")
        if last in ATTENTION:
            attention = max(attention, error / errors[f"{layer}.lin.weight"][1])
        else:
            plain = max(plain, error / size)
    return plain, attention


def test_bytes_are_those_of_the_formula(tmp_path: Path, ranks: ModuleType) -> None:
    """The rounding of a wire format reaches every parameter's gradient, and no more of it than the format allows; what
    is read with a scale that is wrong by 2 is the negative control."""
    models = {"community": ("gcn", "gcnii", "pyg"), "mutual": ("gcn", "gcnii")}
    options = dict(MODELS)
    cases = [
        {"run": "gradients", "layout": {**layout, "wire": wire}, "model": model, "options": options[model]}
        | {"graph": graph, "one_class": True}
        for layout in EXACT[4]
        for wire in ("float32", "bfloat16", "int8")
        for graph, names in models.items()
        for model in names
    ]
    wrong = [{**case, "break": "wire"} for case in cases if case["model"] == "pyg" and case["layout"]["wire"] == "int8"]
    results = ranks.run_forks(4, [*cases, *wrong], tmp_path)
    # of most parameters, and of attention vectors
    bounds = {"float32": (1e-10, 1e-10), "bfloat16": (0.02, 0.002), "int8": (0.05, 0.02)}
    for case, result in zip(cases, results, strict=False):
        assert result[0]["bytes"] == result[0]["formula"], case
        assert sum(result[0]["bytes"].values()) > 0
        wire = case["layout"]["wire"]
        plain, attention = coarse_error(result)
        assert plain < bounds[wire][0], case
        assert attention < bounds[wire][1], case
        assert wire == "float32" or plain > 1e-6, case
        assert wire == "float32" or case["model"] != "pyg" or attention > 1e-6, case
        assert wire != "float32" or worst(result, "gradient") < 1e-10, case
    for case, result in zip(wrong, results[len(cases) :], strict=True):
        plain, attention = coarse_error(result)
        assert plain > bounds["int8"][0], case
        assert attention > bounds["int8"][1], case


@pytest.mark.parametrize("world", [2, 4])
def test_columns_and_recomputation_equal_one_process(world: int, tmp_path: Path, ranks: ModuleType) -> None:
    """Rows redistributed by columns where the model sums up what it reads, and layers computed again, each with the
    bytes of the formula; a spoilt exchange is the negative control."""
    layouts: list[dict[str, Any]] = {2: [{"vertex": 2}, {"layer": 2}], 4: [{"vertex": 2, "layer": 2}]}[world]
    forms: list[dict[str, Any]] = [
        {"spatial": "redistribute"},
        {"recompute": True},
        {"spatial": "redistribute", "recompute": True},
    ]
    cases = [
        {"run": "gradients", "layout": {**layout, **form}, "model": model, "options": options, "graph": graph}
        for layout in layouts
        for form in forms
        if "vertex" in layout or "spatial" not in form
        for graph in GRAPHS[:2]
        for model, options in (*MODELS, *NORMS)
        if "spatial" not in form or model in COLLECTS
    ]
    wrong = [{**case, "break": "swap"} for case in cases if "vertex" in case["layout"]][:: len(COLLECTS)]
    results = ranks.run_forks(world, [*cases, *wrong], tmp_path)
    for case, result in zip(cases, results, strict=False):
        assert exact(case, result)
        columns = case["layout"].get("spatial") == "redistribute"
        assert set(result[0]["across"]) - {"none"} == (
            ({"redistribute"} if columns else {"halo"}) if "vertex" in case["layout"] else set()
        ), case
        for what in ("again", "planned again"):
            assert (worst(result, what) > 0) == ("recompute" in case["layout"]), (what, case)
    for case, result in zip(wrong, results[len(cases) :], strict=True):
        assert worst(result, "gradient") > 1e-5, case


def test_columns_need_layers_that_sum_up(tmp_path: Path, ranks: ModuleType) -> None:
    case = {"run": "gradients", "layout": {"vertex": 2, "spatial": "redistribute"}, "model": "gat", "options": {}}
    with pytest.raises(AssertionError, match="layer 0 of the model cannot use it: it does more with its"):
        ranks.run_forks(2, [case], tmp_path)


def test_a_wrong_halo_is_seen(tmp_path: Path, ranks: ModuleType) -> None:
    case = {"run": "gradients", "layout": {"vertex": 2}, "model": "gcn", "options": MODELS[0][1], "break": "halo"}
    for results in ranks.run_forks(2, [{**case, "graph": graph} for graph in GRAPHS[:2]], tmp_path):
        assert worst(results, "gradient") > 1e-3


def test_a_wrong_edge_feature_is_seen(tmp_path: Path, ranks: ModuleType) -> None:
    cases = [
        {"run": "gradients", "layout": {"vertex": 2}, "model": model, "options": options, "break": "edge"}
        for model, options in MODELS[-3:]
    ]
    for results in ranks.run_forks(2, cases, tmp_path):
        assert worst(results, "gradient") > 1e-4


@pytest.mark.parametrize("world", [1, 2, pytest.param(3, marks=pytest.mark.slow), 4])
def test_the_stale_pipeline_is_its_definition(world: int, tmp_path: Path, ranks: ModuleType) -> None:
    cases = [
        {"run": "stale", "layout": {**layout, "history": history}, "model": model, "options": options}
        for layout in STALE[world]
        for model, options in (*MODELS, *NORMS)
        for history in (recipe(), recipe(scale=2.0, period=3), recipe(scale=2.0, blend=0.8))
    ]
    both = [case for case in cases if "vertex" in case["layout"] and case["model"] in ("gcn", "gcnii")]
    cases += [{**case, "graph": "mutual"} for case in both]
    wrong = {**cases[0], "break": "order"}
    *right, broken = ranks.run_forks(world, [*cases, wrong], tmp_path)
    for case, results in zip(cases, right, strict=True):
        assert worst(results, "gradient") < 1e-10, case
        assert worst(results, "loss") < 1e-12, case
        assert worst(results, "running") < 1e-10, case
        assert worst(results, "stale epochs") == 3
    assert worst(broken, "gradient") > 1e-3
