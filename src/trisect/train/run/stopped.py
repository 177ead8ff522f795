"""A run that was stopped: its directory put in order, with a summary of the epochs that were done.

Everything comes from the files of the run, so that it is the same for one process and for ranks that are gone, and
takes moments: nothing is evaluated. What no file says is null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import nn

from trisect.comm.ledger import AXES
from trisect.config import parse_layout
from trisect.errors import CheckpointError
from trisect.layout import Layout
from trisect.tasks import SPLITS
from trisect.train.best import Mode, improves
from trisect.train.loop import Result
from trisect.train.run.lock import locked
from trisect.train.run.run_directory import RunDirectory
from trisect.train.run.summary import summarise

Record = Mapping[str, Any]


def conclude(path: str | Path, signal: str) -> dict[str, Any] | None:
    """Remove what a stopped run left unfinished, and write its summary; called when no rank of it runs any more.

    Args:
        signal: that stopped it, `SIGINT` or `SIGTERM`.

    Returns:
        The summary; None where no epoch was done, or the run had ended and its own summary says so.

    Raises:
        CheckpointError: another process writes to the run directory, or a file of it is damaged.
    """
    if not RunDirectory.is_begun(path):
        return None
    with locked(Path(path)):
        directory = RunDirectory.reopen(path)
        directory.remove_unfinished()
        records = directory.metrics()
        if not records or _has_ended(directory, len(records)):
            return None
        summary = _summary(directory, records, signal)
        directory.write_stopped(summary)
        return summary


def _has_ended(directory: RunDirectory, epochs: int) -> bool:
    """Whether the summary of the whole run is there, after which no epoch was done."""
    with suppress(CheckpointError):
        summary = directory.summary()
        return summary is not None and summary.get("stopped") is None and summary.get("epochs") == epochs
    return False


def _summary(directory: RunDirectory, records: Sequence[Record], signal: str) -> dict[str, Any]:
    plan, training = directory.plan(), directory.config.train
    layout = parse_layout(str(plan["layout"])) if "layout" in plan else directory.config.layout
    monitor = training.monitor or "val.loss"
    best, reached = _best(records, monitor, training.monitor_mode)
    measured = records[-1] if best is None else best
    result = Result(
        loss=[record["loss"] for record in records],
        metrics={split: measured.get(split) for split in SPLITS},  # type: ignore[misc]
        epochs=len(records),
        best_epoch=None if best is None else best["epoch"],  # type: ignore[arg-type]
        best_value=reached,
        monitor=monitor,
        seconds=[seconds for record in records if (seconds := record.get("seconds")) is not None],
        evaluation_seconds=0.0,
        communication=_communication(records, plan, layout),
        transfer={"full_bytes": None, "sent_bytes": None},  # type: ignore[dict-item]
        memory={
            "peak_rss_bytes": [records[-1]["peak_rss_bytes"]]
            if layout.world == 1 and records[-1].get("peak_rss_bytes") is not None
            else None,
            "peak_pss_bytes": None,
        },
        modules=nn.ModuleDict(),
        program=None,
    )
    checkpoints = directory.checkpoints.paths()
    return summarise(
        result,
        layout,
        parameters=plan.get("parameters"),
        baselines=plan.get("rules") or {},
        partition=plan.get("partition"),
        expected=plan.get("expected"),
        restarts=directory.restarts(),
        stopped={
            "epoch": records[-1]["epoch"],
            "of": training.epochs,
            "signal": signal,
            "checkpoint": int(checkpoints[-1].name.removeprefix("epoch-")) if checkpoints else None,
        },
    )


def _best(records: Sequence[Record], monitor: str, mode: Mode) -> tuple[Record | None, float | None]:
    """Return the record of the best epoch that was evaluated and what it reached; None where none was."""
    split, _, name = monitor.partition(".")
    best: Record | None = None
    reached: float | None = None
    for record in records:
        if any(record.get(each) is not None for each in SPLITS):
            value = (record.get(split) or {}).get(name)
            if best is None or improves(monitor, value, reached, mode):
                best, reached = record, value
    return best, reached


def _communication(records: Sequence[Record], plan: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    alone = layout.world == 1
    planned = plan.get("bytes_per_epoch") or {}
    return {
        "bytes_per_epoch": records[-1].get("sent_bytes"),
        "by_axis": dict.fromkeys(AXES, 0 if alone else None),
        "by_rank": [0] if alone else None,
        "formula_bytes_per_epoch": sum(planned.values()) if planned or alone else None,
    }
