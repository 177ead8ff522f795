"""`Recipe`: a model as a list of layers yet to be built.

A stage builds its own layers and no others, with the parameters that they have in the whole model; a planner reads the
widths from layers built on the `meta` device, which takes no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from trisect.nn.base import Layer, Model, Normalisation
from trisect.nn.initial import seeded
from trisect.nn.temporal.dynamic import DynamicModel


@dataclass(frozen=True)
class Recipe:
    """A static model.

    Attributes:
        layers: makers of the layers, in order.
        head: makes the head, which counts as the layer after the last; None: there is none.
        normalisation, self_loops: how the graph is to be prepared.
    """

    layers: tuple[Callable[[], Any], ...]
    head: Callable[[], Layer] | None = None
    normalisation: Normalisation = "symmetric"
    self_loops: bool = True

    kind: ClassVar[type[Model]] = Model

    def layer(self, index: int, seed: int | None = None) -> Any:
        """Build a layer, or the head behind the last one; its parameters are a function of (seed, index) alone.

        Args:
            seed: None: it is on the `meta` device, with widths and no memory.
        """
        make = [*self.layers, self.head][index]
        with torch.device("meta") if seed is None else seeded(seed, index):
            return None if make is None else make()

    def outline(self) -> list[Any]:
        """Build all layers on the `meta` device."""
        return [self.layer(index) for index in range(len(self.layers))]

    def model(self, seed: int, own: range | None = None, *, last: bool = True) -> Model:
        """Build a model, with parameters drawn from the seed.

        Args:
            own: of these layers alone; the others are on the `meta` device. None: of all.
            last: whether the head's are drawn too.
        """
        count = len(self.layers)
        layers = [self.layer(index, seed if own is None or index in own else None) for index in range(count)]
        head = self.layer(count, seed if last else None)
        return self.kind(layers, head, normalisation=self.normalisation, self_loops=self.self_loops)


class DynamicRecipe(Recipe):
    """A dynamic model."""

    kind: ClassVar[type[Model]] = DynamicModel
