"""YAML text, overrides and layout texts → `Config`, each mistake as one sentence."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trisect.config.nearest import unknown_setting, unknown_value
from trisect.config.schema import Config, LayoutConfig
from trisect.errors import ConfigError, LayoutError


class _Loader(yaml.SafeLoader):
    """The safe loader, with numbers like 1e-3 read as numbers and a key given twice refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1 wants a point in a float, so that its "1e-3" is a text; everyone who writes it means the number
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def read_yaml(text: str, source: str) -> Any:
    """The plain data in `text`; `source` says in errors where it stood."""
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{source} is not YAML: {problem}{where}.") from None
    finally:
        loader.dispose()


def load_config(path: str | Path, overrides: Iterable[str] = (), layout: str | None = None) -> Config:
    """The configuration in the file `path`, with `a.b=c` overrides and a layout text on top."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"The configuration {path} does not exist.") from None
    except IsADirectoryError:
        raise ConfigError(f"The configuration {path} is a directory; give a YAML file.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not YAML: it is not UTF-8 text.") from None
    except OSError as error:
        raise ConfigError(f"The configuration {path} cannot be read: {error.strerror}.") from None
    plain = read_yaml(text, str(path))
    if not isinstance(plain, dict):
        raise ConfigError(
            f"{path} holds {_shown(plain)}, but a configuration is a mapping with the keys {_keys(Config)}."
        )
    return parse_config(apply_overrides(plain, overrides, layout))


def parse_config(plain: Mapping[str, Any]) -> Config:
    """A configuration from plain data; the first mistake becomes a ConfigError of one sentence."""
    try:
        return Config.model_validate(dict(plain))
    except ValidationError as error:
        raise ConfigError(_sentence(error, Config)) from None


def apply_overrides(
    plain: Mapping[str, Any], overrides: Iterable[str] = (), layout: str | None = None
) -> dict[str, Any]:
    """A copy of `plain` with each `a.b=c` set (c read as YAML) and, where given, the layout replaced."""
    result: dict[str, Any] = {key: dict(value) if isinstance(value, dict) else value for key, value in plain.items()}
    if layout is not None:
        result["layout"] = layout_mapping(layout)
    for text in overrides:
        path, equals, value_text = text.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise ConfigError(f"--set is {text!r}, but must look like train.epochs=20.")
        _set(result, keys, read_yaml(value_text, f"The value of --set {path}"))
    return result


_SHORT = {"task": "name", "history": "preset"}


def _set(target: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = target.get(key)
        # `task: link-prediction` is short for {name: …}, and --set task.option=… adds to it
        inner = {_SHORT[key]: inner} if key in _SHORT and isinstance(inner, str) else inner
        inner = dict(inner) if isinstance(inner, dict) else {}
        target[key] = inner
        target = inner
    target[keys[-1]] = value


def parse_layout(text: str) -> LayoutConfig:
    """A layout from a text such as `vertex=2,layer=2`, or `auto`."""
    plain = layout_mapping(text)
    try:
        return LayoutConfig.model_validate({"auto": True} if plain == "auto" else plain)
    except ValidationError as error:
        raise LayoutError(_sentence(error, LayoutConfig, ("layout",))) from None


def layout_mapping(text: str) -> dict[str, Any] | str:
    """`vertex=2,layer=2` as plain data for the section `layout`; `auto` stays `auto`."""
    if text.strip() == "auto":
        return "auto"
    result: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = item.partition("=")
        if not equals or not value.strip():
            raise LayoutError(f"The layout is {text!r}, but must look like vertex=2,layer=2 or be auto.")
        if key.strip() in result:
            raise LayoutError(f"The layout is {text!r}, which gives {key.strip()} twice; give it once.")
        result[key.strip()] = read_yaml(value, f"The layout's {key.strip()}")
    if not result:
        raise LayoutError(f"The layout is {text!r}, but must look like vertex=2,layer=2 or be auto.")
    return result


def _sentence(error: ValidationError, model: type[BaseModel], prefix: tuple[str, ...] = ()) -> str:
    details = error.errors(include_url=False)
    # an unknown key often causes the "missing" beside it, and names the remedy better
    first = min(details, key=lambda item: item["type"] != "extra_forbidden")
    return _describe(first, model, prefix)


def _describe(detail: ErrorDetails, model: type[BaseModel], prefix: tuple[str, ...]) -> str:
    place = [str(part) for part in detail["loc"]]
    path = ".".join((*prefix, *place)) or "The configuration"
    kind, value, context = detail["type"], detail.get("input"), detail.get("ctx", {})
    if kind == "extra_forbidden":
        owner = _section(model, place[:-1])
        return unknown_setting(".".join((*prefix, *place[:-1])), place[-1], owner.model_fields)
    if kind == "missing":
        return f"{path} is missing; {_allowed(model, place)}."
    if kind == "value_error":
        return f"{path} {context['error']}."
    if kind == "literal_error":
        known = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        if isinstance(value, str):
            return unknown_value(path, value, known)
        return f"{path} is {_shown(value)}, but must be one of {', '.join(known)}."
    return f"{path} is {_shown(value)}, but must be {_expected(kind, context)}."


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
        "dict_type": "a mapping of settings",
    }.get(kind, kind.replace("_", " "))


def _section(model: type[BaseModel], keys: Iterable[str]) -> type[BaseModel]:
    for key in keys:
        found = _inner_model(model.model_fields[key].annotation) if key in model.model_fields else None
        if found is None:
            return model
        model = found
    return model


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return next(filter(None, map(_inner_model, typing.get_args(annotation))), None)
    return None


def _allowed(model: type[BaseModel], place: list[str]) -> str:
    section = _section(model, place)
    if section is not _section(model, place[:-1]):
        return f"it is a section with the keys {_keys(section)}"
    literals = typing.get_args(section.model_fields[place[-1]].annotation) if place[-1] in section.model_fields else ()
    return f"give one of {', '.join(map(str, literals))}" if literals else "give a value"


def _keys(model: type[BaseModel]) -> str:
    return ", ".join(model.model_fields)


def _shown(value: Any) -> str:
    if value is None:
        return "empty"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
