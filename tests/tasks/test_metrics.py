from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from trisect.tasks import metrics


def sample(seed: int, count: int, levels: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores with many ties, labels with both classes, rows."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    labels[:2] = [0, 1]
    scores = (rng.integers(0, levels, count) + labels * rng.integers(0, 2, count)) / levels
    return torch.tensor(scores), torch.tensor(labels), torch.tensor(rng.integers(0, max(1, count // 6), count))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(2, 60), st.sampled_from([1, 2, 5, 1000]))
def test_curves_equal_sklearn_with_ties(seed: int, count: int, levels: int) -> None:
    scores, labels, _ = sample(seed, count, levels)
    assert metrics.roc_auc(scores, labels) == pytest.approx(reference.roc_auc_score(labels, scores), abs=1e-12)
    assert metrics.average_precision(scores, labels) == pytest.approx(
        reference.average_precision_score(labels, scores), abs=1e-12
    )


def test_the_comparison_notices_a_wrong_score() -> None:
    scores, labels, _ = sample(0, 40, 1000)
    wrong = scores.clone()
    wrong[labels == 1] -= 0.3
    assert metrics.roc_auc(wrong, labels) != pytest.approx(reference.roc_auc_score(labels, scores), abs=1e-3)
    assert metrics.average_precision(wrong, labels) != pytest.approx(
        reference.average_precision_score(labels, scores), abs=1e-3
    )


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(2, 5))
def test_f1_and_accuracy_equal_sklearn(seed: int, count: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    labels, predicted = rng.integers(0, classes, count), rng.integers(0, classes, count)
    counts = metrics.confusion(torch.tensor(predicted), torch.tensor(labels), classes)
    assert counts.tolist() == reference.confusion_matrix(labels, predicted, labels=range(classes)).tolist()
    assert metrics.accuracy_of(counts) == pytest.approx(reference.accuracy_score(labels, predicted))
    for average in ("micro", "macro"):
        assert metrics.f1(counts, average) == pytest.approx(reference.f1_score(labels, predicted, average=average))
    expected = reference.f1_score(labels, predicted, average=None, labels=range(classes), zero_division=0)
    assert metrics.f1_per_class(counts).tolist() == pytest.approx(expected.tolist())


def row_mrr(scores: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> float:
    """The adjacency-matrix definition, written out (no ties in its input)."""
    means = []
    for row in np.unique(rows):
        here = rows == row
        if labels[here].any():
            order = np.flip(scores[here].argsort())
            places = np.arange(1, here.sum() + 1)[labels[here][order] == 1]
            means.append((1 / places).sum() / len(places))
    return float(np.mean(means))


def test_mrr_equals_the_matrix_definition() -> None:
    for seed in range(10):
        _, labels, rows = sample(seed, 80, 3)
        scores = torch.tensor(np.random.default_rng(seed).permutation(80) / 80)
        expected = row_mrr(scores.numpy(), labels.numpy(), rows.numpy())
        assert metrics.mean_reciprocal_rank(scores, labels, rows) == pytest.approx(expected, abs=1e-12)
        assert metrics.mean_reciprocal_rank(-scores, labels, rows) != pytest.approx(expected, abs=1e-6)


def test_mrr_does_not_depend_on_the_order_of_pairs() -> None:
    scores, labels, rows = sample(3, 60, 3)
    shuffle = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    for measure in (metrics.mean_reciprocal_rank, metrics.pair_reciprocal_rank):
        assert measure(scores, labels, rows) == pytest.approx(
            measure(scores[shuffle], labels[shuffle], rows[shuffle]), abs=1e-12
        )


def test_ties_share_their_mean_rank() -> None:
    inverse = metrics.reciprocal_ranks(torch.tensor([1.0, 1.0, 0.0, 5.0]), torch.tensor([0, 0, 0, 1]))
    assert inverse.tolist() == pytest.approx([1 / 1.5, 1 / 1.5, 1 / 3, 1.0])


def test_pair_mrr_ignores_other_positives() -> None:
    scores, labels = torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.tensor([1, 1, 0, 1])
    assert metrics.pair_reciprocal_rank(scores, labels, torch.zeros(4, dtype=torch.int64)) == pytest.approx(
        (1 + 1 + 1 / 2) / 3
    )


def test_one_class_alone_has_no_curve() -> None:
    scores, ones, rows = torch.rand(4), torch.ones(4), torch.zeros(4, dtype=torch.int64)
    assert np.isnan(metrics.roc_auc(scores, ones))
    assert np.isnan(metrics.average_precision(scores, 0 * ones))
    assert np.isnan(metrics.mean_reciprocal_rank(scores, 0 * ones, rows))


def test_the_last_bit_breaks_no_tie() -> None:
    scores = torch.full((40,), 0.7)
    labels = torch.arange(40) % 2
    rows = torch.arange(40) // 8
    last_bit = torch.nextafter(scores, torch.tensor(torch.inf))
    noisy = torch.where(labels == 1, last_bit, scores)
    clear = torch.where(labels == 1, scores * (1 + 1e-4), scores)
    for dtype in (torch.float32, torch.float64):
        assert metrics.roc_auc(noisy.to(dtype), labels) == 0.5
        assert metrics.roc_auc(clear.to(dtype), labels) == 1.0
    for measure in (metrics.mean_reciprocal_rank, metrics.pair_reciprocal_rank):
        assert measure(noisy, labels, rows) == measure(scores, labels, rows)
        assert measure(clear, labels, rows) > measure(scores, labels, rows) + 0.1
    assert metrics.average_precision(noisy, labels) == metrics.average_precision(scores, labels)


def test_rounding_keeps_order_and_what_is_not_finite() -> None:
    scores = torch.tensor([-torch.inf, -3e38, -1.0, -1e-40, -0.0, 0.0, 1e-40, 1.0, 3e38, torch.inf])
    for value in (scores, scores.double()):
        found = metrics.rounded(value)
        assert bool((found.diff() >= 0).all())
        assert torch.equal(found.isfinite(), value.isfinite())
        normal = value[value.isfinite() & (value.abs() > 1e-30)]
        assert torch.allclose(metrics.rounded(normal), normal, rtol=2**-18, atol=0)
    assert bool(metrics.rounded(torch.tensor([torch.nan])).isnan())
    assert torch.equal(metrics.rounded(torch.rand(3).bfloat16()).isnan(), torch.zeros(3, dtype=torch.bool))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mrr", ["rows", "pairs"])
def test_link_measures_are_those_of_sorted_scores(dtype: torch.dtype, mrr: str) -> None:
    """With ties, zeros of both signs, rows without a positive, and no negative at all."""
    one = metrics.mean_reciprocal_rank if mrr == "rows" else metrics.pair_reciprocal_rank
    for trial in range(60):
        generator = torch.Generator().manual_seed(trial)
        pairs = int(torch.randint(2, 300, (1,), generator=generator))
        scores = torch.randn(pairs, generator=generator, dtype=dtype)
        scores = ((scores * 2).round() / 2, scores, scores * 0.0)[trial % 3]
        labels = (torch.rand(pairs, generator=generator) < (0.02, 0.3, 0.9, 1.0)[trial % 4]).long()
        labels[0] = 1
        rows = torch.randint(1 + trial % 17, (pairs,), generator=generator)
        found = metrics.link_measures(scores, labels, rows, mrr)
        wanted = {
            "map": metrics.average_precision(scores, labels),
            "auc": metrics.roc_auc(scores, labels),
            "mrr": one(scores, labels, rows),
        }
        assert found == pytest.approx(wanted, rel=1e-12, nan_ok=True), trial


def test_what_is_no_finite_number_is_none() -> None:
    measures = {"auc": float("nan"), "mse": float("inf"), "loss": -float("inf"), "f1": 0.5, "edges": 7}
    assert metrics.defined(measures) == {"auc": None, "mse": None, "loss": None, "f1": 0.5, "edges": 7}
