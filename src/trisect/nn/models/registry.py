"""Models by name: `build` makes one, and `options` lists the options of one.

The names are those of `config/names.py`; each is made by the function of the same name in `static_models` or
`dynamic_models`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from trisect.config.names import DYNAMIC_MODELS, MODELS, STATIC_MODELS, identifier
from trisect.errors import ConfigError, unknown
from trisect.nn.base import Model, edge_channels_of
from trisect.nn.models import dynamic_models, static_models
from trisect.nn.models.recipe import DynamicRecipe, Recipe
from trisect.settings.synonyms import with_our_names

STATIC: Mapping[str, Callable[..., Recipe]] = {name: getattr(static_models, identifier(name)) for name in STATIC_MODELS}
DYNAMIC: Mapping[str, Callable[..., DynamicRecipe]] = {
    name: getattr(dynamic_models, identifier(name)) for name in DYNAMIC_MODELS
}
NAMES = MODELS


@dataclass(frozen=True)
class Option:
    """One option of a model: its name, its default, its type, and what is allowed where that is a list."""

    name: str
    default: Any
    kind: type
    allowed: tuple[str, ...] = ()


def options(name: str) -> dict[str, Option]:
    """These are the options of a model, by name."""
    maker = _maker(name)
    hints = get_type_hints(maker)
    result = {}
    for parameter in inspect.signature(maker).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            hint = hints[parameter.name]
            if type(None) in get_args(hint):  # an option that may be left out
                hint = get_args(hint)[0]
            allowed = get_args(hint) if get_origin(hint) is Literal else ()
            result[parameter.name] = Option(parameter.name, parameter.default, str if allowed else hint, allowed)
    return result


def recipe(name: str, in_channels: int, out_channels: int, edge_channels: int = 0, **chosen: Any) -> Recipe:
    """Describe the named model as a list of layers that are yet to be built.

    Args:
        edge_channels: the features of an edge that the data have; a model that reads none lets them be.
    """
    allowed, chosen = options(name), with_our_names(chosen, f"model {name}")
    for key, value in chosen.items():
        if key not in allowed:
            raise ConfigError(unknown(f"option of model {name}", key, allowed))
        _check(name, allowed[key], value)
    _check_width("in_channels", in_channels)
    _check_width("out_channels", out_channels)
    maker = _maker(name)
    if "edge_channels" in inspect.signature(maker).parameters:
        return maker(in_channels, out_channels, edge_channels, **chosen)
    return maker(in_channels, out_channels, **chosen)


def reads_edges(name: str, **chosen: Any) -> bool:
    """Whether the named model with these options reads the features of edges, where there are any."""
    layers = recipe(name, 1, 1, 1, **chosen).outline()
    return edge_channels_of(part for layer in layers for part in layer.modules()) > 0


def build(
    name: str, in_channels: int, out_channels: int, *, edge_channels: int = 0, seed: int = 0, **chosen: Any
) -> Model:
    """Make the named model, with its parameters drawn from the seed.

    Layer i's parameters are a function of (seed, i): a stage that builds layer i alone, by `recipe(…).layer(i,
    seed)`, gets the same values.

    Args:
        name: one of `NAMES`.
        in_channels, out_channels: widths of the features and of the output.
        edge_channels: the features of an edge, for models that read them.
        seed: of the parameters.
        **chosen: of `options(name)`; an unknown one is refused, with the nearest one in the message.
    """
    return recipe(name, in_channels, out_channels, edge_channels, **chosen).model(seed)


def _maker(name: str) -> Callable[..., Recipe]:
    if name in STATIC:
        return STATIC[name]
    if name in DYNAMIC:
        return DYNAMIC[name]
    raise ConfigError(unknown("model", str(name), NAMES))


def _check(model: str, option: Option, value: Any) -> None:
    """Refuse a value of the wrong type or out of range."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
    right, wanted = {
        bool: (isinstance(value, bool), "give true or false."),
        int: (number and isinstance(value, int) and value >= 1, "give a whole number from 1."),
        float: (number, "give a number."),
    }.get(option.kind, (not option.allowed or value in option.allowed, f"allowed: {', '.join(option.allowed)}."))
    if right and option.name in _FRACTIONS and not 0.0 <= value < 1.0:
        right, wanted = False, "give a number from 0 up to, but not including, 1."
    if not right:
        raise ConfigError(f"option {option.name} of model {model} is {value!r}; {wanted}")


_FRACTIONS = ("dropout", "input_dropout", "attention_dropout", "alpha")


def _check_width(name: str, value: int) -> None:
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} is {value!r}; give a whole number from 1.")
