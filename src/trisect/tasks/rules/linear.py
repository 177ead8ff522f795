"""Small linear models that are fitted in a moment: ridge regression, and logistic regression of several classes.

Shapes: x float64 [rows, columns], standardised; weights [columns + 1, outputs], the last row is the intercept.
"""

from __future__ import annotations

import torch
from torch import Tensor

_FREE = 1e-6  # the penalty of the intercept
_STEPS = 200
_CLOSE = 1e-5  # of the largest change of a weight in a step
_CHECKED = 10  # steps between two looks at the loss
_FALLS = 1e-4  # least share by which the loss falls between two looks


def fit_ridge(x: Tensor, y: Tensor) -> Tensor:
    """Minimise the squared error of y, float64 [rows, outputs], in closed form."""
    x, back = _reduced(x)
    factor = torch.linalg.cholesky(x.T @ x + _penalties(x).diag())
    return _expanded(torch.cholesky_solve(x.T @ y, factor), back)


def fit_logistic(x: Tensor, labels: Tensor, weights: Tensor, classes: int) -> Tensor:
    """Minimise the weighted cross entropy of labels, int64 [rows].

    Steps use one bound of all Hessians (Böhning, 1992), factored once, with Nesterov's momentum that restarts where it
    points uphill: there is no line search, and the result does not depend on a random start.

    Args:
        weights: float64 [rows], of each row in the loss.
    """
    x, back = _reduced(x)
    penalties = _penalties(x)[:, None]
    factor = torch.linalg.cholesky(0.5 * (x.T * weights) @ x + penalties[:, 0].diag())
    wanted = torch.nn.functional.one_hot(labels, classes).double()
    current = x.new_zeros(x.shape[1], classes)
    ahead, momentum, latest = current, 1.0, torch.inf
    for number in range(_STEPS):
        logits = x @ ahead
        if number % _CHECKED == 0:
            losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
            loss = float((losses * weights).sum() + 0.5 * (penalties * ahead.square()).sum())
            if latest - loss <= _FALLS * loss:
                break
            latest = loss
        excess = (torch.softmax(logits, 1) - wanted) * weights[:, None]
        step = torch.cholesky_solve(x.T @ excess + penalties * ahead, factor)
        before, current = current, ahead - step
        moved = current - before
        if float(moved.abs().max()) < _CLOSE:
            break
        if float((step * moved).sum()) > 0:
            momentum = 1.0
        grown = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead, momentum = current + (momentum - 1) / grown * moved, grown
    return _expanded(current, back)


def apply(x: Tensor, weights: Tensor) -> Tensor:
    """Compute the outputs of fitted weights, [rows, outputs]."""
    return torch.addmm(weights[-1], x, weights[:-1])


def _penalties(x: Tensor) -> Tensor:
    """Return the weight of each squared weight beside the sum of losses; the last is that of the intercept.

    It is the number of columns, which have variance 1: outputs are then expected to have a variance of about 1.
    """
    penalties = x.new_full((x.shape[1],), float(x.shape[1]))
    penalties[-1] = _FREE
    return penalties


def _reduced(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return x with a column of ones; where it has more columns than rows, in the coordinates of its row space, which
    change no solution, and the matrix that leads back.
    """
    back = None
    if x.shape[1] > x.shape[0]:
        values, vectors = torch.linalg.eigh(x @ x.T)
        kept = values > values[-1].clamp(min=1e-300) * 1e-12
        scale = values[kept].sqrt()
        x, back = vectors[:, kept] * scale, x.T @ (vectors[:, kept] / scale)
    return torch.cat([x, x.new_ones(x.shape[0], 1)], 1), back


def _expanded(weights: Tensor, back: Tensor | None) -> Tensor:
    return weights if back is None else torch.cat([back @ weights[:-1], weights[-1:]])
