"""Rules for links against a plain count over the events, sampled and over all pairs."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from trisect.graph.timeline.timeline import Timeline
from trisect.tasks import BoundTask, TaskContext, make_task
from trisect.tasks.metrics import average_precision, mean_reciprocal_rank, pair_reciprocal_rank, roc_auc
from trisect.tasks.rules.links import RULES

VERTICES, STEPS = 12, 9


@pytest.fixture(params=[False, True], ids=["directed", "undirected"])
def links(request: pytest.FixtureRequest) -> Timeline:
    generator = torch.Generator().manual_seed(5)
    sizes = torch.tensor([7, 9, 0, 8, 6, 9, 5, 8, 7])
    ends = torch.randint(0, VERTICES, (2, int(sizes.sum())), generator=generator)
    step = torch.arange(STEPS).repeat_interleave(sizes)
    # half of the contacts recur, so that the rules have something to find
    again = torch.rand(ends.shape[1], generator=generator) < 0.5
    again[:7] = False
    ends[:, again] = ends[:, torch.nonzero(again)[:, 0] - 7]
    offsets = torch.bincount(step, minlength=STEPS).cumsum(0)
    return Timeline.from_arrays(
        ends[0],
        ends[1],
        torch.cat([torch.zeros(1, dtype=torch.int64), offsets]),
        vertices=VERTICES,
        undirected=request.param,
    )


def pairs_of(timeline: Timeline, step: int) -> list[tuple[int, int]]:
    pairs = list(zip(*(ends.tolist() for ends in timeline.events(step)), strict=True))
    return pairs + [(b, a) for a, b in pairs] if timeline.undirected else pairs


def expected(timeline: Timeline, rule: str, step: int, window: int, pair: tuple[int, int]) -> float:
    past = [(when, one) for when in range(step + 1) for one in pairs_of(timeline, when)]
    linked = [when for when, one in past if one == pair]
    if rule == "popularity":
        return float(sum(one[0] == pair[0] for _, one in past) * sum(one[1] == pair[1] for _, one in past))
    if rule == "recency":
        return float(linked[-1] + 1) if linked else 0.0
    if rule == "edgebank_window":
        return float(any(when > step - window for when in linked))
    return float(bool(linked))


def bound(timeline: Timeline, **options: object) -> BoundTask:
    return make_task({"name": "link-prediction", "split": [4, 2, 2], **options}).bind(timeline, TaskContext())


@pytest.mark.parametrize("mrr", ["rows", "pairs"])
@pytest.mark.parametrize("negatives", [3, "all"])
def test_measures_are_those_of_a_plain_count(links: Timeline, negatives: object, mrr: str) -> None:
    task = bound(links, eval_negatives=negatives, average="steps", mrr=mrr)
    measured = task.simple_rules(links).statistics
    rank = mean_reciprocal_rank if mrr == "rows" else pair_reciprocal_rank
    for split, rule in product(("val", "test"), RULES):
        by_step = []
        for step in task.steps(split):
            existing = set(pairs_of(links, step + 1))
            asked = list(product(range(VERTICES), repeat=2))
            if negatives != "all":
                src, dst, _ = task._asked(step)  # type: ignore[attr-defined]
                asked = list(zip(src.tolist(), dst.tolist(), strict=True))
            scores = torch.tensor([expected(links, rule, step, 2, pair) for pair in asked])
            labels = torch.tensor([int(pair in existing) for pair in asked])
            rows = torch.tensor([pair[0] for pair in asked])
            by_step.append((average_precision(scores, labels), rank(scores, labels, rows), roc_auc(scores, labels)))
        metrics = task.rule_metrics(measured[split][rule])
        assert list(metrics) == ["map", "mrr", "auc"]
        wanted = torch.tensor(by_step, dtype=torch.float64).mean(0).tolist()
        assert list(metrics.values()) == pytest.approx(wanted, rel=1e-12)
    assert task.rule_metrics(measured["test"]["recency"]) != task.rule_metrics(measured["test"]["edgebank"])
    assert task.rule_metrics(measured["test"]["edgebank"]) != task.rule_metrics(measured["test"]["edgebank_window"])


@pytest.mark.parametrize("negatives", [3, "all"])
def test_rules_do_not_depend_on_the_order_of_vertices(links: Timeline, negatives: object) -> None:
    task = bound(links, eval_negatives=negatives)
    order = torch.randperm(VERTICES, generator=torch.Generator().manual_seed(1))
    turned = links.reordered(order)
    other = make_task({"name": "link-prediction", "split": [4, 2, 2], "eval_negatives": negatives}).bind(
        turned, TaskContext(0, turned.order)
    )
    for split, rule in product(("val", "test"), RULES):
        mine, theirs = (t.simple_rules(d).statistics[split][rule] for t, d in ((task, links), (other, turned)))
        assert task.rule_metrics(mine) == pytest.approx(other.rule_metrics(theirs), rel=1e-12)
    assert "loss" not in task.rule_metrics(task.simple_rules(links).statistics["test"]["recency"])
