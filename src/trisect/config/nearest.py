"""What to say about a name that nobody knows: the nearest known one, or all of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown(path: str, name: str, known: Iterable[str]) -> str:
    """One sentence about the unknown `name` at the dotted `path` (empty at the top level).

    >>> unknown("train", "epoch", ["epochs", "lr"])
    'train.epoch is not a setting; did you mean train.epochs?'
    """
    names = sorted(known)
    prefix = f"{path}." if path else ""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"{prefix}{name} is not a setting; did you mean {prefix}{close[0]}?"
    return f"{prefix}{name} is not a setting; {path or 'a configuration'} knows {', '.join(names)}."


def unknown_value(path: str, value: str, known: Iterable[str]) -> str:
    """One sentence about a `value` of the setting `path` that is none of the `known` ones."""
    names = sorted(known)
    close = difflib.get_close_matches(value, names, n=1, cutoff=0.6)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return f"{path} is {value!r}, but must be one of {', '.join(names)}{hint}"
