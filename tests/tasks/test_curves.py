"""Counts of scores add up, and curves drawn from them are those of scikit-learn to a few thousandths."""

from __future__ import annotations

import json

import pytest
import torch

from trisect.tasks import Statistics
from trisect.tasks.curves import count_classes, count_pairs, summarise

metrics = pytest.importorskip("sklearn.metrics")


def drawn(classes: int, rows: int = 3000, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (rows,), generator=generator)
    logits = torch.randn(rows, classes, generator=generator) * 1.5
    logits[torch.arange(rows), labels] += 1.0
    return logits, labels


@pytest.mark.parametrize("classes", [2, 5])
def test_curves_are_those_of_scikit_learn(classes: int):
    logits, labels = drawn(classes)
    picture = summarise(count_classes(logits, labels))
    assert picture is not None
    probability = torch.softmax(logits.double(), 1)
    assert [curve["class"] for curve in picture["curves"]] == ([1] if classes == 2 else list(range(classes)))
    for curve in picture["curves"]:
        own, scores = labels == curve["class"], probability[:, curve["class"]]
        assert curve["auc"] == pytest.approx(metrics.roc_auc_score(own, scores), abs=1e-3)
        assert curve["average_precision"] == pytest.approx(metrics.average_precision_score(own, scores), abs=3e-3)
        assert len(curve["points"]) <= 161
        for threshold, hits, misses in curve["points"]:
            above = scores >= threshold - 1e-5
            assert int((above & own).sum()) == pytest.approx(hits, abs=2)
            assert int((above & ~own).sum()) == pytest.approx(misses, abs=2)
        assert curve["points"][-1][1:] == [curve["positives"], curve["negatives"]]
    assert picture["confusion"] == metrics.confusion_matrix(labels, logits.argmax(1)).tolist()
    assert picture["rows"] == 3000


def test_calibration_is_right_where_labels_are_drawn_from_the_probabilities():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(200_000, 2, generator=generator)
    labels = torch.bernoulli(torch.softmax(logits, 1)[:, 1], generator=generator).long()
    fair, sure = (summarise(count_classes(scale * logits, labels)) for scale in (1.0, 4.0))
    assert fair is not None
    assert sure is not None
    assert fair["calibration"]["error"] < 0.01
    assert sure["calibration"]["error"] > 0.1  # the same ranking, said with too much certainty
    assert sum(rows for _, _, rows in fair["calibration"]["bins"]) == 200_000


def test_parts_add_up_to_the_whole():
    logits, labels = drawn(3)
    parts = Statistics()
    for rows in torch.arange(3000).split(700):
        parts = parts.merge(count_classes(logits[rows], labels[rows]))
    assert summarise(parts) == summarise(count_classes(logits, labels))
    other = count_classes(logits[:2999], labels[:2999])
    assert summarise(other) != summarise(parts)


def test_links_are_corrected_for_how_many_were_sampled():
    generator = torch.Generator().manual_seed(2)
    # what a perfect decoder learns from one sampled pair a link, asked with twenty
    labels = (torch.rand(100_000, generator=generator) < 1 / 21).long()
    scores = torch.randn(100_000, generator=generator) * 1.5 + torch.where(labels == 1, 1.125, -1.125)
    right, wrong = (summarise(count_pairs(scores, labels, ratio)) for ratio in (1.0, 20.0))
    assert right is not None
    assert wrong is not None
    assert right["calibration"]["error"] < 0.02
    assert wrong["calibration"]["error"] > 0.1
    assert right["curves"][0]["auc"] == pytest.approx(metrics.roc_auc_score(labels, scores), abs=2e-3)
    assert right["confusion"] is None


def test_what_there_is_nothing_to_draw_of():
    assert summarise(Statistics()) is None
    logits, labels = drawn(2)
    assert summarise(count_classes(logits[:0], labels[:0])) is None
    one = summarise(count_classes(logits, torch.ones_like(labels)))
    assert one is not None
    assert one["curves"] == []
    odd = summarise(count_classes(torch.full((5, 3), torch.nan), labels[:5]))
    assert odd is not None
    json.dumps(odd, allow_nan=False)


@pytest.mark.parametrize("classes", [50, 400])
def test_many_classes_stay_small(classes: int):
    logits, labels = drawn(classes)
    picture = summarise(count_classes(logits, labels))
    assert picture is not None
    assert picture["curves"] == []
    assert (picture["confusion"] is None) == (classes > 100)
    assert picture["calibration"]["of"] == "predicted class"
    assert len(json.dumps(picture)) < 40_000
