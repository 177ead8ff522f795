"""What pydantic says about a mistake → one sentence with the field, the value and what is allowed."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.dataclasses import is_pydantic_dataclass
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from trisect.settings.nearest import unknown_setting, unknown_value

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


def describe_error(error: ValidationError, section: type, path: tuple[str, ...] = ()) -> str:
    """Give the first mistake in one sentence.

    Args:
        section: the class that was to be made, a pydantic model or dataclass.
        path: where the section stands in a configuration.
    """
    details = error.errors(include_url=False)
    # an unknown key often causes the "missing" beside it, and names the remedy better
    first = min(details, key=lambda item: item["type"] not in _UNKNOWN)
    return _describe(first, section, path)


def describe_value(path: str, value: Any, error: ValidationError) -> str:
    """Give all that a single value might have been in one sentence, of a type that may be one of several."""
    details = error.errors(include_url=False)
    words: list[str] = []
    for detail in details:
        if detail["type"] == "literal_error":
            words += re.findall(r"'([^']*)'", str(detail.get("ctx", {}).get("expected", "")))
    if len(details) == 1 and words and isinstance(value, str):
        return unknown_value(path, value, words)
    kinds = (
        _expected(detail["type"], detail.get("ctx", {})) for detail in details if detail["type"] != "literal_error"
    )
    return f"{path} is {show(value)}, but must be {', or '.join(dict.fromkeys((*kinds, *words)))}."


def keys_of(section: type) -> Mapping[str, FieldInfo]:
    """Give the settings of a section, by name."""
    fields: Mapping[str, FieldInfo] = getattr(section, "model_fields", None) or getattr(section, "__pydantic_fields__")  # noqa: B009
    return fields


def show(value: Any) -> str:
    """Give a value that was given, short enough for a sentence."""
    if value is None:
        return "empty"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _describe(detail: ErrorDetails, section: type, prefix: tuple[str, ...]) -> str:
    keys = [str(part) for part in detail["loc"]]
    path = ".".join((*prefix, *keys)) or "The configuration"
    kind, value, context = detail["type"], detail.get("input"), detail.get("ctx", {})
    if kind in _UNKNOWN:
        below = [f"{name}.{keys[0]}" for name, field in keys_of(section).items() if _has(field.annotation, keys[0])]
        if len(keys) == 1 and not prefix and below:
            return f"{keys[0]} is not a setting; did you mean {below[0]}?"
        return unknown_setting(".".join((*prefix, *keys[:-1])), keys[-1], keys_of(_inner(section, keys[:-1])))
    if kind == "missing":
        return f"{path} is missing; {_allowed(section, keys)}."
    if kind == "value_error":
        sentence = f"{path} {context['error']}"
        return sentence if sentence.endswith("?") else f"{sentence}."
    if kind == "literal_error":
        names = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        if isinstance(value, str):
            return unknown_value(path, value, names)
        return f"{path} is {show(value)}, but must be one of {', '.join(names)}."
    return f"{path} is {show(value)}, but must be {_expected(kind, context)}."


def _expected(kind: str, context: Mapping[str, Any]) -> str:
    bounds = {"greater_than": "gt", "greater_than_equal": "ge", "less_than": "lt", "less_than_equal": "le"}
    words = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    if kind in bounds:
        return f"{words[bounds[kind]]} {context[bounds[kind]]:g}"
    return {
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "float_type": "a number",
        "finite_number": "a finite number",
        "bool_type": "true or false",
        "string_type": "a text",
        "model_type": "a mapping of settings",
        "model_attributes_type": "a mapping of settings",
        "dataclass_type": "a mapping of settings",
        "dict_type": "a mapping of settings",
        "sequence_str": "a list",
        "list_type": "a list",
        "tuple_type": "a list",
        "is_instance_of": "a list",
        "none_required": "empty",
    }.get(kind, kind.replace("_", " "))


def _has(annotation: Any, key: str) -> bool:
    """Say whether an annotation is a section with a setting of this name."""
    inner = _section_in(annotation)
    return inner is not None and key in keys_of(inner)


def _inner(section: type, keys: Iterable[str]) -> type:
    """Give the section that the keys lead to; where they lead to none, the last section before that."""
    for key in keys:
        fields = keys_of(section)
        inner = _section_in(fields[key].annotation) if key in fields else None
        if inner is None:
            return section
        section = inner
    return section


def _section_in(annotation: Any) -> type | None:
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_pydantic_dataclass(annotation)):
        return annotation
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return next(filter(None, map(_section_in, typing.get_args(annotation))), None)
    return None


def _allowed(section: type, keys: list[str]) -> str:
    inner = _inner(section, keys)
    if inner is not _inner(section, keys[:-1]):
        return f"it is a section with the keys {', '.join(keys_of(inner))}"
    fields = keys_of(inner)
    literals = typing.get_args(fields[keys[-1]].annotation) if keys[-1] in fields else ()
    return f"give one of {', '.join(map(str, literals))}" if literals else "give a value"
