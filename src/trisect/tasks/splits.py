"""Which vertices, or which steps, belong to train, val and test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trisect.errors import ConfigError, DataError
from trisect.noise import Noise, row_keys
from trisect.tasks.base import SPLITS, Split

SplitSizes = Sequence[float] | Sequence[int]


def check_sizes(sizes: SplitSizes) -> None:
    """Refuse what can be no split: three fractions or counts are needed."""
    if len(sizes) != 3 or any(isinstance(part, bool) or part < 0 for part in sizes):
        raise ConfigError(f"task.split is {list(sizes)}; give three fractions or counts, for train, val and test.")


def split_steps(steps: int, sizes: SplitSizes, targets: Sequence[int] | None = None) -> dict[Split, range]:
    """Consecutive runs of steps, the past first.

    Args:
        steps: how many there are to divide.
        sizes: three fractions that sum to 1 (cut points are rounded down), or three whole counts of steps that sum to
            at most `steps`.
        targets: how many targets each step has. Fractions then count the steps that have any, so that a silent stretch
            (holidays, a gap in the records) does not use up a split; the empty steps stay in the runs where they lie.
    """
    check_sizes(sizes)
    if all(isinstance(part, int) for part in sizes):
        ends = [int(sizes[0]), int(sizes[0] + sizes[1]), int(sum(sizes))]
        if ends[2] > steps:
            raise ConfigError(f"task.split {list(sizes)} asks for {ends[2]} steps, and the timeline offers {steps}.")
    else:
        if abs(sum(sizes) - 1.0) > 1e-6:
            raise ConfigError(f"task.split {list(sizes)} sums to {sum(sizes):g}; fractions must sum to 1.")
        filled = [step for step in range(steps) if targets is None or targets[step]]
        count = len(filled)
        cuts = [int(count * sizes[0] + 1e-9), int(count * (sizes[0] + sizes[1]) + 1e-9)]
        if sizes[1] > 0 and cuts[0] == cuts[1] > 1:
            cuts[0] -= 1  # a few steps are enough to validate on one of them
        # a run ends before the first step with targets that is no longer its own
        ends = [*(filled[cut] if 0 < cut < count else steps * min(cut, 1) for cut in cuts), steps]
    starts = [0, ends[0], ends[1]]
    runs = {name: range(a, b) for name, a, b in zip(SPLITS, starts, ends, strict=True)}
    if not runs["train"]:
        raise DataError(f"task.split {list(sizes)} leaves no step to train on, of {steps}; use more or shorter steps.")
    return runs


def split_vertices(
    masks_of_data: Mapping[str, Tensor], vertices: int, sizes: SplitSizes, labelled: Tensor, ids: Tensor
) -> dict[Split, Tensor]:
    """Give the masks of the data where they have them, or else a seeded random split. bool [vertices] each.

    Args:
        masks_of_data: the `splits` of the data, which may be empty.
        labelled: bool [vertices], vertices with a target; others belong to no split.
        ids: the user's id of each row, so that a reordered graph is split alike.
    """
    check_sizes(sizes)
    if masks_of_data:
        return _masks_of_data(masks_of_data, vertices, labelled)
    if abs(sum(sizes) - 1.0) > 1e-6:
        raise ConfigError(f"task.split is {list(sizes)}; vertices are split by three fractions that sum to 1.")
    # the masks do not depend on the seed of the run, so that seeds are compared on one split
    uniform = (row_keys(Noise(0).key("split"), ids) >> 11 & ((1 << 52) - 1)).double() / (1 << 52)
    low, high = sizes[0], sizes[0] + sizes[1]
    parts = (uniform < low, (uniform >= low) & (uniform < high), uniform >= high)
    return {name: part & labelled for name, part in zip(SPLITS, parts, strict=True)}


def _masks_of_data(masks_of_data: Mapping[str, Tensor], vertices: int, labelled: Tensor) -> dict[Split, Tensor]:
    masks: dict[Split, Tensor] = {}
    for name in SPLITS:
        mask = masks_of_data.get(name)
        if mask is None:
            masks[name] = torch.zeros(vertices, dtype=torch.bool, device=labelled.device)
            continue
        if mask.dim() == 2:
            mask = mask[:, 0]
        if mask.shape[0] != vertices:
            raise DataError(f"split {name!r} has {mask.shape[0]} entries, and the graph {vertices} vertices.")
        masks[name] = mask.bool() & labelled
    unknown = set(masks_of_data) - set(SPLITS)
    if unknown:
        raise DataError(f"split {sorted(unknown)[0]!r} is none of train, val and test; rename or remove it.")
    return masks


def notes_on_steps(
    runs: Mapping[Split, range], targets: Sequence[int], sizes: SplitSizes, what: str, *, shift: int = 0
) -> tuple[str, ...]:
    """What the user should know of a split by time: a split with nothing to measure, and steps without targets.

    Args:
        targets: how many targets (called `what`) each step has.
        shift: targets lie so many steps after the step that predicts them.
    """
    notes = []
    for name, size in zip(SPLITS, sizes, strict=True):
        run = runs[name]
        count = sum(targets[step] for step in run)
        if size and not count and name != "train":
            where, remedy = "it has no step", "a shorter period, which gives more steps,"
            if run:
                where = f"steps {run.start + shift} to {run.stop + shift - 1} have no {what}"
                remedy = "a longer period"
            notes.append(f"the {name} split has nothing to measure: {where}; use {remedy} or set task.split.")
    empty = sum(1 for run in runs.values() for step in run if not targets[step])
    if empty and not all(isinstance(size, int) for size in sizes):
        cuts = ", ".join(f"{name} {run.start} to {run.stop - 1}" for name, run in runs.items() if run)
        notes.append(
            f"{empty} of {sum(map(len, runs.values()))} steps have no {what} to predict; task.split counts the others,"
            f" which gives the steps {cuts}."
        )
    return tuple(notes)


def refuse_empty(rows: Mapping[Split, int], what: str) -> None:
    """A run needs something to train on; a val or test split may be missing."""
    if rows["train"] == 0:
        raise DataError(f"the train split selects no {what} with a target; check the masks and the labels.")
