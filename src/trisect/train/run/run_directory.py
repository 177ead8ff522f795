"""The run directory: who may write in it, and the files of a run as they grow.

config.yaml          every setting, resolved
plan.json            what was decided before the first epoch
metrics.jsonl        a line an epoch
events/rank-R.jsonl  what each rank did when
checkpoints/         see `checkpoint`
summary.json         the whole run in one object; of one that was stopped, the epochs that were done
scores.json          how scores lie beside labels on val and test, for the report
trace.json           the events for Perfetto (Chrome trace)
tensorboard/         where tensorboard is installed
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from trisect.config import Config, TrainOptions, parse_config, read_yaml
from trisect.errors import TRANSIENT, CheckpointError
from trisect.settings.writing import to_json
from trisect.train.run.apart import MARK
from trisect.train.run.checkpoint import Checkpoint, Checkpoints, write_atomically
from trisect.train.run.lock import LOCK, locked
from trisect.train.run.sound_json import (
    ANYTHING,
    COUNT,
    FINITE,
    NUMBER,
    TEXT,
    Each,
    Form,
    Maybe,
    flaw_of,
    parse,
    read_bytes,
    read_object,
)
from trisect.train.run.trace import chrome_trace

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
PLAN = "plan.json"
SCORES = "scores.json"
SUMMARY = "summary.json"
TRACE = "trace.json"
LAYOUT = "layout"  # under which a checkpoint was written, in its meta
RESTART = "restart"  # the name of an event

# what their readers rely on; whoever made a run directory may have written anything
_RECORD = {
    "epoch": COUNT,
    "loss": Maybe(NUMBER),
    "seconds": Maybe(FINITE),
    "sent_bytes": Maybe(FINITE),
    "peak_rss_bytes": Maybe(FINITE),
}
_EVENT = {"name": TEXT, "start": FINITE, "seconds": FINITE, "epoch": Maybe(COUNT)}
_PLAN = {"stages": Maybe([[COUNT]]), "parameters": Maybe(COUNT)}
_SUMMARY = {
    "layout": Maybe(dict.fromkeys(("time", "layer", "vertex", "chunks"), Maybe(COUNT))),
    "world": COUNT,
    "metrics": Each(Maybe(Each(ANYTHING))),
    "baselines": Maybe(Each(Maybe(Each(Each(Maybe(NUMBER)))))),
    "seconds_per_epoch": {"best": Maybe(FINITE), "median": Maybe(FINITE)},
    "stopped": Maybe({"epoch": COUNT, "of": COUNT, "signal": Maybe(TEXT), "checkpoint": Maybe(COUNT)}),
    "communication": {
        "bytes_per_epoch": Maybe(FINITE),
        "by_axis": Each(Maybe(FINITE)),
        "formula_bytes_per_epoch": Maybe(FINITE),
    },
    "transfer": {"full_bytes": Maybe(FINITE), "sent_bytes": Maybe(FINITE)},
    "memory": {"peak_rss_bytes": Maybe([FINITE]), "peak_pss_bytes": Maybe([FINITE])},
    "staleness": Maybe(
        {
            "historical_reads": Maybe(FINITE),
            "drift": Maybe(FINITE),
            "loss": Maybe({"exact": Maybe(NUMBER), "stale": Maybe(NUMBER)}),
            "stepped_in": Maybe([Each(ANYTHING)]),
        }
    ),
}

# settings that may differ between a run and its continuation: they do not change what an epoch computes
_FREE = {
    "data": {"directory"},
    "train": {
        "epochs",
        "device",
        "threads",
        "timeout",
        "startup_timeout",
        "grace",
        "guard",
        "eval_every",
        "patience",
        "checkpoint_every",
        "keep",
        "track",
        "rules",
    },
}


def fingerprint(config: Config) -> str:
    """Give a short name for what a run computes; equal for a run and every continuation of it."""
    return hashlib.sha256(to_json(_fixed(config), sort_keys=True, default=str).encode()).hexdigest()[:16]


def _fixed(config: Config) -> dict[str, Any]:
    plain = config.resolved()
    plain.pop("layout")  # a checkpoint may be continued under another layout
    plain["train"]["monitor"] = None  # named by the task where the user does not, when the data are there
    return {
        section: {key: value for key, value in values.items() if key not in _FREE.get(section, set())}
        for section, values in plain.items()
    }


class RunDirectory:
    """One run's files. To write them, open it by `writing`, which keeps other processes out."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path = path
        self.config = config
        self.checkpoints = Checkpoints(path / "checkpoints", run=fingerprint(config), keep=config.train.keep)

    @staticmethod
    def refuse_used(path: str | Path) -> None:
        """Raise where a new run cannot be put into `path`; writes nothing."""
        path = Path(path)
        if path.is_dir():
            if (path / CONFIG).exists():
                raise CheckpointError(
                    f"The output directory {path} already holds a run; choose another --out, or continue it with"
                    " --resume (in Python: out and resume=True)."
                )
            if any(file.name not in (LOCK, f".{CONFIG}.draft") for file in path.iterdir()):
                raise CheckpointError(f"The output directory {path} is not empty; choose another --out.")
        elif path.exists():
            raise CheckpointError(f"The output directory {path} is a file; choose another --out.")

    @staticmethod
    def is_begun(path: str | Path) -> bool:
        """Say whether there is a run in `path`, however far it came."""
        return (Path(path) / CONFIG).exists()

    @classmethod
    @contextlib.contextmanager
    def writing(cls, path: str | Path, config: Config, *, resume: bool = False) -> Iterator[RunDirectory]:
        """Open a run to write it, alone: nothing is read or written before other processes are kept out.

        Args:
            resume: go on with the run in `path` where there is one; otherwise `path` must not exist or be empty.
        """
        path = Path(path)
        resume = resume and cls.is_begun(path)
        if not resume:
            cls.refuse_used(path)
            _make(path)
        with locked(path):
            _refuse_links(path)
            yield cls.reopen(path, config) if resume else cls.create(path, config)

    @classmethod
    def create(cls, path: str | Path, config: Config) -> RunDirectory:
        """Make a new run in `path`, which must not exist or be empty."""
        path = Path(path)
        cls.refuse_used(path)
        _make(path)
        try:
            write_atomically(path / CONFIG, _yaml(config))
        except OSError as error:
            raise _unwritable(path, error) from None
        return cls(path, config)

    @classmethod
    def reopen(cls, path: str | Path, config: Config | None = None) -> RunDirectory:
        """Open the run in `path`, to be read or continued, with its own settings or `config` where that fits them."""
        path = Path(path)
        old = read_config(path)
        if config is None or config == old:
            return cls(path, old)
        before, now = _fixed(old), _fixed(config)
        if old.train.monitor is not None and config.train.monitor is not None:
            before["train"]["monitor"], now["train"]["monitor"] = old.train.monitor, config.train.monitor
        _refuse_difference(path, before, now)
        _refuse_other_schedule(path, old, config)
        return cls(path, config)

    def describe_start(self, checkpoint: Checkpoint | None, layout: str = "") -> str:
        """Say where a resumed run begins, and whether under another layout (as `Layout.cut` says it)."""
        if checkpoint is None:
            return f"There is no checkpoint in {self.path} yet; starting from the first epoch."
        before = str(checkpoint.meta.get(LAYOUT, layout))
        if before == layout:
            return f"Continuing after epoch {checkpoint.epoch}."
        return (
            f"Continuing after epoch {checkpoint.epoch} under another layout ({layout}; until then {before}): "
            "parameters and optimizer are the same by name, and sums are added up in another order."
        )

    def tidy(self, say: Callable[[str], None]) -> None:
        """Put in order what a run that was ended left, and say it; called by the one process that may write."""
        self.remove_unfinished()
        for name in self.checkpoints.set_aside_others():
            say(f"{name} in {self.checkpoints.directory} is no checkpoint, and was set aside as {name}.damaged.")
        if _ends_cut(self.path / METRICS):
            say(f"The last line of {self.path / METRICS} was cut off, and is left out.")

    def remove_unfinished(self) -> None:
        """Remove drafts of checkpoints and files, and marks; called by the one process that may write."""
        self.checkpoints.remove_drafts()
        drafts = [self.path / f".{name}.draft" for name in (METRICS, PLAN, SCORES, SUMMARY, TRACE)]
        for path in (*self.path.glob(f"{MARK}*"), *drafts):
            path.unlink(missing_ok=True)

    def continue_from(self, checkpoint: Checkpoint | None) -> None:
        """Drop what was written after the checkpoint (None: everything), so that it can be written again."""
        write_atomically(self.path / CONFIG, _yaml(self.config))
        if self.was_stopped():
            (self.path / SUMMARY).unlink()
        epoch = 0 if checkpoint is None else checkpoint.epoch
        for path in (self.path / METRICS, *self.path.glob("events/rank-*.jsonl")):
            kept = _records(path, _RECORD if path.name == METRICS else _EVENT)
            lines = [to_json(record) + "\n" for record in kept if (record.get("epoch") or 0) <= epoch]
            write_atomically(path, "".join(lines).encode())

    def metrics(self) -> list[dict[str, Any]]:
        """Read the lines of metrics.jsonl; a last line that was cut off by a crash is left out."""
        return list(_records(self.path / METRICS, _RECORD))

    def events(self, rank: int) -> list[dict[str, Any]]:
        """Read the events of a rank."""
        return list(_records(self.path / "events" / f"rank-{rank}.jsonl", _EVENT))

    def ranks(self) -> list[int]:
        """List the ranks that wrote events."""
        numbers = (path.stem.removeprefix("rank-") for path in self.path.glob("events/rank-*.jsonl"))
        return sorted(int(number) for number in numbers if number.isdecimal() and number == str(int(number)))

    def restarts(self) -> int:
        """Count how often the run was started again by itself, under all commands that continued it."""
        total, before = 0, dict[str, int]()
        for event in self.events(0):
            count, command = event.get("count"), str(event.get("command"))
            if event["name"] == RESTART and isinstance(count, int):
                # each command counts from 1; a start that ended before it could write anything is in the next count
                last = before.get(command, 0)
                total += count - last if count > last else count
                before[command] = count
        return total

    def summary(self) -> dict[str, Any] | None:
        """Read summary.json; give None where the run has not ended."""
        try:
            return read_object(self.path / SUMMARY, _SUMMARY)
        except FileNotFoundError:
            return None

    def was_stopped(self) -> bool:
        """Whether summary.json is that of a run which was stopped."""
        with contextlib.suppress(CheckpointError):
            return (self.summary() or {}).get("stopped") is not None
        return False

    def scores(self) -> dict[str, Any] | None:
        """Read scores.json; give None where the run has not ended, or counted none."""
        try:
            return read_object(self.path / SCORES, {})
        except FileNotFoundError:
            return None

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        """Write plan.json: what was decided before the first epoch."""
        write_atomically(self.path / PLAN, to_json(plan, indent=2).encode())

    def plan(self) -> dict[str, Any]:
        """Read plan.json; nothing where the run has none."""
        try:
            return read_object(self.path / PLAN, _PLAN)
        except FileNotFoundError:
            return {}

    def write_summary(self, summary: Mapping[str, Any], scores: Mapping[str, Any] | None = None) -> None:
        """Write summary.json, trace.json and, where there are any, scores.json, at the end."""
        if scores:
            write_atomically(self.path / SCORES, to_json(scores).encode())
        write_atomically(self.path / SUMMARY, to_json(summary, indent=2).encode())
        trace = chrome_trace({rank: self.events(rank) for rank in self.ranks()})
        write_atomically(self.path / TRACE, to_json(trace).encode())

    def write_stopped(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json of a run that was stopped; scores and the trace are those of a run that has ended."""
        write_atomically(self.path / SUMMARY, to_json(summary, indent=2).encode())
        for name in (SCORES, TRACE):
            (self.path / name).unlink(missing_ok=True)

    def name_classes(self, names: Sequence[str] | None) -> None:
        """Add the names of the classes to scores.json, where there are both."""
        scores = self.scores()
        if names and scores:
            write_atomically(self.path / SCORES, to_json({**scores, "classes": list(names)}).encode())


def read_config(path: str | Path) -> Config:
    """Read the settings of the run in `path`."""
    path = Path(path)
    if not path.is_dir():
        raise _no_run(path)
    try:
        text = read_bytes(path / CONFIG).decode()
    except FileNotFoundError:
        raise _no_run(path) from None
    except UnicodeDecodeError:
        raise CheckpointError(f"{path / CONFIG} is damaged: it is not UTF-8 text.") from None
    plain = read_yaml(text, str(path / CONFIG))
    if not isinstance(plain, dict):
        raise CheckpointError(f"{path / CONFIG} is damaged: it is not a mapping.")
    return parse_config(plain)


def _no_run(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} holds no run: there is no {CONFIG} in it; give the directory of a run.")


def _refuse_links(path: Path) -> None:
    """Raise where a part of the run directory lies elsewhere: who made the link would choose what is overwritten."""
    for name in ("checkpoints", "events", METRICS, "tensorboard"):
        if (path / name).is_symlink():
            raise CheckpointError(f"{path / name} is a symbolic link; put what it leads to in its place, or remove it.")
    for name in ("checkpoints", "events"):
        if (path / name).exists() and not (path / name).is_dir():
            raise CheckpointError(f"{path / name} is no directory; remove it.")
    for file in path.glob("events/*"):
        if file.is_symlink():
            raise CheckpointError(f"{file} is a symbolic link; remove it.")


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> OSError | CheckpointError:
    """Return the error to raise: what a disk or the system has run out of may be there again in a moment."""
    if error.errno in TRANSIENT:
        return error
    return CheckpointError(f"The output directory {path} cannot be written: {error.strerror}.")


def _yaml(config: Config) -> bytes:
    return yaml.safe_dump(config.resolved(), sort_keys=False).encode()


def _refuse_difference(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for section in old:
        for key in sorted({*old[section], *new[section]}):
            before, now = old[section].get(key), new[section].get(key)
            if before != now:
                raise CheckpointError(
                    f"{section}.{key} is {now!r}, but the run in {path} was made with {before!r}; use that, or start a"
                    " new run in another --out."
                )


def _refuse_other_schedule(path: Path, old: Config, new: Config) -> None:
    """Raise where a setting that is free otherwise would change the learning rate of epochs that are done."""
    schedule, name = _span(old.train)
    if name is not None and getattr(old.train, name) != getattr(new.train, name):
        raise CheckpointError(
            f"train.{name} is {getattr(new.train, name)!r}, but the run in {path} was made with"
            f" {getattr(old.train, name)!r}, on which {schedule} depends; use that, or start a new run in another"
            " --out."
        )


def _span(options: TrainOptions) -> tuple[str, str | None]:
    """Return the schedule of the learning rate, and the setting that it goes by besides its own."""
    if options.scheduler is None:
        name = {"cosine": "epochs", "plateau": "eval_every"}.get(options.lr_schedule)
        return f"train.lr_schedule: {options.lr_schedule}", name
    given = {"name": options.scheduler} if isinstance(options.scheduler, str) else options.scheduler
    name = given.get("name", "")
    spans = {"OneCycleLR": ("epochs", "total_steps"), "CosineAnnealingLR": ("epochs", "T_max")}
    setting, own = spans.get(name, ("eval_every" if name == "ReduceLROnPlateau" else None, None))
    return f"train.scheduler: {name}", None if own in given else setting


def _records(path: Path, form: Form) -> Iterator[dict[str, Any]]:
    """Read the JSON objects of a file's lines; a last line that was cut off is left out."""
    lines = _lines(path)
    for number, line in enumerate(lines, 1):
        record = _parsed(line)
        if record is None and number < len(lines):
            raise CheckpointError(f"{path} is damaged at line {number}.")
        if record is not None:
            flaw = flaw_of(record, form)
            if flaw is not None:
                raise CheckpointError(f"{path} is damaged at line {number}: it {flaw}.")
            yield record


def _ends_cut(path: Path) -> bool:
    """Say whether the last line of a file of records is none."""
    lines = _lines(path)
    return bool(lines) and _parsed(lines[-1]) is None


def _lines(path: Path) -> list[bytes]:
    try:
        return read_bytes(path).splitlines()
    except FileNotFoundError:
        return []


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = parse(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
