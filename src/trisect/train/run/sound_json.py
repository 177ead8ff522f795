"""JSON that may have come from anywhere: read within bounds, and its types compared with what a reader expects."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trisect.errors import CheckpointError

_LARGEST = 1 << 30  # bytes of a file
_DIGITS = 18  # of a whole number; longer ones are read as floats, so that arithmetic with them cannot fail
_SHOWN = 40


@dataclass(frozen=True)
class Kind:
    """A plain value: what it is called in a sentence, and whether a value is one."""

    words: str
    test: Callable[[Any], bool]


@dataclass(frozen=True)
class Each:
    """A mapping whose values all look like `value`, whatever their names."""

    value: Any


@dataclass(frozen=True)
class Maybe:
    """`value`, null, or not there at all."""

    value: Any


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


ANYTHING = Kind("anything", lambda value: True)
TEXT = Kind("a text", lambda value: isinstance(value, str))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
NUMBER = Kind("a number", _is_number)
FINITE = Kind("a finite number", lambda value: _is_number(value) and math.isfinite(value) and abs(value) < 1e300)
COUNT = Kind(
    "a whole number of at least 0", lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 0
)
# a mapping of names, a list of one form, `Each`, `Maybe`, or a `Kind`
Form = Any


def flaw_of(value: Any, form: Form, name: str = "") -> str | None:
    """Say where a value does not have a form, as the end of a sentence (`says world: 'x', and …`); None: it has it.

    A mapping may have more names than its form; those that are missing count as null.
    """
    if isinstance(form, Maybe):
        return None if value is None else flaw_of(value, form.value, name)
    if isinstance(form, Kind):
        return None if form.test(value) else _told(name, value, form.words)
    if isinstance(form, list):
        if not isinstance(value, list):
            return _told(name, value, "a list")
        flaws = (flaw_of(item, form[0], f"{name}[{number}]") for number, item in enumerate(value))
        return next((flaw for flaw in flaws if flaw is not None), None)
    if not isinstance(value, Mapping):
        return _told(name, value, "a mapping")
    names = value if isinstance(form, Each) else form
    for key in names:
        inner = form.value if isinstance(form, Each) else form[key]
        flaw = flaw_of(value.get(key), inner, f"{name}.{key}" if name else str(key))
        if flaw is not None:
            return flaw
    return None


def _told(name: str, value: Any, words: str) -> str:
    text = repr(value)
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return f"says {name[:80]}: {text}, and that must be {words}" if name else f"is {text}, and must be {words}"


def open_regular(path: Path, *, links: bool = False) -> int:
    """Open a file to read it; what is no file (a queue, a device), and unless `links` a link, raises an OSError."""
    handle = os.open(path, os.O_RDONLY | (0 if links else os.O_NOFOLLOW) | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(0, "it is no regular file")
    return handle


def read_bytes(path: Path) -> bytes:
    """Read a file of a run directory.

    Raises:
        FileNotFoundError: there is none.
        CheckpointError: it cannot be read, is no regular file, or absurdly large.
    """
    try:
        with os.fdopen(open_regular(path, links=True), "rb") as file:
            if os.fstat(file.fileno()).st_size > _LARGEST:
                raise CheckpointError(f"{path} is damaged: it is absurdly large.")
            return file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from None


def parse(text: bytes | str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: it is none, or nested too deeply.
    """
    try:
        return json.loads(text, parse_int=_whole)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= _DIGITS else float(digits)


def read_object(path: Path, form: Form) -> dict[str, Any]:
    """Read a file with one JSON object of a form.

    Raises:
        FileNotFoundError: there is none.
        CheckpointError: it is damaged, in one sentence.
    """
    try:
        value = parse(read_bytes(path))
    except ValueError:
        raise CheckpointError(f"{path} is damaged: it is not JSON.") from None
    flaw = flaw_of(value, form)
    if flaw is not None:
        raise CheckpointError(f"{path} is damaged: it {flaw}.")
    return dict(value)
