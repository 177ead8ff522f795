"""Faults at (rank, epoch, action), in processes that a test starts: this folder is put first into their PYTHONPATH.

`TRISECT_TEST_FAULTS` is a JSON list of {"rank", "epoch", "kind", "fired"}, and where the fault is not to come when the
rank enters the epoch, {"at", "action"}:

    at        start      when the rank says how far it has come before the first epoch, whatever the epoch; `action` is
                         which time it says so, as a share of all of them. `after`, if any, is the file of another
                         fault that must have fired before
              cut        when the data are cut for all ranks, whatever the epoch; the process that does it is rank 0
              config     when config.yaml is written, whatever the epoch; rank 0 writes it
              epoch      (or left out) when the rank enters the epoch
              train      before an action of the epoch; `action` is which one, as a share of all of them, 0 to below 1
              evaluate   before an action of the evaluation after the epoch
              shard      when half of the first bytes of its shard of the epoch's checkpoint are written
              manifest   the same of the manifest; rank 0 writes it
              metrics    the same of the epoch's line in metrics.jsonl; rank 0 writes it
              events     when the rank's events of the epoch are written
              recovery   when metrics.jsonl is rewritten for a run that goes on, whatever the epoch; rank 0 does it
              summary    when summary.json is written, whatever the epoch; rank 0 writes it

The file `fired` is made with the process's number in it, which tells the test that the fault fired, and keeps it from
firing again after a restart. `TRISECT_TEST_EPOCHS` names a file that gets a byte for each epoch that rank 0 enters.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FAULTS: list[dict[str, Any]] = json.loads(os.environ.get("TRISECT_TEST_FAULTS", "[]"))
EPOCHS = os.environ.get("TRISECT_TEST_EPOCHS")
RANK = int(os.environ.get("RANK", "0"))
ERRORS = {"disk": errno.EIO, "EIO": errno.EIO, "ENOSPC": errno.ENOSPC}
# a rank that is stopped in a `pause`, or `frozen`, is for the test to continue, or to rid of its launcher
SIGNALS = {"SIGKILL": "SIGKILL", "SIGSTOP": "SIGSTOP", "SIGTERM": "SIGTERM", "pause": "SIGSTOP", "frozen": "SIGSTOP"}
IN_TURN = ("SIGTERM", "SIGKILL")  # how a scheduler that has no patience ends a process
TO_LAUNCHER = {"launcher SIGKILL": "SIGKILL", "launcher SIGTERM": "SIGTERM", "launcher SIGINT": "SIGINT"}
_LONGEST = 10.0  # seconds that a rank waits for what the launcher does

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell that starts tests in the background lets them ignore Ctrl-C, and Python then leaves it so
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Finder:
    """Changes modules when they are imported, and imports nothing before that."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        change = CHANGES.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        assert spec is not None
        execute = spec.loader.exec_module  # type: ignore[union-attr]

        def execute_and_change(module: Any) -> None:
            execute(module)
            change(module)

        spec.loader.exec_module = execute_and_change  # type: ignore[union-attr, method-assign]
        return spec


def due(at: str, epoch: int | None) -> list[dict[str, Any]]:
    """Give the faults of this rank at a point; `epoch` None: whatever their epoch."""
    here = [fault for fault in FAULTS if fault.get("at", "epoch") == at and fault["rank"] in (RANK, "every")]
    return [fault for fault in here if epoch in (None, fault["epoch"])]


def change_loop(module: Any) -> None:
    honest = module.Trainer.train_epoch

    def train_epoch(self: Any, epoch: int) -> float:
        if EPOCHS is not None and RANK == 0:
            with open(EPOCHS, "ab") as file:
                file.write(b".")
        for fault in due("epoch", epoch):
            fire(fault, self)
        return float(honest(self, epoch))

    module.Trainer.train_epoch = train_epoch


def change_start(module: Any) -> None:
    honest = module.show_phase

    def show_phase(rank: int, phase: Any) -> None:
        honest(rank, phase)
        for fault in due("start", None):
            phases = 1 if int(os.environ.get("WORLD_SIZE", "1")) == 1 else len(module.Phase)
            after = fault.get("after")
            if 1 + int(fault["action"] * phases) == phase and (after is None or os.path.exists(after)):
                fire(fault)

    module.show_phase = show_phase


def change_cutting(module: Any) -> None:
    honest = module.cut_job

    def cut_job(*arguments: Any, **options: Any) -> None:
        for fault in due("cut", None):
            fire(fault)
        honest(*arguments, **options)

    module.cut_job = cut_job


def change_rank(module: Any) -> None:
    honest = module.Run.stream

    def stream(self: Any, observer: Any = None, **fields: Any) -> Iterator[Any]:
        faults = due("evaluate" if fields.get("evaluation") else "train", fields["epoch"]) if "epoch" in fields else []
        if not faults:
            yield from honest(self, observer, **fields)
            return
        door, before = self.rank.door, interrupted(faults, actions_of(self))
        door.event, self._do = before(door.event), before(self._do)
        try:
            yield from honest(self, observer, **fields)
        finally:
            del door.event

    module.Run.stream = stream


def actions_of(run: Any) -> int:
    """Give how often a rank posts and waits in a pass, and begins to compute a cell."""
    from trisect.plan.build import schedule_of
    from trisect.schedule.action import Pass, Verb

    planned = schedule_of(run.plan, pass_=run._pass).ranks[run.rank.mesh.rank]
    cells = len(run._numbers())
    computed = cells if run._pass is not Pass.TRAIN else 2 * cells + (cells - 1 if run.plan.timeline else 0)
    return computed + sum(action.verb in (Verb.POST, Verb.WAIT) for action in planned)


