"""How much memory this process has used."""

from __future__ import annotations

import sys


def peak_rss_bytes() -> int:
    """The largest resident size so far of this process, or 0 where the system does not tell."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
