from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from torch.nn import functional

from trisect.tasks import all_pairs, metrics
from trisect.tasks.all_pairs import rank_all_pairs
from trisect.tasks.pairs import Pairs


def case(vertices: int = 23, levels: int = 15) -> tuple[torch.Tensor, Pairs]:
    """Scores with many ties, some of them between pairs that exist and others."""
    generator = torch.Generator().manual_seed(vertices)
    scores = torch.randint(0, levels, (vertices, vertices), generator=generator).float() / 4 - 1
    src, dst = torch.randint(0, vertices, (2, 40), generator=generator)
    return scores, Pairs.of(src, dst, vertices)


@pytest.mark.parametrize("block", [1, 50, 1 << 18])
@pytest.mark.parametrize("kept", [0, 1 << 27])
@pytest.mark.parametrize("mrr", ["rows", "pairs"])
def test_measures_equal_those_of_the_whole_matrix(
    monkeypatch: pytest.MonkeyPatch, block: int, kept: int, mrr: Literal["rows", "pairs"]
) -> None:
    monkeypatch.setattr(all_pairs, "_BLOCK", block)
    monkeypatch.setattr(all_pairs, "_KEPT", kept)
    scores, pairs = case()
    found = rank_all_pairs(lambda sources: scores[sources], 23, pairs, mrr, (2.0, 0.5))
    truth = torch.zeros(23, 23, dtype=torch.int64)
    truth[pairs.src, pairs.dst] = 1
    flat, labels = scores.reshape(-1), truth.reshape(-1)
    assert found["map"] == pytest.approx(reference.average_precision_score(labels, flat))
    assert found["auc"] == pytest.approx(reference.roc_auc_score(labels, flat))
    rows = torch.arange(23).repeat_interleave(23)
    rank = metrics.mean_reciprocal_rank if mrr == "rows" else metrics.pair_reciprocal_rank
    assert found["mrr"] == pytest.approx(rank(flat, labels, rows))
    weight = torch.where(labels == 1, 2.0, 0.5)
    loss = functional.binary_cross_entropy_with_logits(flat, labels.float(), weight, reduction="sum")
    assert found["loss"] == pytest.approx(float(loss), rel=1e-5)
    other = rank_all_pairs(lambda sources: scores.t()[sources], 23, pairs, mrr, (2.0, 0.5))
    assert all(abs(other[name] - found[name]) > 1e-6 for name in ("map", "auc", "mrr", "loss"))


def test_equal_scores_gain_nothing() -> None:
    pairs = Pairs.of(torch.tensor([0, 3]), torch.tensor([1, 2]), 10)
    found = rank_all_pairs(lambda sources: torch.zeros(10, 10)[sources], 10, pairs, "rows", (1.0, 1.0))
    assert found["auc"] == pytest.approx(0.5)
    assert found["map"] == pytest.approx(2 / 100)
    assert found["mrr"] == pytest.approx(1 / 5.5)
    assert np.isfinite(found["loss"])


@pytest.mark.parametrize("mrr", ["rows", "pairs"])
def test_the_last_bit_breaks_no_tie(mrr: Literal["rows", "pairs"]) -> None:
    scores, pairs = case()
    noisy = scores.clone()
    noisy[pairs.src, pairs.dst] = torch.nextafter(scores, torch.tensor(torch.inf))[pairs.src, pairs.dst]
    clear = scores.clone()
    clear[pairs.src, pairs.dst] += 1e-3
    plain, same, other = (
        rank_all_pairs(lambda sources, s=s: s[sources], 23, pairs, mrr, (1.0, 1.0)) for s in (scores, noisy, clear)
    )
    assert all(same[name] == plain[name] for name in ("map", "auc", "mrr"))
    assert all(other[name] > plain[name] for name in ("map", "auc", "mrr"))
