"""A run that was stopped leaves a summary and a report of the epochs that were done, and says where they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from trisect.errors import TrisectError
from trisect.report import write_report
from trisect.train.run.run_directory import SUMMARY, RunDirectory
from trisect.train.run.stopped import conclude
from trisect.train.run.summary import describe_stop


def conclude_stopped(
    out: str | Path,
    signal: Literal["SIGINT", "SIGTERM"],
    say: Callable[[str], None],
    show: Callable[[dict[str, Any]], None] = lambda summary: None,
) -> None:
    """Write the summary and the report of a run that was stopped, where an epoch was done.

    Args:
        out: the run directory.
        show: is handed the summary.
    """
    try:
        summary = conclude(out, signal)
        if summary is None:
            return
        say(str(describe_stop(summary)))
        show(summary)
        say(f"Summary: {Path(out) / SUMMARY}")
        say(f"Report: {write_report(RunDirectory.reopen(out))}")
    except (OSError, TrisectError) as error:  # the run itself is safe
        say(f"There is no whole summary and report of the run: {error}")
