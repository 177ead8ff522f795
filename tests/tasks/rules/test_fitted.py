"""Rules for vertices and events: what each can see, the inputs against dense sums, and bounded work that is said."""

from __future__ import annotations

import pytest
import torch

from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.tasks import MeasuredRules, TaskContext, make_task
from trisect.tasks.rules import fitted, inputs

VERTICES, STEPS, EVENTS = 60, 8, 90
ALL = torch.arange(VERTICES)


def measures(data: Graph | Timeline, **task: object) -> dict[str, dict[str, float]]:
    bound = make_task(task).bind(data, TaskContext())
    measured = bound.simple_rules(data).statistics
    return {name: bound.rule_metrics(own) for name, own in measured["test"].items()}


def events(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    src, dst = torch.randint(0, VERTICES, (2, STEPS * EVENTS), generator=generator)
    dst = torch.where(torch.rand(dst.shape, generator=generator) < 0.5, dst // 2, dst)  # some receive more
    return src, dst, torch.arange(STEPS + 1) * EVENTS


def payments(**more: object) -> Timeline:
    src, dst, offsets = events()
    received = torch.bincount(dst, minlength=VERTICES)
    x = torch.randn(VERTICES, 3, generator=torch.Generator().manual_seed(1))
    return Timeline.from_arrays(src, dst, offsets, vertices=VERTICES, x=x, y=(received > 12).long(), **more)


def test_counting_payments_finds_who_receives_many() -> None:
    found = measures(payments(), name="node-classification", split=(0.5, 0.2, 0.3))
    assert list(found) == ["majority", "logistic", "logistic_neighbours"]
    assert found["majority"]["auc"] == 0.5
    assert found["logistic_neighbours"]["auc"] > 0.95 > found["logistic"]["auc"]
    assert found["logistic_neighbours"]["loss"] < found["majority"]["loss"]


def test_features_of_neighbours_are_read_on_a_graph() -> None:
    generator = torch.Generator().manual_seed(3)
    src, dst = torch.randint(0, VERTICES, (2, 400), generator=generator)
    x = torch.randn(VERTICES, 4, generator=generator)
    sums = torch.zeros(VERTICES, 4).index_add_(0, dst, x[src])
    graph = Graph.from_edges(src, dst, vertices=VERTICES, x=x, y=(sums[:, 0] > 0).long())
    found = measures(graph, name="node-classification", split=(0.5, 0.2, 0.3))
    assert found["logistic_neighbours"]["auc"] > 0.9 > found["logistic"]["auc"]
    numbers = Graph.from_edges(src, dst, vertices=VERTICES, x=x, y=2 * x[:, 0] + 5)
    errors = measures(numbers, name="node-regression", split=(0.5, 0.2, 0.3))
    assert list(errors) == ["mean", "ridge", "ridge_neighbours"]
    assert errors["ridge"]["mse"] < 0.2 * errors["mean"]["mse"]
    assert errors["ridge"]["loss"] == errors["ridge"]["mse"]


def walk(horizon: int, kind: str) -> tuple[Timeline, torch.Tensor]:
    src, dst, offsets = events()
    y = torch.randn(STEPS, VERTICES, generator=torch.Generator().manual_seed(4)).cumsum(0)
    y = y if kind == "node-regression" else (y > 0).long()
    return Timeline.from_arrays(src, dst, offsets, vertices=VERTICES, y=y), y


@pytest.mark.parametrize("kind", ["node-regression", "node-classification"])
@pytest.mark.parametrize("horizon", [0, 1, 2])
def test_the_last_value_is_the_one_before_what_is_asked_for(kind: str, horizon: int) -> None:
    timeline, y = walk(horizon, kind)
    found = measures(timeline, name=kind, horizon=horizon, split=(3, 1, 2))["last_value"]
    steps = range(4, 6)
    pairs = [(y[step + horizon], y[min(step, step + horizon - 1)]) for step in steps]
    asked, last = (torch.stack(values).double() for values in zip(*pairs, strict=True))
    if kind == "node-regression":
        assert found["mse"] == pytest.approx(float((asked - last).square().mean()))
    else:
        assert found["accuracy"] == pytest.approx(float((asked == last).double().mean()))


def test_a_last_value_that_is_missing_is_looked_for_further_back() -> None:
    timeline, y = walk(1, "node-regression")
    y[4, :30] = torch.nan
    y[:, 7] = torch.nan
    y[5, 7] = 1.0
    bound = make_task({"name": "node-regression", "split": (3, 1, 2)}).bind(timeline, TaskContext())
    case = bound.targets.case("test", 4)  # type: ignore[attr-defined]
    vertices, last = case.ends[0], case.last[:, 0]
    wanted = torch.where(y[4].isnan(), y[3], y[4])[vertices]
    assert 7 in vertices
    assert torch.equal(last[vertices != 7], wanted[vertices != 7])
    assert bool(last[vertices == 7].isnan().all())
    # targets that are split by vertex are not known of the vertices that are asked for
    masks = {name: k == ALL % 3 for k, name in enumerate(("train", "val", "test"))}
    split = Timeline.from_arrays(*events(), vertices=VERTICES, y=y, splits=masks)
    assert "last_value" not in measures(split, name="node-regression")


def test_events_have_rules_that_read_both_ends() -> None:
    src, dst, offsets = events()
    x = torch.randn(VERTICES, 2, generator=torch.Generator().manual_seed(5))
    kinds = (x[src, 0] + x[dst, 1] > 0).long()
    timeline = Timeline.from_arrays(src, dst, offsets, vertices=VERTICES, x=x, edge_y=kinds)
    found = measures(timeline, name="edge-classification", split=(4, 2, 2))
    assert list(found) == ["majority", "logistic", "logistic_neighbours"]
    assert found["logistic"]["auc"] > 0.95


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("block", [1 << 21, 16])
def test_inputs_of_a_timeline_are_sums_over_its_events(
    undirected: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "_BLOCK", block)
    src, dst, offsets = events()
    weight = torch.rand(src.numel(), generator=torch.Generator().manual_seed(6)) + 0.5
    x = torch.randn(STEPS, VERTICES, 3, generator=torch.Generator().manual_seed(7))
    timeline = Timeline.from_arrays(
        src, dst, offsets, vertices=VERTICES, x=x, weight=weight, undirected=undirected, y=torch.zeros(VERTICES)
    )
    step = torch.arange(STEPS).repeat_interleave(EVENTS)
    if undirected:
        src, dst, weight, step = torch.cat([src, dst]), torch.cat([dst, src]), weight.repeat(2), step.repeat(2)
    for now, own in inputs.walk_inputs(timeline, [2, 5], columns=8):
        assert torch.equal(own.own(ALL), x[now])
        around = own.around(ALL)
        past = step <= now
        for column, (ends, values, chosen) in enumerate(
            (e, v, c) for c in (step == now, past) for v in (torch.ones_like(weight), weight) for e in (dst, src)
        ):
            sums = torch.zeros(VERTICES).index_add_(0, ends[chosen], values[chosen])
            assert torch.allclose(around[:, column], torch.log1p(sums), atol=1e-5)
        received = torch.bincount(dst[past], minlength=VERTICES).clamp(min=1)
        for feature in range(3):
            sums = torch.zeros(VERTICES).index_add_(0, dst[past], x[step[past], src[past], feature])
            assert torch.allclose(around[:, 8 + feature], sums / received, atol=1e-5)


@pytest.mark.parametrize("block", [1 << 21, 16])
def test_inputs_of_a_graph_are_means_over_its_matrix(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "_BLOCK", block)
    generator = torch.Generator().manual_seed(8)
    src, dst = torch.randint(0, VERTICES - 1, (2, 300), generator=generator)
    x = torch.randn(VERTICES, 3, generator=generator)
    graph = Graph.from_edges(src, dst, vertices=VERTICES, x=x)
    ((_, own),) = inputs.walk_inputs(graph, [0], columns=8)
    matrix = (graph.adjacency.dense() != 0).float()
    into, out = matrix.sum(1), matrix.sum(0)
    described = torch.cat([x, torch.log1p(torch.stack([into, out], 1))], 1)
    rows = torch.tensor([59, 3, 3, 17])
    wanted = torch.cat([described[:, 3:], matrix @ described / into.clamp(min=1)[:, None]], 1)
    assert torch.allclose(own.around(rows), wanted[rows], atol=1e-5)


def rules_of(data: Graph | Timeline, **task: object) -> MeasuredRules:
    return make_task(task).bind(data, TaskContext()).simple_rules(data)


def test_bounded_work_is_said_and_changes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph.generate("community", vertices=600, degree=6, signal=3.0, features=40, per_class=40)
    whole = rules_of(graph, name="node-classification")
    assert whole.notes == ()
    for name, value in (("_COLUMNS", 30), ("_ROWS", 200), ("_JUDGED_ROWS", 100)):
        monkeypatch.setattr(fitted, name, value)
    some = rules_of(graph, name="node-classification")
    assert some.notes[0] == "40 features folded into 30"
    assert "fitted to 200 of" in some.notes[1]
    assert "judged on 100 of" in some.notes[-1]
    bound = make_task("node-classification").bind(graph, TaskContext())
    few, many = (bound.rule_metrics(own.statistics["test"]["logistic"])["accuracy"] for own in (some, whole))
    assert 0.3 < few != many


def test_wide_rows_are_fitted_and_judged_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph.generate("community", vertices=300, degree=6, signal=3.0, features=200, per_class=5)
    sizes: list[int] = []
    read, whole = fitted._read_inputs, rules_of(graph, name="node-classification")

    def counted(*arguments: object) -> torch.Tensor:
        x = read(*arguments)  # type: ignore[arg-type]
        sizes.append(x.numel())
        return x

    monkeypatch.setattr(fitted, "_read_inputs", counted)
    monkeypatch.setattr(fitted, "_NUMBERS", 8000)
    some = rules_of(graph, name="node-classification")
    assert len(sizes) > 2
    assert max(sizes) <= 8000
    assert "200 features folded into" in some.notes[0]
    bound = make_task("node-classification").bind(graph, TaskContext())
    for split, rules in some.statistics.items():
        counts = [bound.rule_metrics(own[split]["majority"]) for own in (some.statistics, whole.statistics)]
        assert counts[0] == pytest.approx(counts[1])
        assert rules.keys() == whole.statistics[split].keys()


def test_the_majority_is_the_most_frequent_class_whatever_its_weight() -> None:
    y = (ALL % 5 == 0).long()
    graph = Graph.from_edges(ALL, ALL.flip(0), vertices=VERTICES, y=y)
    found = measures(graph, name="node-classification", split=(0.5, 0.2, 0.3), class_weights=(1.0, 100.0))
    other = measures(graph, name="node-classification", split=(0.5, 0.2, 0.3))
    assert found["majority"]["accuracy"] == other["majority"]["accuracy"] > 0.5


def test_features_that_are_no_numbers_break_nothing() -> None:
    data = payments()
    assert data.x is not None
    data.x[3] = torch.nan
    data.x[:, 2] = 7.0
    found = measures(data, name="node-classification", split=(0.5, 0.2, 0.3))
    assert all(torch.tensor(list(own.values())).isfinite().all() for own in found.values())
