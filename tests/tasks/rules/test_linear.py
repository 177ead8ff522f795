"""The small linear models against scikit-learn's."""

from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor

from trisect.tasks.rules.linear import apply, fit_logistic, fit_ridge


def standardised(rows: int, columns: int) -> Tensor:
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return (x - x.mean(0)) / x.std(0, correction=0)


@pytest.mark.parametrize(("rows", "columns"), [(200, 6), (30, 50)])
@pytest.mark.parametrize("classes", [2, 4])
def test_logistic_regression_is_that_of_scikit_learn(rows: int, columns: int, classes: int) -> None:
    x = standardised(rows, columns)
    labels = (x[:, :classes] + 0.5 * standardised(rows, classes)).argmax(1)
    weights = torch.tensor([1.0, 2.0, 0.5, 1.5], dtype=torch.float64)[labels]
    mine = torch.softmax(apply(x, fit_logistic(x, labels, weights, classes)), 1)
    penalty = min(rows, columns + 1)  # of the columns, or of the row space, with the intercept
    other = LogisticRegression(C=1 / penalty, tol=1e-8, max_iter=1000).fit(x, labels, weights)
    theirs = torch.from_numpy(other.predict_proba(x))
    if classes == 2:  # one weight stands for the difference of two
        other = LogisticRegression(C=2 / penalty, tol=1e-8, max_iter=1000).fit(x, labels, weights)
        theirs = torch.from_numpy(other.predict_proba(x))
    assert torch.allclose(mine, theirs, atol=1e-3)
    assert float((mine - 1 / classes).abs().max()) > 0.1


def test_logistic_regression_ends_where_the_loss_no_longer_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    solve = torch.cholesky_solve
    monkeypatch.setattr(torch, "cholesky_solve", lambda *arguments: steps.append(0) or solve(*arguments))
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(2000, 10, generator=generator, dtype=torch.float64)
    labels = (40 * torch.rand(2000, generator=generator) ** 6).long()  # unlike each other in number, and not explained
    fit_logistic(x, labels, torch.ones(2000, dtype=torch.float64), 40)
    assert 0 < len(steps) <= 100  # without a look at the loss, nearly all 200


@pytest.mark.parametrize(("rows", "columns"), [(200, 6), (30, 50)])
def test_ridge_regression_is_that_of_scikit_learn(rows: int, columns: int) -> None:
    x = standardised(rows, columns)
    y = x[:, :2] * 3 + standardised(rows, 2) + 5
    other = Ridge(alpha=min(rows, columns + 1)).fit(x, y)
    assert torch.allclose(apply(x, fit_ridge(x, y)), torch.from_numpy(other.predict(x)), atol=1e-4)
