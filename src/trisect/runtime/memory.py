"""How much memory this process has used."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path


def peak_rss_bytes() -> int:
    """The largest resident size so far of this process, or 0 where the system does not tell."""
    with contextlib.suppress(OSError, ValueError):
        # getrusage would also count the process that started this one, up to the start
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
