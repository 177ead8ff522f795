"""Sentences about an unknown name, with the nearest allowed one, or all of them."""

from __future__ import annotations

from collections.abc import Iterable

from trisect.errors import nearest


def unknown_setting(path: str, name: str, names: Iterable[str]) -> str:
    """One sentence about the unknown `name` at the dotted `path` (empty at the top level).

    >>> unknown_setting("train", "epoch", ["epochs", "lr"])
    'train.epoch is not a setting; did you mean train.epochs?'
    """
    names = sorted(names)
    prefix = f"{path}." if path else ""
    close = nearest(name, names)
    if close is not None:
        return f"{prefix}{name} is not a setting; did you mean {prefix}{close}?"
    return f"{prefix}{name} is not a setting; {path or 'a configuration'} has {', '.join(names)}."


def unknown_value(path: str, value: str, names: Iterable[str]) -> str:
    """One sentence about a `value` of the setting `path` that is none of the allowed `names`."""
    names = sorted(names)
    close = nearest(value, names)
    hint = "." if close is None else f"; did you mean {close!r}?"
    return f"{path} is {value!r}, but must be one of {', '.join(names)}{hint}"