def interrupted(faults: list[dict[str, Any]], actions: int) -> Callable[[Any], Any]:
    """Give what lets faults come before theirs of some actions, each a call of a function that it is given."""
    count = 0

    def before(do: Any) -> Any:
        def interrupted(*values: Any, **named: Any) -> Any:
            nonlocal count
            for fault in faults:
                if int(fault.get("action", 0.0) * actions) == count:
                    fire(fault)
            count += 1
            return do(*values, **named)

        return interrupted

    return before


def change_checkpoint(module: Any) -> None:
    honest = module._created

    def created(path: Path) -> Any:
        file = honest(path)
        for fault in due(*point_of(path)):
            file = Failing(file, fault)
        return file

    module._created = created


def point_of(path: Path) -> tuple[str, int | None]:
    """Say what is written to a path: a point of `due`, and its epoch."""
    if path.parent.name.startswith(".epoch-"):
        return "manifest" if path.name == "manifest.json" else "shard", int(path.parent.name[7:].split(".")[0])
    points = {".config.yaml.draft": "config", ".metrics.jsonl.draft": "recovery", ".summary.json.draft": "summary"}
    return points.get(path.name, "another"), None


def change_recorder(module: Any) -> None:
    honest = module.RunRecorder.epoch

    def epoch(self: Any, record: Any) -> None:
        for name in ("metrics", "events"):
            for fault in due(name, record["epoch"]):
                spoil(self, f"_{name}", fault)
        honest(self, record)

    module.RunRecorder.epoch = epoch


def spoil(recorder: Any, name: str, fault: dict[str, Any]) -> None:
    """Let the next bytes of a recorder's file meet a fault."""
    file = getattr(recorder, name)
    if fault["kind"] != "ENOSPC":
        setattr(recorder, name, Failing(file, fault))
    elif claim(fault):
        # a disk that is really full, for this file: what was not written stays in the buffer, and closing fails too
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, file.fileno())
        os.close(full)


class Failing:
    """A file whose next bytes are written by half when the fault comes."""

    def __init__(self, file: Any, fault: dict[str, Any]) -> None:
        self._file, self._fault = file, fault

    def write(self, content: Any) -> int:
        half = len(content) // 2
        fault, self._fault = self._fault, {}
        self._file.write(content[:half])
        if fault:
            self._file.flush()
            fire(fault)
        self._file.write(content[half:])
        return len(content)

    def __enter__(self) -> Failing:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def claim(fault: dict[str, Any]) -> bool:
    """Say whether the fault comes now: it comes once."""
    try:
        handle = os.open(fault["fired"], os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    os.write(handle, str(os.getpid()).encode())
    os.close(handle)
    return True


def fire(fault: dict[str, Any], trainer: Any = None) -> None:
    kind = fault["kind"]
    if kind == "dump":
        dump(trainer, Path(fault["fired"]))
    elif not claim(fault):
        return
    elif kind in SIGNALS:
        os.kill(os.getpid(), getattr(signal, SIGNALS[kind]))
    elif kind == ", ".join(IN_TURN):
        for name in IN_TURN:
            os.kill(os.getpid(), getattr(signal, name))
    elif kind in TO_LAUNCHER:
        signal_launcher(getattr(signal, TO_LAUNCHER[kind]))
    elif kind == "memory":
        raise MemoryError
    elif kind in ERRORS:
        raise OSError(ERRORS[kind], os.strerror(ERRORS[kind]), "a file")
    elif kind == "bug":
        os.unlink(fault["fired"])  # it comes again
        raise ValueError("a bug")


def signal_launcher(number: signal.Signals) -> None:
    """Send a signal to the launcher, and wait for what it does: a short run could end before it has noticed."""
    handed_on: list[int] = []
    heed = signal.getsignal(signal.SIGTERM)

    def note(number: int, frame: Any) -> None:
        handed_on.append(number)
        if callable(heed):
            heed(number, frame)

    main = threading.current_thread() is threading.main_thread()
    if main:
        signal.signal(signal.SIGTERM, note)
    os.kill(int(os.environ["TRISECT_LAUNCHER"]), number)
    deadline = time.monotonic() + _LONGEST
    while not handed_on and time.monotonic() < deadline:
        time.sleep(0.02)
    if main:
        signal.signal(signal.SIGTERM, heed)
        if handed_on and not callable(heed):  # what it would have done is to end this process
            os.kill(os.getpid(), signal.SIGTERM)


def dump(trainer: Any, folder: Path) -> None:
    """Write the state that the trainer has, by rank."""
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    save_file(trainer.state_tensors(), folder / f"{RANK}.safetensors")
    (folder / f"{RANK}.json").write_text(json.dumps(trainer.state_meta()))


CHANGES: dict[str, Callable[[Any], None]] = {
    "trisect.train.processes.faults": change_start,
    "trisect.train.processes.start": change_cutting,
    "trisect.train.loop": change_loop,
    "trisect.pipeline.rank": change_rank,
    "trisect.train.run.checkpoint": change_checkpoint,
    "trisect.train.run.recorder": change_recorder,
}
if "TRISECT_TEST_FORK" in os.environ and "RANK" not in os.environ:
    import forked_ranks

    def begun() -> None:
        global RANK
        RANK = int(os.environ["RANK"])

    forked_ranks.Forked.begun = staticmethod(begun)
    CHANGES["trisect.train.processes.launch"] = forked_ranks.change_launch
sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]
