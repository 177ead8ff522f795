"""A timeline from tables, with attributes that change over time, has the gradients of one process under every cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from trisect import Timeline, fit

pytest.importorskip("pyarrow")


def tables() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Payments, attributes that change (with gaps, and accounts that come late), and labels."""
    rng = np.random.default_rng(5)
    names = np.array([f"a{k}" for k in range(24)])
    ends = rng.integers(0, 24, (2, 220))
    payments = {
        "payer": names[ends[0]],
        "payee": names[ends[1]],
        "day": np.sort(rng.integers(0, 6, 220)),
        "amount": rng.lognormal(0, 1, 220),
        "channel": rng.choice(["web", "card"], 220),
    }
    rows = rng.integers(0, 24, 60)
    balance: list[float | None] = [None if k % 7 == 0 else float(v) for k, v in enumerate(rng.normal(size=60))]
    accounts = {
        "account": names[rows],
        "since": rng.integers(-1, 6, 60),
        "balance": balance,
        "country": rng.choice(["DE", "FR"], 60),
    }
    labels = {"account": names, "fraud": np.arange(24) % 2}
    return payments, accounts, labels


def trained(timeline: Timeline, layout: str, lr: float = 1.0) -> tuple[list[float], dict[str, Tensor]]:
    """The losses, and the parameters after one plain step of gradient descent."""
    sizes: dict[str, Any] = {"spatial": "gine", "temporal": "gru", "layers": 2, "hidden": 4}
    options: dict[str, Any] = {"optimiser": "sgd", "momentum": 0.0, "nesterov": False, "precision": "float64"}
    run = fit(
        "recurrent",
        timeline,
        epochs=1,
        seed=3,
        lr=lr,
        weight_decay=0.0,
        layout=layout,
        progress=False,
        **sizes,
        **options,
    )
    return run.loss, {name: value.detach() for name, value in run.model.named_parameters()}


def test_gradients_are_those_of_one_process() -> None:
    payments, accounts, labels = tables()
    options: dict[str, Any] = {"src": "payer", "dst": "payee", "time": "day", "period": 1, "weight": "amount"}
    timeline = Timeline.from_table(
        payments, vertices=accounts, vertex_time="since", labels=labels, edge_features="amount,channel", **options
    )
    assert timeline.x is not None
    assert timeline.x.shape[:2] == (6, 24)
    assert timeline.edge_x is not None
    _, before = trained(timeline, "vertex=1", lr=1e-300)
    loss, after = trained(timeline, "vertex=1")
    gradients = {name: before[name] - value for name, value in after.items()}
    assert all(float(gradient.abs().max()) > 1e-6 for gradient in gradients.values())

    def distance(layout: str, data: Timeline = timeline) -> float:
        """The largest difference of a loss or a gradient, relative to the largest of each parameter."""
        its_loss, parameters = trained(data, layout)
        apart = [abs(its_loss[0] - loss[0]) / loss[0]]
        for name, gradient in gradients.items():
            apart.append(float(((before[name] - parameters[name]) - gradient).abs().max() / gradient.abs().max()))
        return max(apart)

    for layout in ("vertex=2", "layer=2,blocks=2", "time=2", "vertex=2,time=2"):
        assert distance(layout) < 1e-10, layout
    # the comparison sees one feature of one payment, and one attribute of one account
    edge_x, x = timeline.edge_x.clone(), timeline.x.clone()
    edge_x[0, 0] += 1
    x[0, 0, 0] += 1
    assert distance("vertex=1", replace(timeline, edge_x=edge_x)) > 1e-6
    assert distance("vertex=1", replace(timeline, x=x)) > 1e-6
