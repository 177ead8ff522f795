"""What node tasks share: targets of vertices at steps, and where in a timeline they stand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from trisect.errors import DataError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.tasks.base import SPLITS, Split, TaskContext
from trisect.tasks.rules.fitted import Case
from trisect.tasks.splits import SplitSizes, notes_on_steps, refuse_empty, split_steps, split_vertices

JudgedSteps = Literal["last", "every"]  # which outputs are compared with one target a vertex


@dataclass(frozen=True, eq=False)
class NodeTargets:
    """Targets y of rows at steps.

    Attributes:
        y: [vertices, …], the same at each step, or [steps, vertices, …].
        runs: the steps of each split.
        masks: bool [vertices] of each split.
        labelled: bool, as y without its outputs: where there is a target.
        horizon: outputs of step t are compared with targets of step t + horizon.
        notes: what the user should know of the splits, a sentence each.
        weight: of each vertex, [vertices]; None: all are 1.
    """

    y: Tensor
    runs: dict[Split, range]
    masks: dict[Split, Tensor]
    labelled: Tensor
    by_step: bool
    horizon: int
    notes: tuple[str, ...] = ()
    weight: Tensor | None = None
    _rows: dict[Split, Tensor] = field(default_factory=dict, repr=False)

    def rows(self, split: Split, step: int) -> Tensor:
        """Give the rows with a target at that step, ascending: int64 [rows]."""
        if self.by_step:
            return torch.nonzero(self.masks[split] & self.labelled[step + self.horizon])[:, 0]
        if split not in self._rows:
            self._rows[split] = torch.nonzero(self.masks[split] & self.labelled)[:, 0]
        return self._rows[split]

    def values(self, rows: Tensor, step: int) -> Tensor:
        """These are the targets of the rows at that step."""
        return (self.y[step + self.horizon] if self.by_step else self.y)[rows]

    def weights(self, rows: Tensor) -> Tensor | None:
        """These are the weights of the rows, None where all are 1."""
        return None if self.weight is None else self.weight[rows]

    @property
    def by_time(self) -> bool:
        """Whether splits differ in their steps alone, so that earlier targets of a vertex are known."""
        return self.by_step and all(bool(mask.all()) for mask in self.masks.values())

    def last(self, rows: Tensor, step: int, unknown: float) -> Tensor:
        """Return the targets that rows had last before the one that is asked for at a step, `unknown` where they had
        none in the last 64 steps; where the splits are by time.
        """
        now = min(step, step + self.horizon - 1)
        earlier = slice(max(0, now - 63), now + 1)
        values = self.y[earlier][:, rows].flip(0)
        labelled = self.labelled[earlier][:, rows].flip(0)
        if not len(values):
            return torch.full_like(self.values(rows, step), unknown)
        found = labelled.any(0)
        newest = values[labelled.long().argmax(0), torch.arange(rows.numel())]
        return torch.where(found.view(-1, *(1,) * (newest.dim() - 1)), newest, unknown)

    def restrict(self, rows: Tensor) -> NodeTargets:
        """The targets of a part of the rows."""
        vertices, rows = 1 if self.by_step else 0, rows.to(self.y.device)
        return replace(
            self,
            y=self.y.index_select(vertices, rows),
            masks={split: mask[rows] for split, mask in self.masks.items()},
            labelled=self.labelled.index_select(vertices, rows),
            weight=None if self.weight is None else self.weight[rows],
            _rows={},
        )

    def case(self, split: Split, step: int) -> Case:
        """Return what simple rules are fitted to and judged by at a step."""
        rows = self.rows(split, step)
        unknown = torch.nan if self.y.is_floating_point() else -1
        last = self.last(rows, step, unknown) if self.by_time and split != "train" else None
        return Case((rows,), self.values(rows, step), last)

    def count(self, split: Split) -> int:
        """Tell how many targets a split has over all its steps."""
        if not self.by_step:
            return int((self.masks[split] & self.labelled).sum()) * len(self.runs[split])
        run = self.runs[split]
        labelled = self.labelled[run.start + self.horizon : run.stop + self.horizon]
        return int((labelled & self.masks[split]).sum())


def node_targets(
    data: Graph | Timeline,
    y: Tensor,
    labelled: Tensor,
    context: TaskContext,
    sizes: SplitSizes,
    at: JudgedSteps,
    horizon: int,
    usual: SplitSizes,
) -> NodeTargets:
    """Find out from the shape of y and from the data's splits what is trained on, and where.

    On a timeline, targets [vertices] are those of the last step (`at="last"`) or of each (`every`) and split by vertex;
    targets [steps, vertices] are split by vertex where the data have masks, and by time otherwise. Sizes that are not
    the `usual` ones were asked for, and it is said where they are not used.
    """
    steps = data.steps if isinstance(data, Timeline) else 1
    by_step = isinstance(data, Timeline) and labelled.dim() == 2
    if labelled.shape[-1] != data.vertices or (by_step and labelled.shape[0] != steps):
        wanted = f"[{steps}, {data.vertices}] or [{data.vertices}]" if isinstance(data, Timeline) else data.vertices
        raise DataError(f"y has the shape {list(y.shape)}, and the data need {wanted} targets.")
    ids = torch.arange(data.vertices, device=y.device) if context.vertices is None else context.vertices.to(y.device)
    if by_step and not data.splits:
        if steps <= horizon:
            raise DataError(f"task.horizon {horizon} needs more than {horizon} steps, and the timeline has {steps}.")
        everyone = torch.ones(data.vertices, dtype=torch.bool, device=y.device)
        masks: dict[Split, Tensor] = dict.fromkeys(SPLITS, everyone)
        counts = labelled[horizon:].sum(1).tolist()
        runs = split_steps(steps - horizon, sizes, counts)
        notes = notes_on_steps(runs, counts, sizes, "target", shift=horizon)
    else:
        some = labelled.any(0) if by_step else labelled
        masks = split_vertices(data.splits, data.vertices, sizes, some, ids)
        last = steps - horizon if by_step else steps
        runs = dict.fromkeys(SPLITS, range(0 if by_step or at == "every" else last - 1, last))
        notes = tuple(
            f"the {name} split has nothing to measure: it selects no vertex with a target; set task.split."
            for name, mask in masks.items()
            if name != "train" and (name in data.splits or not data.splits) and not bool(mask.any())
        )
    if data.splits and tuple(sizes) != tuple(usual):
        notes += (f"task.split {list(sizes)} is not used, since the data have masks; remove them to use it.",)
    weight = None if data.y_weight is None else data.y_weight.to(y.device)
    targets = NodeTargets(y, runs, masks, labelled, by_step, horizon if by_step else 0, notes, weight)
    refuse_empty({name: targets.count(name) for name in SPLITS}, "vertex")
    return targets
