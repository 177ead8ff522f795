"""Simple rules against a plain count over the events, sampled and over all pairs; shares add up to the whole."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from trisect.graph.timeline.timeline import Timeline
from trisect.tasks import SPLITS, BoundTask, TaskContext, make_task
from trisect.tasks.metrics import average_precision, mean_reciprocal_rank, roc_auc
from trisect.tasks.simple_rules import RULES, SimpleRules

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


@pytest.mark.parametrize("rule", RULES)
def test_scores_are_those_of_a_plain_count(links: Timeline, rule: str) -> None:
    task = bound(links)
    rules = SimpleRules(task._events, STEPS, VERTICES, window=2)  # type: ignore[attr-defined]
    src, dst = (torch.tensor(ends) for ends in zip(*product(range(VERTICES), repeat=2), strict=True))
    matrices = []
    for step in (3, 4, 7):
        wanted = [expected(links, rule, step, 2, pair) for pair in product(range(VERTICES), repeat=2)]
        scores = rules.at(step)[rule]
        assert scores.of(src, dst).tolist() == wanted
        blocks = torch.cat([scores.block(slice(0, 5)), scores.block(slice(5, VERTICES))])
        assert blocks.flatten().tolist() == wanted
        matrices.append(wanted)
    assert matrices[0] != matrices[1] != matrices[2]


def test_measures_are_those_of_the_scores(links: Timeline) -> None:
    task = bound(links, eval_negatives="all", average="steps")
    measured = task.simple_rules()
    for split, rule in product(("val", "test"), RULES):
        by_step = []
        for step in task.steps(split):
            existing = set(pairs_of(links, step + 1))
            everything = list(product(range(VERTICES), repeat=2))
            scores = torch.tensor([expected(links, rule, step, 2, pair) for pair in everything])
            labels = torch.tensor([int(pair in existing) for pair in everything])
            rows = torch.tensor([pair[0] for pair in everything])
            by_step.append(
                (average_precision(scores, labels), mean_reciprocal_rank(scores, labels, rows), roc_auc(scores, labels))
            )
        metrics = task.rule_metrics(measured[split][rule])
        assert list(metrics) == ["map", "mrr", "auc"]
        wanted = torch.tensor(by_step, dtype=torch.float64).mean(0).tolist()
        assert list(metrics.values()) == pytest.approx(wanted, rel=1e-12)
    assert task.rule_metrics(measured["test"]["recency"]) != task.rule_metrics(measured["test"]["edgebank"])


@pytest.mark.parametrize("negatives", [3, "all"])
def test_shares_add_up_to_the_whole(links: Timeline, negatives: object) -> None:
    task = bound(links, eval_negatives=negatives)
    whole, shares = task.simple_rules(), [task.simple_rules(first, 3) for first in range(3)]
    for split, rule in product(("val", "test"), RULES):
        merged = shares[0][split][rule].merge(shares[1][split][rule]).merge(shares[2][split][rule])
        assert task.rule_metrics(merged) == task.rule_metrics(whole[split][rule])
    assert task.rule_metrics(shares[0]["test"]["recency"]) != task.rule_metrics(whole["test"]["recency"])


def test_other_tasks_have_no_rules(timeline: Timeline) -> None:
    task = make_task("edge-classification").bind(timeline, TaskContext())
    assert task.simple_rules() == {}
    assert set(SPLITS) == {"train", "val", "test"}
