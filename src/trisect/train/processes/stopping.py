"""SIGTERM, by which schedulers end a run: it is heeded between two epochs, when its state can be kept."""

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


def _leave_late(grace: float) -> None:
    said = f"Asked to stop, and the epoch did not end within train.grace ({grace:g} s); what was checkpointed stays."
    print(f"trisect: {said}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(StoppedError.exit_code)
