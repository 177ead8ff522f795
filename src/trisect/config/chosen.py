"""Settings that are a name, a name with options, or an object of Python: an optimizer, a scheduler, a loss, metrics."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trisect.settings.nearest import unknown_value
from trisect.settings.sentences import show

OBJECT = "object"
"""The key under which config.yaml names an object of Python in words."""

Check = Callable[[Any], Any]


def choice_of(names: Iterable[str], wanted: str) -> Check:
    """Return the check of a setting that is one of `names`, {name: …, options}, or made in Python.

    Names are taken in any case. What is made in Python is a function, a class, or a class and its options.

    Args:
        wanted: what a function or a class is, in words.
    """
    spelled = {name.lower(): name for name in names}

    def named(name: str) -> str:
        if name.lower() not in spelled:
            raise ValueError(unknown_value("", name, spelled.values()).strip().removesuffix("."))
        return spelled[name.lower()]

    def check(value: Any) -> Any:
        if value is None or _is_worded(value) or (callable(value) and not hasattr(value, "param_groups")):
            return value
        if isinstance(value, str):
            return named(value)
        if isinstance(value, Mapping) and isinstance(value.get("name"), str):
            return {**value, "name": named(value["name"])}
        pair = isinstance(value, (tuple, list)) and len(value) == 2
        if pair and callable(value[0]) and isinstance(value[1], Mapping):
            return value[0], dict(value[1])
        raise ValueError(f"is {show(value)}, but must be a name, {{name: …, options}}, or in Python {wanted}")

    return check


def functions_by_name(value: Any) -> Any:
    """Check a setting that is a mapping of names to functions."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"is {show(value)}, but must be a mapping of names to functions")
    for name, function in value.items():
        if not callable(function) and not _is_worded(function):
            raise ValueError(f"has {name}: {show(function)}, which is no function; it is given in Python")
        if "." in name:
            raise ValueError(f"has the name {name!r}; leave out the point, which stands between split and measure")
    return dict(value)


def objects_with(methods: Iterable[str]) -> Check:
    """Return the check of a setting that is a list of objects, each of which has one of these methods or more."""
    methods = tuple(methods)

    def check(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"is {show(value)}, but must be a list")
        for each in value:
            if not _is_worded(each) and not any(callable(getattr(each, method, None)) for method in methods):
                raise ValueError(f"has {show(each)}, which has none of the methods {', '.join(methods)}")
        return tuple(value)

    return check


def is_plain(value: Any) -> bool:
    """Whether a setting is plain data, which a file can hold."""
    if isinstance(value, Mapping):
        return all(map(is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def in_words(value: Any) -> Any:
    """Return a setting as plain data, with objects of Python named in words that are the same in each process."""
    if isinstance(value, tuple) and len(value) == 2 and callable(value[0]):
        options = ", ".join(f"{name}={in_words(option)!r}" for name, option in value[1].items())
        return {OBJECT: f"{_name_of(value[0])}({options})"}
    if isinstance(value, Mapping):
        return {key: in_words(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [in_words(inner) for inner in value]
    return value if is_plain(value) else {OBJECT: _name_of(value)}


def made_in_python(value: Any) -> str | None:
    """Return the words for an object of Python that a setting has in it, or None."""
    if _is_worded(value):
        return str(value[OBJECT])
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return next((words for words in map(made_in_python, inner) if words is not None), None)


def _is_worded(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == {OBJECT} and isinstance(value[OBJECT], str)


def _name_of(value: Any) -> str:
    if isinstance(value, functools.partial):
        options = ", ".join(f"{name}={in_words(option)!r}" for name, option in value.keywords.items())
        return f"{_name_of(value.func)}({options})"
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"
