"""Requests to end: Ctrl-C and SIGTERM, heeded from the first line of a command to its last.

Imports next to nothing, so that a request is heeded while everything else is being imported.
"""

from __future__ import annotations

import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

_requests: dict[int, float] = {}
_done = False  # whether the command has ended, and the interpreter is about to
_PATIENCE = 5.0  # seconds
_IMPORTING = "<frozen importlib._bootstrap>"
_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.join(os.path.dirname(_HERE), "")


def end_on_request(*, terminated: bool = True) -> None:
    """Handle SIGTERM as Ctrl-C: what was begun is put in order, with a sentence.

    A further request within some seconds does not interrupt that. While a command imports what it needs it has begun
    nothing, and the process leaves at once: an exception could be lost in the code that is being imported.

    Args:
        terminated: whether SIGTERM is heeded too; otherwise it stays as it is.
    """
    if terminated:
        signal.signal(signal.SIGTERM, _end)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as shells have it for what runs in the background
        signal.signal(signal.SIGINT, _end)


def _end(number: int, frame: FrameType | None) -> None:
    now = time.monotonic()
    if any(now - earlier <= _PATIENCE for earlier in _requests.values()):
        return
    _requests[number] = now
    if _done or _imports_for_command(frame):
        leave_stopped()
    raise KeyboardInterrupt


def _imports_for_command(frame: FrameType | None) -> bool:
    """Whether an import is under way that was begun by the command line, or by a library that parses it."""
    callers: list[str] | None = None  # of the outermost import
    while frame is not None:
        name = frame.f_code.co_filename
        if name == _IMPORTING:
            callers = []
        elif callers is not None:
            callers.append(os.path.abspath(name))
        frame = frame.f_back
    own = [name for name in callers or () if name.startswith(_PACKAGE)]
    return callers is not None and all(os.path.dirname(name) in (_HERE, os.path.dirname(_HERE)) for name in own)


def leave_stopped() -> None:
    """End this process, which has begun nothing or has put everything in order; the first rank of a host says so."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        os.write(2, b"trisect: Stopped.\n")
    if _done:  # what was printed may still be on its way
        try:  # noqa: SIM105 (contextlib is not imported here)
            sys.stdout.flush()
        except (OSError, RuntimeError, ValueError):
            pass
    os._exit(stop_code())


def end_undisturbed() -> None:
    """When the command has ended: a request must not be met by an interpreter that is being torn down."""
    global _done
    _done = True
    if _requests:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)


def stop_code() -> int:
    """Return the exit code of a process that was stopped: 143 by SIGTERM, 130 by Ctrl-C."""
    return 143 if signal.SIGTERM in _requests else 130
