"""Models yet to be made: by name, or the caller's own; in full, in outline, or one stage of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trisect.nn.base import Model
from trisect.nn.models.recipe import Recipe
from trisect.nn.models.registry import DYNAMIC, recipe
from trisect.nn.models.registry import options as model_options

AnyModel = Model
ModelMaker = Callable[[int, int | None], AnyModel]


@dataclass(frozen=True)
class NamedModel:
    """A model of the registry. Its parameters are a function of the seed and the number of the layer.

    Called without `out_channels`, it gives embeddings as wide as its hidden layers.
    """

    name: str
    options: dict[str, Any]
    seed: int

    def __call__(self, in_channels: int, out_channels: int | None, edge_channels: int = 0) -> AnyModel:
        """Make the model with all its layers."""
        return self.recipe(in_channels, out_channels, edge_channels).model(self.seed)

    def recipe(self, in_channels: int, out_channels: int | None, edge_channels: int = 0) -> Recipe:
        """Return the layers, yet to be built."""
        chosen = dict(self.options)
        if out_channels is None:
            out_channels = chosen.get("hidden", model_options(self.name)["hidden"].default)
            if self.name in DYNAMIC:
                chosen["head"] = False  # the decoder reads embeddings
        return recipe(self.name, in_channels, int(out_channels or 0), edge_channels, **chosen)

    def outline(self, in_channels: int, out_channels: int | None, edge_channels: int = 0) -> AnyModel:
        """Return the model on the `meta` device: widths and declarations, no memory."""
        return self.stage(in_channels, out_channels, range(0), edge_channels, last=False)

    def stage(
        self, in_channels: int, out_channels: int | None, own: range, edge_channels: int = 0, *, last: bool
    ) -> AnyModel:
        """Make the layers of one stage, and the head if it is the last; all else is on the `meta` device."""
        return self.recipe(in_channels, out_channels, edge_channels).model(self.seed, own, last=last)


@dataclass(frozen=True, eq=False)
class HandedModel:
    """A model that another process made and handed over to this one, which may change it."""

    model: AnyModel


# what `Setup.of` and `cut_data` take
ModelSource = AnyModel | ModelMaker | HandedModel


def outline_of(maker: ModelSource, in_channels: int, out_channels: int | None, edge_channels: int = 0) -> AnyModel:
    """Return the model for its widths and declarations; its parameters may lie on the `meta` device."""
    if isinstance(maker, NamedModel):
        return maker.outline(in_channels, out_channels, edge_channels)
    return full_model(maker, in_channels, out_channels)


def full_model(maker: ModelSource, in_channels: int, out_channels: int | None, edge_channels: int = 0) -> AnyModel:
    """Return the model with all its parameters."""
    if isinstance(maker, HandedModel):
        return maker.model
    if isinstance(maker, NamedModel):
        return maker(in_channels, out_channels, edge_channels)
    return maker if isinstance(maker, Model) else maker(in_channels, out_channels)


def stage_of(
    maker: ModelSource,
    in_channels: int,
    out_channels: int | None,
    own: range,
    edge_channels: int = 0,
    *,
    last: bool,
) -> AnyModel:
    """Make the model of which one stage is to be run. Only the layers of that stage need memory, where possible.

    Args:
        own: the numbers of its layers.
        edge_channels: the features of an edge that the data have.
        last: whether it is the last stage, which has the head.
    """
    if isinstance(maker, NamedModel):
        return maker.stage(in_channels, out_channels, own, edge_channels, last=last)
    model = full_model(maker, in_channels, out_channels)
    if isinstance(maker, HandedModel):
        others = [layer for number, layer in enumerate(model.layers) if number not in own]
        for layer in others if last or model.head is None else [*others, model.head]:
            layer.to("meta")
    return model
