"""A layer for each relation, and what several relations give a vertex together; PyG's `HeteroConv`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from trisect.errors import ConfigError, unknown
from trisect.graph.build import Normalisation
from trisect.nn.base import Layer
from trisect.nn.conv.convolution import Convolution

if TYPE_CHECKING:
    from trisect.views.view import View

Together = Literal["sum", "mean", "max", "attention"]


class HeteroLayer(Convolution):
    """out = together(layer_r(x) over the relation r, for each r), then norm, activation, dropout, residual.

    Rows cross ranks once for all layers that sum x itself or gather its rows, as all of ours do.

    Where vertices have several types, a relation such as `author__writes__paper` says something of papers alone. With
    `types`, x ends in a column for each type, which is 1 for the row's own (`HeteroLinearLayer(…, types=True)` passes
    them on), and rows of other types get nothing of that relation. Without, its layer gives them what a vertex without
    edges gets: a root weight and a bias.

    Args:
        layers: by the name of a relation, a layer that reads its edges alone; all of the same widths.
        together: `sum`, `mean` or `max` of what the relations give, or `attention`: their sum by a softmax over the
            relations, of scores qᵀ·tanh(W·h_r + b) of each row.
        normalisation: of each relation's weights: one for all, or by name. `row` is that of SAGE, `symmetric` that of
            GCN; attention reads none.
        self_loops: whether vertices read themselves in a relation, as GCN and GAT have it: for all, or by name.
        types: what the types of vertices are called, in the order of the columns; relations end in `__` and one.
        last: whether the columns of types end here, and are no part of the output.
        **options: of `Convolution`; the layers' own activations and dropout are those of the layers.

    Shapes: x [..., rows, in_channels] → [..., rows, out_channels]; with types, as many columns more than the layers.
    """

    def __init__(
        self,
        layers: Mapping[str, Layer],
        together: Together = "sum",
        *,
        normalisation: Normalisation | Mapping[str, Normalisation] = "row",
        self_loops: bool | Mapping[str, bool] = False,
        types: Sequence[str] = (),
        last: bool = False,
        **options: Any,
    ) -> None:
        if not layers:
            raise ConfigError("layers is empty; give HeteroLayer a layer for each relation that it reads.")
        widths = {(layer.in_channels, layer.out_channels) for layer in layers.values()}
        if len(widths) > 1:
            text = " and ".join(f"{a} -> {b}" for a, b in sorted(widths)[:2])
            raise ConfigError(f"layers of a HeteroLayer have the widths {text}; make them equal.")
        for name, layer in layers.items():
            if layer.reads or layer.edge_channels:
                raise ConfigError(f"the layer of relation {name!r}, {layer}, reads shared inputs or features of edges.")
        if together not in ("sum", "mean", "max", "attention"):
            raise ConfigError(f"together is {together!r}; choose sum, mean, max or attention.")
        (width, out), *_ = widths
        super().__init__(width, out, **{"bias": False, **options})
        self.relations, self.together = tuple(layers), together
        self.layers = nn.ModuleList(layers.values())
        self.forms = tuple((_of(normalisation, name, "row"), _of(self_loops, name, False)) for name in layers)
        self.types, self.last = tuple(types), last
        self.targets = tuple(self._target(name) for name in layers) if types else ()
        if types and together != "sum":
            raise ConfigError(f"together is {together!r}, and with types what relations give is added up; use sum.")
        self.in_channels += len(types)
        self.out_channels += 0 if last else len(types)
        self.score = nn.Linear(out, out) if together == "attention" else None
        self.query = self.drawn("query", 1, out) if together == "attention" else None

    def forward(self, x: Tensor, g: View) -> Tensor:
        """x [..., rows, in_channels] → [..., rows, out_channels]."""
        width = self.in_channels - len(self.types)
        rows = x[..., :width] if self.types else x
        views = g.each_relation(rows, [(name, *form) for name, form in zip(self.relations, self.forms, strict=True)])
        found = [layer(rows, view) for layer, view in zip(self.layers, views, strict=True)]
        if not self.types:
            return self.after(self._together(found), x, g)
        kinds = x[..., width:]
        of_targets = [y * kinds[..., [target]] for y, target in zip(found, self.targets, strict=True)]
        y = self.after(self._together(of_targets), rows, g)
        return y if self.last else torch.cat([y, kinds], -1)

    def _target(self, relation: str) -> int:
        """Return the type of vertices in which the edges of a relation end."""
        kind = relation.rpartition("__")[2]
        if kind not in self.types:
            raise ConfigError(f"relation {relation!r} ends in no type of vertices; {unknown('type', kind, self.types)}")
        return self.types.index(kind)

    def _together(self, found: list[Tensor]) -> Tensor:
        if len(found) == 1:
            return found[0]
        every = torch.stack(found)
        if self.together == "max":
            return every.amax(0)
        if self.score is not None and self.query is not None:
            weights = torch.softmax(torch.tanh(self.score(every)) @ self.query.t(), 0)
            return (weights * every).sum(0)
        return every.mean(0) if self.together == "mean" else every.sum(0)

    def _repr_options(self) -> str:
        layers = ", ".join(f"{name}: {layer}" for name, layer in zip(self.relations, self.layers, strict=True))
        return f", {{{layers}}}, {self.together}{super()._repr_options()}"


def _of(value: Any, name: str, default: Any) -> Any:
    return value.get(name, default) if isinstance(value, Mapping) else value
