"""`usable_cores`: how many cores this process may use, by its affinity and by the quota of its container."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_GROUPS, _ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Return the number of cores that this process may use, at least 1; part of a core counts as one."""
    try:
        cores = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not on every system
        cores = os.cpu_count() or 1
    return max(1, min([cores, *(math.ceil(quota) for quota in _quotas())]))


def shared_cores(ranks: int, cores: int) -> str | None:
    """Return a sentence where ranks have to share cores; None where each has its own."""
    if ranks <= cores:
        return None
    return (
        f"{ranks} ranks share {cores} core{'s' if cores > 1 else ''}, so that they take turns; with at most {cores} "
        f"rank{'s' if cores > 1 else ''} each has a core of its own."
    )


def _quotas() -> Iterator[float]:
    """Yield the cores that each control group around this process allows, of both versions of control groups."""
    with suppress(OSError, ValueError):
        for line in _GROUPS.read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            group = Path(name.lstrip("/"))
            for inner in (group, *group.parents):
                if not controllers:
                    yield from _quota(_ROOT / inner / "cpu.max")
                elif "cpu" in controllers.split(","):
                    folder = _ROOT / "cpu" / inner
                    yield from _quota(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")


def _quota(*paths: Path) -> Iterator[float]:
    """Yield the quota divided by its period; nothing where the files do not exist or say that there is none."""
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (int(word) for path in paths for word in path.read_text().split())
        if quota > 0:
            yield quota / period
