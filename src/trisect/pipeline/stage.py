"""`Stage`: the layers of one rank in groups, and the graphs of autograd that run through a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from trisect.ops.backward import run_backward
from trisect.views.along import BlockEndedError
from trisect.views.leaves import leaves_of
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

    def _read_after(self, group: int) -> set[str]:
        """Return the names of shared values that are read behind a group."""
        later = [number for numbers in self.groups[group + 1 :] for number in numbers]
        return {name for number in later for name in getattr(self.layers[number], "reads", ())} | set(self.leaves)


@dataclass(eq=False)
class Graph:
    """A group that went forward with all that backward needs: its leaves, and where backward begins.

    Attributes:
        entered: the gradients of what entered it, by name, once backward has found them.
        roots: what left it.
        token: from which backward reaches all that moves rows or keeps states.
    """

    entered: Values = field(default_factory=dict)
    roots: dict[str, GradientEdge] = field(default_factory=dict)
    token: GradientEdge | None = None
    loss_dtype: torch.dtype = torch.float32
    device: torch.device | None = None

    def backward(self, gradients: Mapping[str, Tensor]) -> Values:
        """Go back from the gradients of what left; return those of what entered."""
        roots: list[tuple[GradientEdge | Tensor, Tensor]] = []
        for name, root in self.roots.items():
            if name == "loss":
                roots.append((root, torch.ones((), dtype=self.loss_dtype, device=self.device)))
            elif name in gradients:
                roots.append((root, gradients[name]))
        if self.token is not None:
            roots.append((self.token, torch.zeros(())))
        if roots:
            run_backward(roots)
        self.roots, self.token = {}, None
        return self.entered


def run_plain(stage: Stage, group: int, values: Values, view: View) -> Values | None:
    """Run a group without gradients; return what leaves it, or None where the pass ended behind its states."""
    with torch.no_grad():
        try:
            return stage.run(group, values, view)
        except BlockEndedError:
            return None


def record(
    stage: Stage, group: int, values: Values, view: View, trained: set[str], ends: Ends | None
) -> tuple[Values, Graph]:
    """Run a group with gradients on; return what leaves it, and its graph.

    Args:
        trained: the names of values of which a gradient is wanted.
        ends: makes the loss of what leaves the last group, which then is all that leaves it; None: nothing does.
    """
    graph, entered = Graph(), dict(values)
    entered.update(leaves_of({name: values[name] for name in sorted(trained)}, graph.entered))
    left = stage.run(group, entered, view)
    if ends is not None:
        loss = ends(view, left["x"])
        left, graph.loss_dtype, graph.device = {"loss": loss}, loss.dtype, loss.device
    graph.roots = {name: get_gradient_edge(value) for name, value in left.items() if value.requires_grad}
    if view.token is not None:
        graph.token = get_gradient_edge(view.token)
    return left, graph
