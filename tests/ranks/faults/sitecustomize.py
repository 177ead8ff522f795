"""Faults at (rank, epoch), in processes that a test starts: this folder is put first into their PYTHONPATH.

`TRISECT_TEST_FAULTS` is a JSON list of {"rank", "epoch", "kind", "fired"}: when this rank enters the epoch, the file
`fired` is made, which tells the test that the fault fired, and keeps it from firing again after a restart.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

FAULTS = json.loads(os.environ.get("TRISECT_TEST_FAULTS", "[]"))
MODULE = "trisect.train.loop"


class Finder:
    """Changes the trainer when it is imported, and imports nothing before that."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec(name)
        assert spec is not None
        execute = spec.loader.exec_module  # type: ignore[union-attr]

        def execute_and_change(module: Any) -> None:
            execute(module)
            change(module.Trainer)

        spec.loader.exec_module = execute_and_change  # type: ignore[union-attr, method-assign]
        return spec


def change(trainer: Any) -> None:
    honest = trainer.train_epoch

    def train_epoch(self: Any, epoch: int) -> float:
        for fault in FAULTS:
            if fault["epoch"] == epoch and fault["rank"] in (int(os.environ.get("RANK", "0")), "every"):
                fire(self, fault)
        return float(honest(self, epoch))

    trainer.train_epoch = train_epoch


def fire(trainer: Any, fault: dict[str, Any]) -> None:
    if fault["kind"] == "dump":
        dump(trainer, Path(fault["fired"]))
        return
    try:
        os.close(os.open(fault["fired"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    kind = fault["kind"]
    if kind in ("SIGKILL", "SIGSTOP", "SIGTERM"):
        os.kill(os.getpid(), getattr(signal, kind))
    elif kind == "memory":
        raise MemoryError
    elif kind == "disk":
        raise OSError(errno.EIO, os.strerror(errno.EIO), "a file")
    elif kind == "bug":
        os.unlink(fault["fired"])  # it comes again
        raise ValueError("a bug")


def dump(trainer: Any, folder: Path) -> None:
    """Write the state that the trainer has, by rank."""
    from safetensors.torch import save_file

    rank = int(os.environ.get("RANK", "0"))
    folder.mkdir(exist_ok=True)
    save_file(trainer.state_tensors(), folder / f"{rank}.safetensors")
    (folder / f"{rank}.json").write_text(json.dumps(trainer.state_meta()))


sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]
