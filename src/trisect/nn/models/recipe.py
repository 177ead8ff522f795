"""`Recipe`: a model as a list of layers yet to be built.

A stage builds its own layers and no others, with the parameters that they have in the whole model; a planner reads the
widths from layers built on the `meta` device, which takes no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from trisect.nn.base import Layer, Model, Normalisation
from trisect.nn.initial import generator_for
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
        """Build layer `index` of the model; its parameters are a function of (seed, index) alone."""
        layer = self.layers[index]()
        if seed is not None:
            layer.reset_parameters(generator_for(seed, index))
        return layer

    def outline(self) -> list[Any]:
        """Build all layers on the `meta` device: widths, no memory."""
        with torch.device("meta"):
            return [make() for make in self.layers]

    def build_head(self, seed: int | None = None) -> Layer | None:
        """Build the head, from (seed, number of layers)."""
        head = None if self.head is None else self.head()
        if head is not None and seed is not None:
            head.reset_parameters(generator_for(seed, len(self.layers)))
        return head

    def of(self, layers: Sequence[Any], head: Layer | None) -> Model:
        """Return the model of layers that were built."""
        return self.kind(layers, head, normalisation=self.normalisation, self_loops=self.self_loops)

    def model(self, seed: int) -> Model:
        """Build all layers as one model, with parameters drawn from the seed."""
        return self.of([self.layer(index, seed) for index in range(len(self.layers))], self.build_head(seed))


class DynamicRecipe(Recipe):
    """A dynamic model."""

    kind: ClassVar[type[Model]] = DynamicModel
