"""A timeline from tables, with attributes that change over time, has the losses of one process under every cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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


def losses(timeline: Timeline, layout: str) -> list[float]:
    run = fit("cd-gcn", timeline, "node-classification", hidden=4, epochs=4, layout=layout, precision="float64", seed=3)
    return [float(loss) for loss in run.summary["loss"]]


def test_losses_are_those_of_one_process() -> None:
    payments, accounts, labels = tables()
    options: dict[str, Any] = {"src": "payer", "dst": "payee", "time": "day", "period": 1, "weight": "amount"}
    timeline = Timeline.from_table(
        payments, vertices=accounts, vertex_time="since", labels=labels, edge_features="amount,channel", **options
    )
    assert timeline.x is not None
    assert timeline.x.shape[:2] == (6, 24)
    assert timeline.edge_x is not None
    alone = losses(timeline, "vertex=1")
    for layout in ("vertex=2", "layer=2,blocks=2", "time=2", "vertex=2,time=2"):
        np.testing.assert_allclose(losses(timeline, layout), alone, rtol=1e-10, err_msg=layout)
    fixed = Timeline.from_table(payments, labels=labels, **options)
    assert not np.allclose(losses(fixed, "vertex=1"), alone, rtol=1e-3), "the attributes count"
