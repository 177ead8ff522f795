"""Which vertices, or which steps, belong to train, val and test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trisect.errors import ConfigError, DataError
from trisect.noise import Noise, row_keys
from trisect.train.tasks.base import SPLITS, Split

Shares = Sequence[float] | Sequence[int]


def split_steps(steps: int, shares: Shares) -> dict[Split, range]:
    """Consecutive runs of steps, the past first.

    Args:
        steps: how many there are to divide.
        shares: three fractions that sum to 1 (cut points are rounded down), or three whole counts of steps that sum to
            at most `steps`.
    """
    if len(shares) != 3 or any(isinstance(part, bool) or part < 0 for part in shares):
        raise ConfigError(f"task.split is {list(shares)}; give three fractions or counts, for train, val and test.")
    if all(isinstance(part, int) for part in shares):
        ends = [int(shares[0]), int(shares[0] + shares[1]), int(sum(shares))]
        if ends[2] > steps:
            raise ConfigError(f"task.split {list(shares)} asks for {ends[2]} steps, and the timeline offers {steps}.")
    else:
        if abs(sum(shares) - 1.0) > 1e-6:
            raise ConfigError(f"task.split {list(shares)} sums to {sum(shares):g}; fractions must sum to 1.")
        ends = [int(steps * shares[0] + 1e-9), int(steps * (shares[0] + shares[1]) + 1e-9), steps]
    starts = [0, ends[0], ends[1]]
    found = {name: range(a, b) for name, a, b in zip(SPLITS, starts, ends, strict=True)}
    if not found["train"]:
        raise DataError(f"task.split {list(shares)} leaves no step to train on, of {steps}; use more or shorter steps.")
    return found


def split_vertices(
    given: Mapping[str, Tensor], vertices: int, shares: Shares, labelled: Tensor, ids: Tensor
) -> dict[Split, Tensor]:
    """The masks of the data where they have them, or else a seeded random split. bool [vertices] each.

    Args:
        given: the data's own `splits`.
        labelled: bool [vertices], vertices with a target; others belong to no split.
        ids: the user's id of each row, so that a reordered graph is split alike.
    """
    if given:
        return _given_masks(given, vertices, labelled)
    if len(shares) != 3 or abs(sum(shares) - 1.0) > 1e-6:
        raise ConfigError(f"task.split is {list(shares)}; vertices are split by three fractions that sum to 1.")
    # the masks do not follow the run's seed: seeds are compared on one split
    place = (row_keys(Noise(0).key("split"), ids) >> 11 & ((1 << 52) - 1)).double() / (1 << 52)
    low, high = shares[0], shares[0] + shares[1]
    parts = (place < low, (place >= low) & (place < high), place >= high)
    return {name: part & labelled for name, part in zip(SPLITS, parts, strict=True)}


def _given_masks(given: Mapping[str, Tensor], vertices: int, labelled: Tensor) -> dict[Split, Tensor]:
    masks: dict[Split, Tensor] = {}
    for name in SPLITS:
        mask = given.get(name)
        if mask is None:
            masks[name] = torch.zeros(vertices, dtype=torch.bool, device=labelled.device)
            continue
        if mask.dim() == 2:
            mask = mask[:, 0]
        if mask.shape[0] != vertices:
            raise DataError(f"split {name!r} has {mask.shape[0]} entries, and the graph {vertices} vertices.")
        masks[name] = mask.bool() & labelled
    unknown = set(given) - set(SPLITS)
    if unknown:
        raise DataError(f"split {sorted(unknown)[0]!r} is none of train, val and test.")
    return masks


def refuse_empty(rows: Mapping[Split, int], what: str) -> None:
    """A run needs something to train on; a val or test split may be missing."""
    if rows["train"] == 0:
        raise DataError(f"the train split selects no {what} with a target; check the masks and the labels.")
