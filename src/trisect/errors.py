"""The errors that Trisect shows to its users: one sentence that names the field, the value and the remedy."""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable

# errors of a system that say nothing of the file at hand: an attempt that comes later may succeed
TRANSIENT = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class TrisectError(Exception):
    """A failure with a message for the user. The command line prints it alone and leaves with `exit_code`."""

    exit_code = 2


class ConfigError(TrisectError):
    """A setting is unknown, has the wrong type, or does not fit the others."""

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message))


class DataError(TrisectError):
    """A file, a table or an array given as data cannot be used."""

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message))


class LayoutError(TrisectError):
    """A layout does not fit the ranks, the layers, the graph or the timeline."""


class CheckpointError(TrisectError):
    """A checkpoint or a run directory is missing, damaged, or belongs to another run."""


class RunError(TrisectError):
    """Training began and cannot go on (a rank died, the loss is not finite)."""

    exit_code = 1


class FaultError(RunError):
    """The machine is at fault, or a process that was ended: the run may well go on when it is started again.

    Attributes:
        unexpected: whether it is an exception that nobody foresaw, and that may come again.
    """

    unexpected = False


class StoppedError(TrisectError):
    """A run was asked to end. (Left as KeyboardInterrupt, typer would end the process without a word.)"""

    exit_code = 143


_LONGEST = 1000


def one_line(message: str) -> str:
    """Give a message as one line of bounded length, whatever a user's file has put into it."""
    text = "".join(mark if mark.isprintable() else " " for mark in message[: 4 * _LONGEST])
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"


# what other libraries call an option, where it does not look like our name
_ELSEWHERE = {"learning_rate": "lr", "wd": "weight_decay", "validation": "val", "valid": "val"}


# what is often looked for, and is not there; each is the end of a sentence
_MISSING = {
    **dict.fromkeys(
        ("graph-classification", "graph-regression", "graph-prediction"),
        "tasks that label whole graphs are not supported",
    ),
    **dict.fromkeys(
        ("multi-label", "multilabel"),
        "a vertex has one class; several labels of it are targets of 0 and 1, y [vertices, labels], of node-regression,"
        " which takes them without an option",
    ),
}
_CLOSE, _CLOSE_PART = 0.6, 0.5  # least likeness of a name, and of each of its parts


def nearest(word: str, names: Iterable[str]) -> str | None:
    """Return the name that looks most like `word`, or None where nothing is close.

    A name of several parts (`edge-classification`) is close only where each part is.
    """
    word = word.lower()
    spelled = {name.lower(): name for name in names}
    if _ELSEWHERE.get(word) in spelled:
        return spelled[_ELSEWHERE[word]]
    alike = [name for name in spelled if _parts_alike(word, name)]
    close = difflib.get_close_matches(word, alike, n=1, cutoff=_CLOSE)
    return spelled[close[0]] if close else None


def _parts_alike(word: str, name: str) -> bool:
    own, others = (re.split(r"[-_. ]+", text) for text in (word, name))
    if len(own) != len(others):
        return True
    return all(difflib.SequenceMatcher(None, a, b).ratio() >= _CLOSE_PART for a, b in zip(own, others, strict=True))


def missing(word: str) -> str | None:
    """Return why there is nothing of this name, where it is known to be looked for; the end of a sentence."""
    return _MISSING.get(re.sub(r"[_ ]+", "-", word.lower()))


def unknown(kind: str, word: str, names: Iterable[str]) -> str:
    """One sentence for an unknown name: what it is, the nearest known one, or all of them where none is near."""
    every = list(names)
    near = nearest(word, every)
    if near is not None:
        return f"unknown {kind} {word!r}; did you mean {near!r}?"
    return f"unknown {kind} {word!r}; known: {', '.join(every)}."
