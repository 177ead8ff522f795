"""`Timeline`: snapshots over one vertex set. Raw events are kept once; what a model reads is made on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trisect.data.records import Names
from trisect.errors import DataError
from trisect.graph.adjacency import Adjacency
from trisect.graph.assemble import Edges, assemble
from trisect.graph.build import Normalisation, normalise
from trisect.graph.check import (
    check_class_names,
    check_flag,
    check_index,
    check_names,
    feature_array,
    index_array,
    label_array,
    order_array,
    positions_of,
    row_weights,
    split_masks,
    vertex_count,
    weight_array,
)
from trisect.graph.edge_features import (
    Merge,
    check_merge,
    edge_feature_array,
    merge_parallel,
    merged_channels,
    with_entry_features,
)
from trisect.graph.relations import related_edges
from trisect.graph.timeline.input import SmoothingLike, TimelineInput
from trisect.graph.timeline.smoothing import Smoothing
from trisect.graph.timeline.snapshots import Snapshots


@dataclass(frozen=True, eq=False)
class Timeline(TimelineInput):
    """The steps first..first+steps-1 of a list of events; `between` makes another one over the same arrays.

    Attributes:
        vertices: how many there are, at all steps.
        src, dst: int32 [events]: an edge from src to dst.
        offsets: int64 [all steps + 1], on the CPU: the events of raw step k are offsets[k] .. offsets[k+1]-1.
        weight: float32 [events], or None.
        undirected: each event counts in both directions (a loop once).
        smoothing: which steps before it a snapshot gathers. A part cut out by `between` still reaches back.
        x: float32 [vertices, features], [steps, vertices, features], or None (degrees are used).
        y: classes int64 or targets float32: [vertices, …] or [steps, vertices, …], or None.
        edge_y: integers [events], classes of events (-1: none), or None.
        splits: `train`, `val`, `test` → bool [vertices].
        names, order: as in `Graph`.
        edge_x: float32 [events, features], the features of events, or None.
        merge: what the features of events between the same vertices become in a snapshot, those of the steps that
            smoothing gathers included: their `sum`, their `mean`, those of the `last`, or how many there are (`count`).
        class_names, edge_class_names: what class k of y and of edge_y is called, or None where classes are numbers.
        y_weight: float32 [vertices], how much each vertex counts in the loss, or None.
        relations: what the relations of events are called; then edge_x are the weights of an event in each of them, and
            `merge` is `relations`.
    """

    vertices: int
    src: Tensor
    dst: Tensor
    offsets: Tensor
    weight: Tensor | None = None
    undirected: bool = False
    smoothing: Smoothing = field(default_factory=Smoothing)
    x: Tensor | None = None
    y: Tensor | None = None
    edge_y: Tensor | None = None
    splits: dict[str, Tensor] = field(default_factory=dict)
    names: Names | None = None
    order: Tensor | None = None
    first: int = 0
    steps: int = 0
    edge_x: Tensor | None = None
    merge: Merge = "mean"
    class_names: Sequence[str] | None = field(default=None, compare=False)
    edge_class_names: Sequence[str] | None = field(default=None, compare=False)
    y_weight: Tensor | None = None
    relations: tuple[str, ...] = ()

    @classmethod
    def from_arrays(
        cls,
        src: Any,
        dst: Any,
        offsets: Any,
        *,
        vertices: int | None = None,
        weight: Any = None,
        undirected: bool = False,
        smoothing: SmoothingLike = None,
        x: Any = None,
        y: Any = None,
        edge_y: Any = None,
        splits: Mapping[str, Any] | None = None,
        split: int = 0,
        names: Names | None = None,
        edge_x: Any = None,
        merge: Merge = "mean",
        class_names: Sequence[str] | None = None,
        edge_class_names: Sequence[str] | None = None,
        y_weight: Any = None,
        relation: Any = None,
        relations: Sequence[str] | None = None,
    ) -> Timeline:
        """From events sorted by step, all checked; see the attributes."""
        source, target, cuts = index_array("src", src), index_array("dst", dst), index_array("offsets", offsets).long()
        count = source.numel()
        if count != target.numel():
            raise DataError(f"src has {count} entries and dst {target.numel()}; every event needs both ends.")
        if cuts.numel() < 2:
            raise DataError("The timeline has no steps; offsets needs at least two entries.")
        if int(cuts[0]) != 0 or int(cuts[-1]) != count or bool((cuts.diff() < 0).any()):
            raise DataError(f"offsets must ascend from 0 to the number of events, {count}.")
        steps = cuts.numel() - 1
        chosen = Smoothing.of(smoothing)
        if chosen.window > steps:
            raise DataError(
                f"smoothing.length is {chosen.length}, but the timeline has only {steps} steps; shorten it."
            )
        n = vertex_count(vertices, source, target)
        check_index("src", source, n)
        check_index("dst", target, n)
        labels = None if y is None else label_array("y", y)
        if labels is not None and labels.shape[:2] != (steps, n) and labels.shape[:1] != (n,):
            raise DataError(
                f"y has the shape {list(labels.shape)}; it must begin with [{n}] (vertices) or [{steps}, {n}] (steps, "
                "vertices)."
            )
        classes = None if edge_y is None else label_array("edge_y", edge_y, widen=False)
        if classes is not None and classes.shape != (count,):
            raise DataError(f"edge_y has the shape {list(classes.shape)} for {count} events; give one class an event.")
        check_names(names, n)
        check_class_names("class_names", class_names, labels)
        check_class_names("edge_class_names", edge_class_names, classes)
        features = None
        if x is not None:
            features = feature_array("x", x, (n,) if np.ndim(x) == 2 else (steps, n))
        chosen_merge: Merge = check_merge(merge)
        called: tuple[str, ...] = ()
        if relation is not None:
            edge_x, called = related_edges(relation, relations, count, weight, edge_x)
            chosen_merge = "relations"
        return cls(
            vertices=n,
            src=source.to(torch.int32),
            dst=target.to(torch.int32),
            offsets=cuts,
            weight=None if weight is None else weight_array("weight", weight, count, torch.float32),
            undirected=check_flag("undirected", undirected),
            smoothing=chosen,
            x=features,
            y=labels,
            edge_y=classes,
            splits=split_masks({} if splits is None else splits, n, split, _labelled(labels, steps, n)),
            names=names,
            steps=steps,
            edge_x=None if edge_x is None else edge_feature_array(edge_x, count),
            merge=chosen_merge,
            class_names=class_names,
            edge_class_names=edge_class_names,
            y_weight=None if y_weight is None else row_weights(y_weight, n),
            relations=called,
        )

    @property
    def device(self) -> torch.device:
        """Give the device on which the events live."""
        return self.src.device

    @property
    def edge_channels(self) -> int:
        """Give the number of features of a snapshot's edge; 0 where events have none."""
        return merged_channels(self.edge_x, self.merge)

    @property
    def total_events(self) -> int:
        """How many raw events the steps have."""
        return int(self.offsets[self.first + self.steps] - self.offsets[self.first])

    @property
    def memory_bytes(self) -> int:
        """Bytes of all arrays, those outside a part that `between` cut out included."""
        events = (self.src, self.dst, self.offsets, self.weight, self.edge_x, self.edge_y)
        arrays = (*events, self.x, self.y, self.order)
        return sum(array.untyped_storage().nbytes() for array in arrays if array is not None)

    def event_counts(self) -> Tensor:
        """How many raw events each step has, int64 [steps]."""
        return self.offsets[self.first : self.first + self.steps + 1].diff()

    def events(self, step: int) -> tuple[Tensor, Tensor]:
        """(src, dst) of the raw events of one step, int32 views."""
        stretch = self._stretch(step)
        return self.src[stretch], self.dst[stretch]

    def event_weights(self, step: int) -> Tensor | None:
        """The weights of one step's raw events, a view, or None."""
        return None if self.weight is None else self.weight[self._stretch(step)]

    def event_features(self, step: int) -> Tensor:
        """The features of one step's raw events, float32 [events, features], a view."""
        if self.edge_x is None:
            raise DataError("The events have no features; give edge_x.")
        return self.edge_x[self._stretch(step)]

    def edge_features(self, step: int, merge: Merge | None = None) -> Tensor:
        """The features of the entries of `snapshot(step)` without loops, float32 [entries, features].

        Args:
            merge: instead of the timeline's own.
        """
        if self.edge_x is None:
            raise DataError("The events have no features; give edge_x.")
        stretch = self.window(step)
        ends = self.src[stretch], self.dst[stretch]
        chosen = self.merge if merge is None else merge
        return merge_parallel(self.edge_x[stretch], *ends, self.vertices, both=self.undirected, merge=chosen)

    def with_edge_features(self, matrix: Adjacency, step: int) -> Adjacency:
        """Give the matrix of a step with the features of its edges; as it is where events have none."""
        if self.edge_x is None:
            return matrix
        stretch = self.window(step)
        ends = self.src[stretch], self.dst[stretch]
        return with_entry_features(matrix, self.edge_x[stretch], *ends, self.merge, both=self.undirected)

    def window(self, step: int) -> slice:
        """Give the events that reach into the snapshot of a step."""
        now = self._absolute(step)
        return slice(int(self.offsets[self.smoothing.first_step(now)]), int(self.offsets[now + 1]))

    def event_labels(self, step: int) -> Tensor:
        """The classes of one step's raw events, int64."""
        if self.edge_y is None:
            raise DataError("The events have no classes; give edge_y.")
        return self.edge_y[self._stretch(step)].long()

    def snapshot(
        self,
        step: int,
        normalisation: Normalisation = "none",
        *,
        self_loops: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> Adjacency:
        """The matrix of one step: raw events → smoothed → both directions → loops → normalised.

        It has the features of its edges beside its values, where events have any.
        """
        now = self._absolute(step)
        start = self.smoothing.first_step(now)
        coefficients = self.smoothing.coefficients(now)
        edges = Edges(
            self.src,
            self.dst,
            self.weight,
            int(self.offsets[start]),
            int(self.offsets[now + 1]),
            None if coefficients is None else self.offsets[start : now + 2].contiguous(),
            None if coefficients is None else coefficients.to(self.device),
            self.undirected,
        )
        matrix = Adjacency.from_csr(*assemble(edges, self.vertices, self.vertices, dtype), self.vertices).vouched()
        if matrix.values is None and dtype != torch.float32:
            matrix = matrix.with_values(torch.ones(matrix.entries, dtype=dtype, device=matrix.device))
        return self.with_edge_features(normalise(matrix, normalisation, self_loops), step)

    def snapshots(
        self,
        normalisation: Normalisation = "none",
        *,
        self_loops: bool = False,
        dtype: torch.dtype = torch.float32,
        start: int = 0,
        stop: int | None = None,
        keep_bytes: int = 0,
    ) -> Snapshots:
        """The snapshots start..stop-1 as a sequence that makes each when it is asked for."""
        last = self.steps if stop is None else stop
        _check_steps(start, last, self.steps)
        return Snapshots(self.between(start, last), normalisation, self_loops, dtype, keep_bytes)

    def between(self, start: int, stop: int) -> Timeline:
        """The steps start..stop-1. Smoothing still sees what came before, so that snapshots stay what they were."""
        _check_steps(start, stop, self.steps)

        def cut(array: Tensor | None, by_step: bool) -> Tensor | None:
            return array[start:stop] if array is not None and by_step else array

        return replace(
            self,
            first=self.first + start,
            steps=stop - start,
            x=cut(self.x, self.x is not None and self.x.dim() == 3),
            y=cut(self.y, self.y is not None and self.y.shape[:2] == (self.steps, self.vertices)),
        )

    def degree_features(self, step: int, *, log1p: bool = True) -> Tensor:
        """float32 [vertices, 2]: in- and out-degree in the smoothed snapshot, an event as often as it occurs."""
        now = self._absolute(step)
        start = self.smoothing.first_step(now)
        stretch = slice(int(self.offsets[start]), int(self.offsets[now + 1]))
        factors = None
        coefficients = self.smoothing.coefficients(now)
        if coefficients is not None:
            lengths = self.offsets[start : now + 2].diff()
            factors = torch.repeat_interleave(coefficients, lengths).to(self.device)
        source, target = self.src[stretch], self.dst[stretch]
        into, out = (torch.bincount(end, factors, self.vertices).double() for end in (target, source))
        if self.undirected:
            loops = source == target
            own = torch.bincount(source[loops], None if factors is None else factors[loops], self.vertices)
            into = out = into + out - own
        degrees = torch.stack([into, out], 1).float()
        return degrees.log1p_() if log1p else degrees

    def features_at(self, step: int) -> Tensor:
        """The features of one step, [vertices, features]; without x the degrees (log1p)."""
        self._absolute(step)
        if self.x is None:
            return self.degree_features(step)
        return self.x if self.x.dim() == 2 else self.x[step]

    def features(self) -> Tensor:
        """[vertices, features] where they are the same at all steps, otherwise [steps, vertices, features]."""
        if self.x is not None:
            return self.x
        result = torch.empty(self.steps, self.vertices, 2, device=self.device)
        for step in range(self.steps):
            result[step] = self.degree_features(step)
        return result

    def reordered(self, order: Tensor) -> Timeline:
        """The same timeline with its vertices in another order: position i holds the vertex that is now at order[i]."""
        order = order_array(order, self.vertices).to(self.device)
        positions = positions_of(order).to(torch.int32)
        x, y = self.x, self.y
        if y is not None:
            y = y[:, order] if y.shape[:2] == (self.steps, self.vertices) else y[order]
        if x is not None:
            x = x[order] if x.dim() == 2 else x[:, order]
        return replace(
            self,
            src=positions[self.src],
            dst=positions[self.dst],
            x=x,
            y=y,
            y_weight=None if self.y_weight is None else self.y_weight[order],
            splits={name: mask[order] for name, mask in self.splits.items()},
            order=order if self.order is None else self.order[order],
        )

    def to_user_order(self, rows: Tensor, dim: int = 0) -> Tensor:
        """Rows in this timeline's order → rows in the user's order; `dim` is the dimension of the vertices."""
        return rows if self.order is None else rows.index_select(dim, positions_of(self.order))

    def to(self, device: torch.device | str) -> Timeline:
        """The same timeline on another device (the offsets stay on the CPU)."""
        if torch.device(device) == self.device:
            return self
        names = ("src", "dst", "weight", "x", "y", "edge_x", "edge_y", "order", "y_weight")
        arrays = {name: getattr(self, name) for name in names}
        moved: dict[str, Any] = {name: None if array is None else array.to(device) for name, array in arrays.items()}
        return replace(self, **moved, splits={name: mask.to(device) for name, mask in self.splits.items()})

    def __len__(self) -> int:
        return self.steps

    def __repr__(self) -> str:
        return f"Timeline({self.steps} steps, {self.vertices} vertices, {self.total_events} events, {self.smoothing})"

    def _absolute(self, step: int) -> int:
        if not 0 <= step < self.steps:
            raise DataError(f"Step {step} does not exist; the timeline has {self.steps} steps, counted from 0.")
        return self.first + step

    def _stretch(self, step: int) -> slice:
        now = self._absolute(step)
        return slice(int(self.offsets[now]), int(self.offsets[now + 1]))


def _check_steps(start: int, stop: int, steps: int) -> None:
    if not 0 <= start <= stop <= steps:
        raise DataError(f"The steps {start}..{stop} do not lie within 0..{steps}.")


def _labelled(y: Tensor | None, steps: int, vertices: int) -> Tensor | None:
    """bool [vertices]: whether a vertex has a label at any step."""
    if y is None:
        return None
    labelled = ~y.isnan() if y.is_floating_point() else y >= 0
    if labelled.shape[:2] == (steps, vertices):
        labelled = labelled.any(0)
    return labelled if labelled.dim() == 1 else labelled.flatten(1).any(1)
