"""YAML text, overrides and layout texts → `Config`, each mistake as one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trisect.config.schema import Config
from trisect.errors import ConfigError
from trisect.layout import layout_mapping
from trisect.settings.reading import read_yaml
from trisect.settings.sentences import describe_error, keys_of, show
from trisect.settings.synonyms import SYNONYMS, with_our_names


def load_config(path: str | Path, overrides: Iterable[str] = (), layout: str | None = None) -> Config:
    """Give the configuration in the file `path`, with `a.b=c` overrides and a layout text on top."""
    path = Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ConfigError(f"The configuration {path} is no regular file; give a YAML file.")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"The configuration {path} does not exist; check the path.") from None
    except IsADirectoryError:
        raise ConfigError(f"The configuration {path} is a directory; give a YAML file.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not YAML: it is not UTF-8 text; save it as UTF-8.") from None
    except OSError as error:
        raise ConfigError(f"The configuration {path} cannot be read: {error.strerror}.") from None
    plain = read_yaml(text, str(path))
    if not isinstance(plain, dict):
        held = "is empty" if plain is None else f"holds {show(plain)}"
        table = path.suffix.lower() in (".csv", ".tsv", ".txt", ".gz")
        remedy = "; of a table make a graph first, with trisect data ingest" if table else ""
        keys = ", ".join(keys_of(Config))
        raise ConfigError(f"{path} {held}, but a configuration is a mapping with the keys {keys}{remedy}.")
    return parse_config(apply_overrides(plain, overrides, layout))


def parse_config(plain: Mapping[str, Any]) -> Config:
    """Give a configuration from plain data; the first mistake becomes a ConfigError of one sentence."""
    try:
        return Config.model_validate(dict(plain))
    except ValidationError as error:
        raise ConfigError(describe_error(error, Config)) from None


def apply_overrides(
    plain: Mapping[str, Any], overrides: Iterable[str] = (), layout: str | None = None
) -> dict[str, Any]:
    """Give a copy of `plain` with each `a.b=c` set (c read as YAML) and, where given, the layout replaced."""
    result: dict[str, Any] = {key: dict(value) if isinstance(value, dict) else value for key, value in plain.items()}
    if layout is not None:
        result["layout"] = layout_mapping(layout)
    for text in overrides:
        path, equals, value_text = text.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise ConfigError(f"--set is {text!r}, but must look like train.epochs=20.")
        keys = [SYNONYMS.get(key, key) for key in keys]
        if isinstance(result.get(keys[0]), dict) and len(keys) > 1:
            # what a file says under a setting's other name is replaced
            result[keys[0]] = with_our_names(result[keys[0]], keys[0])
        _set(result, keys, read_yaml(value_text, f"The value of --set {path}"))
    return result


_SHORT = {"task": "name", "history": "preset", "optimizer": "name", "scheduler": "name", "loss": "name"}


def _set(target: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = target.get(key)
        # `task: link-prediction` is short for {name: …}, and --set task.option=… adds to it
        inner = {_SHORT[key]: inner} if key in _SHORT and isinstance(inner, str) else inner
        inner = dict(inner) if isinstance(inner, dict) else {}
        target[key] = inner
        target = inner
    target[keys[-1]] = value
