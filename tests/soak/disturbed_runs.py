"""Trains one drawn run through all of its faults, by `--restarts` or by `--resume` as each of them asks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from cases import Case
from compared import differences, seconds
from drawn_faults import DrawnRun, Fault
from leftovers import MARK, clear, drafts, end_orphans

FAULTS = Path(__file__).resolve().parents[1] / "ranks" / "faults"
_CODES = {
    "SIGTERM": 143,
    "SIGTERM, SIGKILL": 143,
    "launcher SIGTERM": 143,
    "launcher SIGINT": 130,
    "launcher SIGKILL": -9,
    "frozen": -9,
}
_PATIENT = ("train.timeout=200", "train.startup_timeout=200")  # for runs that nothing is to disturb, on any machine
_SPARE = 6  # restarts that no fault asks for: a busy machine may be taken for a stall
_LONGEST = 240.0  # seconds of a command; one that takes longer hangs
_PAUSE = 0.3
_POLL = 0.03


@dataclass
class Report:
    """What became of a run.

    Attributes:
        fired: kind and point of each fault that came.
        lost: why the run did not end as its twin; nothing where it did.
        left: processes and files that outlived a command.
        restarts: how often it was started again by itself.
        time: seconds of wall clock; `useful`: those of the epochs that counted.
        counted, computed: epochs.
    """

    fired: list[tuple[str, str]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    restarts: int = 0
    commands: int = 0
    time: float = 0.0
    useful: float = 0.0
    counted: int = 0
    computed: int = 0


class Training:
    """Commands that train one case in a folder, as a user would give them."""

    def __init__(
        self, case: Case, folder: Path, report: Report, faults: Sequence[Fault] = (), *, forked: bool = False
    ) -> None:
        self.case, self.folder, self.report, self._faults, self._forked = case, folder, report, faults, forked
        self.run = folder / "run"
        self.log = folder / "log"
        self._temporary = folder / "tmp"
        self._temporary.mkdir(parents=True)
        self._entered = folder / "entered"
        (folder / "c.yaml").write_text(yaml.safe_dump(case.settings()))

    def fired(self, number: int) -> Path:
        """Give the file that the fault of this number makes when it comes."""
        return self.folder / f"fired-{number}"

    def _plain(self, number: int, fault: Fault) -> dict[str, Any]:
        """Give what the process that meets a fault reads; one at a start waits for the fault that leads to it."""
        before = [earlier for earlier in range(number) if self._faults[earlier].starts_again]
        after = str(self.fired(before[-1])) if before else None
        return {**asdict(fault), "fired": str(self.fired(number)), "after": after}

    def train(self, faults: dict[int, Fault], *words: str) -> int | None:
        """Train until the command ends, and look what it left; give its exit code, or None where it hung."""
        mark = uuid.uuid4().hex
        paths = os.pathsep.join((str(FAULTS), *filter(None, [os.environ.get("PYTHONPATH")])))
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(self._temporary),
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "torch"),  # torch's own, which runs of a user share
            "PYTHONPATH": paths,
            "TRISECT_TEST_FAULTS": json.dumps([self._plain(number, fault) for number, fault in faults.items()]),
            "TRISECT_TEST_EPOCHS": str(self._entered),
            MARK: mark,
            **({"TRISECT_TEST_FORK": "1"} if self._forked else {}),
        }
        command = [sys.executable, "-m", "trisect", "train", "c.yaml", "--out", "run", "--layout", self.case.layout]
        begin = time.monotonic()
        with self.log.open("a") as log:
            log.write(f"$ {' '.join(words)}\n")
            log.flush()
            process = subprocess.Popen(
                [*command, *words],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                code = self._wait(process, faults)
            finally:
                process.kill()
                process.wait()
        self.report.time += time.monotonic() - begin
        self.report.commands += 1
        orphans = end_orphans(mark)
        left = clear(self._temporary)
        if code is not None:  # otherwise it was we who killed it
            self.report.orphans += orphans
            self.report.left += left
        return code

    def _wait(self, process: subprocess.Popen[bytes], faults: dict[int, Fault]) -> int | None:
        """Wait for a command, and do to stopped ranks what their faults say."""
        stopped = {n: fault for n, fault in faults.items() if fault.kind in ("pause", "frozen")}
        stopped = {n: fault for n, fault in stopped.items() if not self.fired(n).exists()}
        deadline = time.monotonic() + _LONGEST
        while process.poll() is None and time.monotonic() < deadline:
            for number, fault in list(stopped.items()):
                written = self.fired(number).read_text() if self.fired(number).exists() else ""
                if written:
                    del stopped[number]
                    time.sleep(_PAUSE)
                    if fault.kind == "pause":
                        os.kill(int(written), signal.SIGCONT)
                    else:
                        process.kill()
            time.sleep(_POLL)
        return process.poll()

    @property
    def computed(self) -> int:
        """Count the epochs that were entered, those that were lost included."""
        return self._entered.stat().st_size if self._entered.exists() else 0

    @property
    def restarts(self) -> int:
        """Count how often the commands said that they start the ranks again."""
        return len(re.findall(r" Restart \d+ of \d+\.$", self.log.read_text(errors="replace"), re.MULTILINE))

    def said(self) -> str:
        """Give the last lines of what the commands printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-25:])


