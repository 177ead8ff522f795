"""Splits of the vertices into train, val and test."""

from __future__ import annotations

import numpy as np

from trisect.data.records import Array


def random_splits(
    y: Array, seed: int = 0, fractions: tuple[float, float] = (0.6, 0.2), per_class: int | None = None
) -> dict[str, Array]:
    """Seeded splits, stratified by class; vertices of class -1 belong to none.

    Args:
        y: integer classes [vertices].
        fractions: those of train and val; test has the rest.
        per_class: train on this many vertices of each class instead (the Planetoid custom).
    """
    rng = np.random.default_rng([seed, 0x5711])
    vertices = len(y)
    order = rng.permutation(vertices)
    order = order[np.argsort(y[order], kind="stable")]  # classes one after the other, each in random order
    labelled = y[order] >= 0
    order = order[labelled]
    _, starts, counts = np.unique(y[order], return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(starts, counts)
    size = np.repeat(counts, counts)
    train_end = np.round(size * fractions[0]) if per_class is None else np.minimum(per_class, size // 2)
    val_end = train_end + np.round((size - train_end) * fractions[1] / (1.0 - fractions[0]))
    splits = {name: np.zeros(vertices, dtype=bool) for name in ("train", "val", "test")}
    splits["train"][order[rank < train_end]] = True
    splits["val"][order[(rank >= train_end) & (rank < val_end)]] = True
    splits["test"][order[rank >= val_end]] = True
    return splits


def choose_split(splits: dict[str, Array], index: int | None) -> dict[str, Array]:
    """Column `index` of splits that are [vertices, splits]; None keeps them all; single splits stay as they are."""
    if index is None:
        return splits
    return {name: mask if mask.ndim == 1 else np.ascontiguousarray(mask[:, index]) for name, mask in splits.items()}
