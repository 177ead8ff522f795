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


class MismatchError(RunError):
    """Ranks asked different things of their views, so that rows of one exchange met another."""


class StoppedError(TrisectError):
    """A run was asked to end. (Left as KeyboardInterrupt, typer would end the process without a word.)"""

    exit_code = 143


_LONGEST = 1000


def one_line(message: str) -> str:
    """Give a message as one line of bounded length, whatever a user's file has put into it."""
    text = "".join(mark if mark.isprintable() else " " for mark in message[: 4 * _LONGEST])
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"


# what other libraries call an option, where it does not look like our name; without marks between words, as ours
_ELSEWHERE = {"learningrate": "lr", "wd": "weightdecay", "validation": "val", "valid": "val"}


# what is often looked for, and is not there; each is the end of a sentence
_MISSING = {
    "graph.*(class|clf|regr|pred|prop|label)": "tasks that label whole graphs are not supported",
    "multilabel": (
        "a vertex has one class; several labels of it are targets of 0 and 1, y [vertices, labels], of node-regression,"
        " which takes them without an option"
    ),
}
_CLOSE = 0.51  # least likeness; half is chance: onecycle and none


def nearest(word: str, names: Iterable[str]) -> str | None:
    """Return the name that looks most like `word`, or None where nothing is close.

    Case and the marks between words do not count.
    """
    word = _letters(word)
    spelled = {_letters(name): name for name in names}
    if _ELSEWHERE.get(word) in spelled:
        return spelled[_ELSEWHERE[word]]
    close = difflib.get_close_matches(word, spelled, n=1, cutoff=_CLOSE)
    return spelled[close[0]] if close else None


def missing(word: str) -> str | None:
    """Return why there is nothing of this name, where it is known to be looked for; the end of a sentence."""
    return next((why for pattern, why in _MISSING.items() if re.search(pattern, _letters(word))), None)


def _letters(name: str) -> str:
    return re.sub(r"[-_. ]", "", name.lower())


def unknown(kind: str, word: str, names: Iterable[str]) -> str:
    """One sentence for an unknown name: what it is, the nearest known one, or all of them where none is near."""
    every = list(names)
    near = nearest(word, every)
    if near is not None:
        return f"unknown {kind} {word!r}; did you mean {near!r}?"
    return f"unknown {kind} {word!r}; known: {', '.join(every)}."
