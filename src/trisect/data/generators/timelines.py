"""The generators of timelines are `evolving` and `uniform`."""

from __future__ import annotations

import numpy as np

from trisect.data.generators.static_graphs import check_fractions, check_sizes, class_features, members, skewed_classes
from trisect.data.records import Array, TimelineRecord


def evolving(
    vertices: int = 2000,
    steps: int = 30,
    degree: float = 4.0,
    communities: int = 20,
    features: int = 32,
    within: float = 0.9,
    switch: float = 0.01,
    repeat: float = 0.5,
    signal: float = 1.0,
    skew: float = 0.5,
    seed: int = 0,
) -> TimelineRecord:
    """Communities that vertices leave for others now and then, and contacts that mostly stay within and recur.

    Good for predicting the links of the next step: `y` [steps, vertices] is the community at each step.

    Args:
        degree: contacts per vertex and step (each counts for both of its ends).
        communities: how many communities.
        within: the fraction of new contacts inside a community.
        switch: the probability that a vertex changes its community at a step.
        repeat: the fraction of a step's contacts that continue those of the step before.
        features: width of fixed features (the first community's centre times `signal`, plus noise); 0 for none.
    """
    check_sizes(vertices=vertices, steps=steps, degree=degree, communities=communities)
    check_fractions(within=within, switch=switch, repeat=repeat)
    rng = np.random.default_rng([seed, 4])
    now = skewed_classes(rng, vertices, communities, skew)
    x = class_features(rng, now, communities, features, signal) if features else None
    events = max(1, round(vertices * degree / 2))
    src, dst = np.empty((steps, events), np.int32), np.empty((steps, events), np.int32)
    y = np.empty((steps, vertices), np.int64)
    activity = np.cumsum(rng.pareto(2.5, vertices) + 0.5)  # some vertices have many contacts at every step
    for t in range(steps):
        if t:
            moved = rng.random(vertices) < switch
            now = np.where(moved, rng.integers(0, communities, vertices), now)
        y[t] = now
        src[t], dst[t] = _contacts(rng, now, communities, activity, events, within)
        if t:
            # a contact goes on only while its two ends stay together
            old = rng.permutation(events)[: round(repeat * events)]
            old = old[now[src[t - 1, old]] == now[dst[t - 1, old]]]
            src[t, : len(old)], dst[t, : len(old)] = src[t - 1, old], dst[t - 1, old]
    return TimelineRecord(
        vertices=vertices,
        src=src.reshape(-1),
        dst=dst.reshape(-1),
        offsets=np.arange(steps + 1, dtype=np.int64) * events,
        undirected=True,
        x=x,
        y=y,
        meta={"task": "link-prediction"},
    )


def _contacts(
    rng: np.random.Generator, label: Array, communities: int, activity: Array, events: int, within: float
) -> tuple[Array, Array]:
    """`events` new contacts: an active vertex, and another of its community or anywhere; never itself."""
    vertices = len(label)
    order, starts, counts = members(label, communities)
    src = np.searchsorted(activity, rng.random(events) * activity[-1]).astype(np.int32)
    own = label[src]
    near = order[starts[own] + (rng.random(events) * counts[own]).astype(np.int64)]
    dst = np.where(rng.random(events) < within, near, rng.integers(0, vertices, events, dtype=np.int32))
    return src, np.where(src == dst, (dst + 1) % vertices, dst).astype(np.int32)


def uniform(
    vertices: int = 10_000, degree: float = 5.0, steps: int = 20, features: int = 0, seed: int = 0
) -> TimelineRecord:
    """Uniformly random edges, `degree` per vertex at each step: nothing to learn, everything to measure.

    Args:
        features: width of fixed random features; 0 for none (degrees are used).
    """
    check_sizes(vertices=vertices, steps=steps, degree=degree)
    rng = np.random.default_rng([seed, 5])
    events = round(vertices * degree)
    return TimelineRecord(
        vertices=vertices,
        src=rng.integers(0, vertices, steps * events, dtype=np.int32),
        dst=rng.integers(0, vertices, steps * events, dtype=np.int32),
        offsets=np.arange(steps + 1, dtype=np.int64) * events,
        x=rng.standard_normal((vertices, features), dtype=np.float32) if features else None,
        meta={"task": "link-prediction"},
    )
