"""SIGTERM, by which schedulers end a run: it is heeded between two epochs, when its state can be kept.

`undisturbed` lets requests wait for what must be done whole; `deaf_to_ctrl_c` starts processes that Ctrl-C is not for.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trisect.errors import StoppedError


class StopRequest:
    """Whether this process was asked to end."""

    def __init__(self) -> None:
        self.asked = False


@contextmanager
def heeding_requests(grace: float, heard: Callable[[], None] = lambda: None) -> Iterator[StopRequest]:
    """Let SIGTERM be a request and no end, as long as this lasts.

    Args:
        grace: seconds after which a process that was asked leaves in any case.
        heard: called at the first request.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may say what signals do
        return
    late = threading.Timer(grace, _leave_late, (grace,))
    late.daemon = True

    def ask(number: int, frame: object) -> None:
        if not request.asked:
            request.asked = True
            late.start()
            heard()

    before = signal.signal(signal.SIGTERM, ask)
    try:
        yield request
    finally:
        late.cancel()
        signal.signal(signal.SIGTERM, before)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM until the end of the block: for short work that must not be left half done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    late: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, lambda number, frame: late.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if late:
            signal.raise_signal(late[0])


@contextmanager
def deaf_to_ctrl_c() -> Iterator[None]:
    """Block SIGINT for processes that are started inside, also while they start: their parent ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave_late(grace: float) -> None:
    said = f"Asked to stop, and the epoch did not end within train.grace ({grace:g} s); what was checkpointed stays."
    print(f"trisect: {said}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(StoppedError.exit_code)
