"""`Recipe`: a model as a list of layers yet to be built.

A stage builds its own layers and no others, with the parameters that they have in the whole model; a planner reads the
widths from layers built on the `meta` device, which takes no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from trisect.nn.base import Layer, Model, Normalisation
from trisect.nn.initial import generator_for
from trisect.nn.temporal.dynamic import DynamicLayer, DynamicModel


@dataclass(frozen=True)
class Recipe:
    """A static model.

    Attributes:
        layers: makers of the layers, in order.
        normalisation, self_loops: how the graph is to be prepared.
    """

    layers: tuple[Callable[[], Layer], ...]
    normalisation: Normalisation = "symmetric"
    self_loops: bool = True

    def layer(self, index: int, seed: int | None = None) -> Layer:
        """Build layer `index` of the model; its parameters are a function of (seed, index) alone."""
        layer = self.layers[index]()
        if seed is not None:
            layer.reset_parameters(generator_for(seed, index))
        return layer

    def outline(self) -> list[Layer]:
        """Build all layers on the `meta` device: widths and declarations, no memory."""
        with torch.device("meta"):
            return [make() for make in self.layers]

    def model(self, seed: int) -> Model:
        """Build all layers as one model, with parameters drawn from the seed."""
        layers = [self.layer(index, seed) for index in range(len(self.layers))]
        return Model(layers, normalisation=self.normalisation, self_loops=self.self_loops)


@dataclass(frozen=True)
class DynamicRecipe:
    """A dynamic model; as `Recipe`, with a head that counts as the layer after the last."""

    layers: tuple[Callable[[], DynamicLayer], ...]
    head: Callable[[], Layer] | None = None
    normalisation: Normalisation = "symmetric"
    self_loops: bool = True

    def layer(self, index: int, seed: int | None = None) -> DynamicLayer:
        """Build layer `index` of the model; its parameters are a function of (seed, index) alone."""
        layer = self.layers[index]()
        if seed is not None:
            layer.reset_parameters(generator_for(seed, index))
        return layer

    def outline(self) -> list[DynamicLayer]:
        """Build all layers on the `meta` device: widths and declarations, no memory."""
        with torch.device("meta"):
            return [make() for make in self.layers]

    def build_head(self, seed: int | None = None) -> Layer | None:
        """Build the head, from (seed, number of layers)."""
        if self.head is None:
            return None
        head = self.head()
        if seed is not None:
            head.reset_parameters(generator_for(seed, len(self.layers)))
        return head

    def model(self, seed: int) -> DynamicModel:
        """Build all layers as one model, with parameters drawn from the seed."""
        layers = [self.layer(index, seed) for index in range(len(self.layers))]
        head = self.build_head(seed)
        return DynamicModel(layers, head, normalisation=self.normalisation, self_loops=self.self_loops)