def undisturbed(case: Case, folder: Path, report: Report) -> Path:
    """Train a case that nothing disturbs."""
    training = Training(case, folder, report)
    code = training.train({}, *(word for setting in _PATIENT for word in ("--set", setting)))
    if code != 0:
        raise RuntimeError(f"the undisturbed run of {case.name} ended with {code}:\n{training.said()}")
    report.left += drafts(training.run)
    return training.run


def _untraced(faults: Sequence[Fault]) -> int:
    """Count the restarts that may leave no trace in a run.

    A start that fails before the run could be written to is in the count of the next start of the same command; where
    the command itself ends during that start, nobody is left to write it.
    """
    lost = failed = 0
    for fault in faults:
        if fault.ends:
            lost += failed + 1 if fault.at == "start" else 0
            failed = 0
        elif fault.at in ("start", "recovery"):
            failed += 1
        elif fault.starts_again:
            failed = 0
    return lost


def disturbed(drawn: DrawnRun, folder: Path, twin: Path) -> Report:
    """Train a drawn run to its end, and compare it with its twin."""
    report = Report()
    training = Training(drawn.case, folder, report, drawn.faults, forked=drawn.forked)
    pending = dict(enumerate(drawn.faults))
    try:
        _go_through(drawn, training, pending)
    except OSError as error:  # of this script itself; the run counts as lost, and the others go on
        report.lost.append(f"{type(error).__name__}: {error}")
    report.lost += [f"did not come: {fault}" for fault in pending.values() if not report.lost]
    if not report.lost:
        report.lost += [f"differs: {said}" for said in differences(twin, training.run)]
        report.left += drafts(training.run)
        report.restarts = json.loads((training.run / "summary.json").read_text())["restarts"]
        if not training.restarts - _untraced(drawn.faults) <= report.restarts <= training.restarts:
            report.lost.append(f"the summary counts {report.restarts} restarts, and there were {training.restarts}")
        report.useful, report.counted = seconds(training.run), drawn.case.epochs
    report.computed = training.computed
    if report.lost:
        report.lost.append(training.said())
    return report


def _go_through(drawn: DrawnRun, training: Training, pending: dict[int, Fault]) -> None:
    """Give commands until one ends well; faults that came are taken from `pending`."""
    report = training.report
    damaged: Path | None = None
    while True:
        ending = next((number for number, fault in pending.items() if fault.ends), len(drawn.faults))
        armed = {number: fault for number, fault in pending.items() if number <= ending}
        restarts = _SPARE + sum(not fault.ends for fault in armed.values())
        resume = () if report.commands == 0 else ("--resume",)
        code = training.train(armed, "--restarts", str(restarts), *resume)
        came = [number for number in armed if training.fired(number).exists()]
        for number in came:
            report.fired.append((armed[number].kind, armed[number].at))
            del pending[number]
        # ranks that were ended at their start may not have read it
        if damaged is not None and not any(armed[number].ends and armed[number].at == "start" for number in came):
            if not damaged.with_name(f"{damaged.name}.damaged").exists():
                report.lost.append(f"nobody noticed that {damaged.name} was damaged ({report.fired[-1]})")
            damaged = None
        if code == 0 or report.lost:
            return
        allowed = {_CODES[armed[number].kind] for number in came if armed[number].ends}
        if code is None or code not in allowed:
            expected = f"and not {', '.join(map(str, sorted({0, *allowed})))}"
            report.lost.append("a command hung" if code is None else f"a command ended with {code}, {expected}")
            return
        damage = drawn.damages.get(ending)
        if damage is not None and damaged is None:
            damaged = _damage(training.run, damage)
            if damaged is not None:
                report.fired.append(("damage", damage))


def _damage(run: Path, damage: str) -> Path | None:
    """Damage the newest checkpoint, where there is one before it; give its path."""
    checkpoints = sorted((run / "checkpoints").glob("epoch-??????"))
    if len(checkpoints) < 2:
        return None
    newest = checkpoints[-1]
    shard, manifest = max(newest.glob("rank-*"), key=lambda path: path.stat().st_size), newest / "manifest.json"
    content = bytearray(shard.read_bytes())
    if damage == "cut":
        shard.write_bytes(content[:-3])
    elif damage == "flipped":
        content[-5] ^= 4
        shard.write_bytes(content)
    elif damage == "no shard":
        shard.unlink()
    elif damage == "no manifest":
        manifest.unlink()
    elif damage == "manifest":
        manifest.write_bytes(manifest.read_bytes().replace(b'"best": ', b'"best":', 1)[:-2])
    else:
        shard.write_bytes(b"")
    return newest
