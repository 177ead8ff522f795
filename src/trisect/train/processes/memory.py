"""How much memory this process has used: alone (RSS), and as its share of what it and others map (PSS).

The system keeps the highest RSS of a process, but RSS counts a page that several ranks map once for each. PSS divides
such a page among them, so that the sum over ranks is what they take together; its highest value nobody keeps, and it
is read by walking all pages. A thread therefore watches RSS, which is cheap, and looks at PSS where RSS has grown.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_STATUS, _ROLLUP = Path("/proc/self/status"), Path("/proc/self/smaps_rollup")
_EVERY = 0.5  # seconds between two looks at RSS
_GROWTH = 1.02
_REST = 20.0  # times as long as it takes to read PSS, nothing is read after it


def peak_rss_bytes() -> int:
    """Give the largest resident size so far of this process, or 0 where the system does not tell."""
    # getrusage would also count the process that started this one, up to the start
    highest = _field(_STATUS, "VmHWM")
    if highest is not None:
        return highest
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def rss_bytes() -> int:
    """Give the resident size of this process now, or 0 where the system does not tell."""
    return _field(_STATUS, "VmRSS") or 0


class PssWatch:
    """The highest PSS of this process while it is watched, from a thread between `start` and `stop`."""

    def __init__(self) -> None:
        self._highest: int | None = None
        self._looked_at = 0  # the largest RSS of a look
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="trisect-memory", daemon=True)

    def start(self) -> None:
        """Look once, and from now on whenever RSS has grown."""
        if self._look() > 0.0:
            self._thread.start()

    def stop(self) -> None:
        """End the thread that looks at the memory, and wait until it has."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def peak(self) -> int | None:
        """Give the highest PSS that was seen; what RSS rose by since the highest look counts as this process's own.

        What a process holds after another has let go of pages that both mapped is not looked for.

        None where the system does not tell.
        """
        self._look()
        with self._lock:
            if self._highest is None:
                return None
            rss = peak_rss_bytes()
            return min(rss, self._highest + max(0, rss - self._looked_at))

    def _watch(self) -> None:
        rest = _EVERY
        while not self._over.wait(rest):
            rss = _field(_STATUS, "VmRSS") or 0
            rest = max(_EVERY, _REST * self._look()) if rss > self._looked_at * _GROWTH else _EVERY

    def _look(self) -> float:
        """Read PSS; give the seconds that it took, 0 where there is none."""
        with self._lock:
            begin = time.perf_counter()
            rss, pss = _field(_STATUS, "VmRSS"), _field(_ROLLUP, "Pss")
            if rss is None or pss is None:
                return 0.0
            self._highest = pss if self._highest is None else max(self._highest, pss)
            self._looked_at = max(self._looked_at, rss)
            return time.perf_counter() - begin


_lock = threading.Lock()
_current: PssWatch | None = None
_users = 0


@contextlib.contextmanager
def watched_memory() -> Iterator[PssWatch]:
    """Watch the memory of this process, together with all others that watch it at the same time."""
    global _current, _users
    with _lock:
        if _current is None:
            _current = PssWatch()
            _current.start()
        watch = _current
        _users += 1
    try:
        yield watch
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _current = None
                watch.stop()


def _field(path: Path, name: str) -> int | None:
    """Give the bytes of a field of one of the system's tables, or None where there is no such table or field."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in path.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None
