"""Sentences about an unknown name, with the nearest allowed one, or all of them."""

from __future__ import annotations

from collections.abc import Iterable

from trisect.errors import missing, nearest


def unknown_setting(path: str, name: str, names: Iterable[str]) -> str:
    """One sentence about the unknown `name` at the dotted `path` (empty at the top level).

    >>> unknown_setting("train", "epoch", ["epochs", "lr"])
    'train.epoch is not a setting; did you mean train.epochs?'
    """
    names = sorted(names)
    prefix = f"{path}." if path else ""
    close, why = nearest(name, names), missing(name)
    if why is not None:
        return f"{prefix}{name} is not a setting; {why}."
    if close is not None:
        return f"{prefix}{name} is not a setting; did you mean {prefix}{close}?"
    return f"{prefix}{name} is not a setting; {path or 'a configuration'} has {', '.join(names)}."


def unknown_value(path: str, value: str, names: Iterable[str]) -> str:
    """One sentence about a `value` of the setting `path` that is none of the allowed `names`."""
    names = sorted(names)
    close, why = nearest(value, names), missing(value)
    hint = "." if close is None else f"; did you mean {close!r}?"
    hint = hint if why is None else f"; {why}."
    return f"{path} is {value!r}, but must be one of {', '.join(names)}{hint}"
