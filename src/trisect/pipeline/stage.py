"""`Stage`: the layers of one rank in groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from trisect.views.view import View

# The rows, by the name "x", and what earlier layers wrote for later ones: what enters and leaves a group of layers.
Values = dict[str, Tensor]


# ends(view, x) makes the loss of what leaves the last stage
Ends = Callable[[View, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Stage:
    """Layers in order, by their number in the model, cut into groups that are computed again one at a time.

    Attributes:
        groups: each the numbers of consecutive layers; of all but the last nothing is kept for backward.
        leaves: names of the shared values that later stages read.
        head: the number of a head, which draws no random numbers; None: there is none.
        last_recurrent: the call behind which a first pass over a block has all states; None: nothing is recurrent.
    """

    layers: Mapping[int, nn.Module]
    groups: tuple[tuple[int, ...], ...]
    leaves: tuple[str, ...] = ()
    last_recurrent: tuple[int, int] | None = None
    head: int | None = None

    def run(self, group: int, values: Values, view: View) -> Values:
        """Run a group of layers on what enters it; return what leaves it."""
        view.shared.update({name: value for name, value in values.items() if name != "x"})
        x = values["x"]
        for number in self.groups[group]:
            layer: Any = self.layers[number]
            view.enter(number, draws=number != self.head)
            x = layer(x, view)
            writes = getattr(layer, "writes", None)
            if writes is not None:
                view.shared[writes] = x
        return {"x": x, **{name: view.shared[name] for name in self._read_after(group) if name in view.shared}}

    def trains_before(self, group: int) -> bool:
        """Whether parameters of earlier groups are trained, so that a gradient of what enters the group is wanted."""
        before = [self.layers[number] for numbers in self.groups[:group] for number in numbers]
        return any(parameter.requires_grad for layer in before for parameter in layer.parameters())

    def _read_after(self, group: int) -> set[str]:
        """Return the names of shared values that are read behind a group."""
        later = [number for numbers in self.groups[group + 1 :] for number in numbers]
        return {name for number in later for name in getattr(self.layers[number], "reads", ())} | set(self.leaves)
