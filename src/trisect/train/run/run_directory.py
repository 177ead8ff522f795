"""The run directory: who may write in it, and the files of a run as they grow.

config.yaml          every setting, resolved
plan.json            what was decided before the first epoch
metrics.jsonl        a line an epoch
events/rank-R.jsonl  what each rank did when
checkpoints/         see `checkpoint`
summary.json         the whole run in one object
scores.json          how scores lie beside labels on val and test, for the report
trace.json           the events for Perfetto (Chrome trace)
tensorboard/         where tensorboard is installed
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from torch import Tensor

from trisect.comm.local.neighbours import Gather
from trisect.config import Config, parse_config, read_yaml
from trisect.errors import CheckpointError
from trisect.train.run.checkpoint import Checkpoint, Checkpoints, Shard, write_atomically, write_shard
from trisect.train.run.lock import LOCK, locked
from trisect.train.run.replicas import replica_digest, require_equal_replicas

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
PLAN = "plan.json"
SCORES = "scores.json"
SUMMARY = "summary.json"
TRACE = "trace.json"

# settings that may differ between a run and its continuation: they do not change what an epoch computes
_FREE = {
    "data": {"directory"},
    "train": {
        "epochs",
        "device",
        "threads",
        "timeout",
        "startup_timeout",
        "guard",
        "eval_every",
        "patience",
        "checkpoint_every",
        "keep",
    },
}


def fingerprint(config: Config) -> str:
    """Give a short name for what a run computes; equal for a run and every continuation of it."""
    return hashlib.sha256(json.dumps(_fixed(config), sort_keys=True, default=str).encode()).hexdigest()[:16]


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
            if any(file.name != LOCK for file in path.iterdir()):
                raise CheckpointError(f"The output directory {path} is not empty; choose another --out.")
        elif path.exists():
            raise CheckpointError(f"The output directory {path} is a file; choose another --out.")

    @classmethod
    @contextlib.contextmanager
    def writing(cls, path: str | Path, config: Config, *, resume: bool = False) -> Iterator[RunDirectory]:
        """Open a run to write it, alone: nothing is read or written before other processes are kept out.

        Args:
            resume: go on with the run in `path`; otherwise `path` must not exist or be empty.
        """
        path = Path(path)
        if resume and not path.is_dir():
            raise CheckpointError(f"{path} holds no run: there is no {CONFIG} in it.")
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

    def describe_start(self, checkpoint: Checkpoint | None) -> str:
        """Say where a resumed run begins."""
        if checkpoint is None:
            return f"There is no checkpoint in {self.path} yet; starting from the first epoch."
        return f"Continuing after epoch {checkpoint.epoch}."

    def tidy(self, say: Callable[[str], None]) -> None:
        """Put in order what a run that was ended left, and say it; called by the one process that may write."""
        self.checkpoints.remove_drafts()
        for name in self.checkpoints.set_aside_others():
            say(f"{name} in {self.checkpoints.directory} is no checkpoint, and was set aside as {name}.damaged.")
        if _ends_cut(self.path / METRICS):
            say(f"The last line of {self.path / METRICS} was cut off, and is left out.")

    def continue_from(self, checkpoint: Checkpoint | None) -> None:
        """Drop what was written after the checkpoint (None: everything), so that it can be written again."""
        write_atomically(self.path / CONFIG, _yaml(self.config))
        epoch = 0 if checkpoint is None else checkpoint.epoch
        for path in (self.path / METRICS, *self.path.glob("events/rank-*.jsonl")):
            lines = [json.dumps(record) + "\n" for record in _records(path) if record.get("epoch", 0) <= epoch]
            write_atomically(path, "".join(lines).encode())

    def metrics(self) -> list[dict[str, Any]]:
        """Read the lines of metrics.jsonl; a last line that was cut off by a crash is left out."""
        return list(_records(self.path / METRICS))

    def events(self, rank: int) -> list[dict[str, Any]]:
        """Read the events of a rank."""
        return list(_records(self.path / "events" / f"rank-{rank}.jsonl"))

    def ranks(self) -> list[int]:
        """List the ranks that wrote events."""
        names = (path.stem.removeprefix("rank-") for path in self.path.glob("events/rank-*.jsonl"))
        return sorted(int(name) for name in names if name.isdecimal())

    def summary(self) -> dict[str, Any] | None:
        """Read summary.json; give None where the run has not ended."""
        return _read_object(self.path / SUMMARY)

    def scores(self) -> dict[str, Any] | None:
        """Read scores.json; give None where the run has not ended, or counted none."""
        return _read_object(self.path / SCORES)

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        """Write plan.json: what was decided before the first epoch."""
        write_atomically(self.path / PLAN, json.dumps(plan, indent=2).encode())

    def plan(self) -> dict[str, Any]:
        """Read plan.json; nothing where the run has none."""
        try:
            plan = json.loads((self.path / PLAN).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return plan if isinstance(plan, dict) else {}

    def write_summary(self, summary: Mapping[str, Any], scores: Mapping[str, Any] | None = None) -> None:
        """Write summary.json, trace.json and, where there are any, scores.json, at the end."""
        if scores:
            write_atomically(self.path / SCORES, json.dumps(scores).encode())
        write_atomically(self.path / SUMMARY, json.dumps(summary, indent=2).encode())
        write_atomically(self.path / TRACE, json.dumps(self.trace()).encode())

    def name_classes(self, names: Sequence[str] | None) -> None:
        """Add the names of the classes to scores.json, where there are both."""
        scores = self.scores()
        if names and scores:
            write_atomically(self.path / SCORES, json.dumps({**scores, "classes": list(names)}).encode())

    def trace(self) -> dict[str, Any]:
        """Give all ranks' events in the Chrome trace format: a process a rank, a row a kind of event."""
        events: list[dict[str, Any]] = []
        by_rank = {rank: self.events(rank) for rank in self.ranks()}
        origin = min((event["start"] for own in by_rank.values() for event in own), default=0.0)
        for rank, own in by_rank.items():
            events.append({"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}})
            for event in own:
                extra = {key: value for key, value in event.items() if key not in {"name", "start", "seconds", "lane"}}
                events.append(
                    {
                        "ph": "X",
                        "name": event["name"],
                        "pid": rank,
                        "tid": event.get("lane", 0),
                        "ts": round((event["start"] - origin) * 1e6, 1),
                        "dur": round(event["seconds"] * 1e6, 1),
                        "args": extra,
                    }
                )
        return {"traceEvents": events, "displayTimeUnit": "ms"}


class RunRecorder:
    """Writes what the trainer of one rank tells to the run directory.

    Rank 0 writes metrics, tensorboard and the manifest of a checkpoint; every rank its events and its shard.

    Args:
        on_epoch: called with each epoch's record, for progress.
        gather: gives what each rank hands in, in the order of ranks, on all of them.
        holds_parameters: whether this rank writes the parameters of its stage, which all its parts and runs hold.
        compare: whether ranks that hold the same parameters are compared before each checkpoint.
        meta: what each checkpoint says besides the trainer's state.
    """

    def __init__(
        self,
        directory: RunDirectory,
        *,
        rank: int = 0,
        on_epoch: Callable[[Mapping[str, Any]], None] = lambda record: None,
        gather: Gather = lambda own: [own],
        holds_parameters: bool = True,
        compare: bool = False,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        self._checkpoints, self._rank = directory.checkpoints, rank
        self._on_epoch, self._gather, self._holds_parameters = on_epoch, gather, holds_parameters
        self._meta, self._compare = dict(meta or {}), compare
        (directory.path / "events").mkdir(exist_ok=True)
        self._metrics = (directory.path / METRICS).open("a", encoding="utf-8") if rank == 0 else None
        self._events = (directory.path / "events" / f"rank-{rank}.jsonl").open("a", encoding="utf-8")
        self._board = _tensorboard(directory.path / "tensorboard") if rank == 0 else None
        self._fields: dict[str, Any] = {}
        self._ending = ""

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Write one line of metrics.jsonl."""
        if self._metrics is not None:
            self._metrics.write(json.dumps(dict(record)) + "\n")
            self._metrics.flush()
        self._events.flush()
        if self._board is not None:
            for name, value in _scalars(record):
                self._board.add_scalar(name, value, record["epoch"])
        self._on_epoch(record)

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        """Write what a rank did; `start` is in seconds since 1970."""
        # actions are many: what they have in common is made once, and the rest without a dictionary
        if fields != self._fields:
            self._fields = fields
            self._ending = "".join(f", {json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items())
        self._events.write(f'{{"name": {_quoted(name)}, "start": {start!r}, "seconds": {seconds!r}{self._ending}}}\n')

    def checkpoint(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, best: bool) -> None:
        """Write the state after meta["epoch"] epochs: the shards of all ranks, then the manifest."""
        if self._metrics is not None:
            os.fsync(self._metrics.fileno())  # a checkpoint must not know epochs that metrics.jsonl forgot
        epoch = int(meta["epoch"])
        if self._compare:
            require_equal_replicas(self._gather(replica_digest(tensors)), epoch)
        draft = Path(self._gather(str(self._checkpoints.draft(epoch)) if self._rank == 0 else "")[0])
        own = {k: v for k, v in tensors.items() if self._holds_parameters or k.startswith("program.")}
        written = self._gather(write_shard(draft, self._rank, own).plain())
        if self._rank == 0:
            shards = [Shard.from_plain(one) for one in written]
            self._checkpoints.commit(draft, shards, {**meta, **self._meta}, epoch=epoch, best=best)
        self._gather(None)

    def close(self) -> None:
        """Close the files of metrics, events and TensorBoard."""
        if self._metrics is not None:
            self._metrics.close()
        self._events.close()
        if self._board is not None:
            self._board.close()


def read_config(path: str | Path) -> Config:
    """Read the settings of the run in `path`."""
    path = Path(path)
    try:
        text = (path / CONFIG).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{path} holds no run: there is no {CONFIG} in it.") from None
    except (OSError, UnicodeDecodeError):
        raise CheckpointError(f"{path / CONFIG} cannot be read.") from None
    plain = read_yaml(text, str(path / CONFIG))
    if not isinstance(plain, dict):
        raise CheckpointError(f"{path / CONFIG} is damaged: it is not a mapping.")
    return parse_config(plain)


def _refuse_links(path: Path) -> None:
    """Raise where a part of the run directory lies elsewhere: who made the link would choose what is overwritten."""
    for name in ("checkpoints", "events", METRICS, "tensorboard"):
        if (path / name).is_symlink():
            raise CheckpointError(f"{path / name} is a symbolic link; put what it leads to in its place, or remove it.")
    for file in path.glob("events/*"):
        if file.is_symlink():
            raise CheckpointError(f"{file} is a symbolic link; remove it.")


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> CheckpointError:
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
    name = {"cosine": "epochs", "plateau": "eval_every"}.get(old.train.lr_schedule)
    if name is not None and getattr(old.train, name) != getattr(new.train, name):
        raise CheckpointError(
            f"train.{name} is {getattr(new.train, name)!r}, but the run in {path} was made with"
            f" {getattr(old.train, name)!r}, on which train.lr_schedule: {old.train.lr_schedule} depends; use that, or"
            " start a new run in another --out."
        )


def _read_object(path: Path) -> dict[str, Any] | None:
    """Read a file that holds one JSON object; None where there is none."""
    try:
        plain = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        raise CheckpointError(f"{path} is damaged: it is not JSON.") from None
    if not isinstance(plain, dict):
        raise CheckpointError(f"{path} is damaged: it is not a JSON object.")
    return plain


def _records(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return
    for number, line in enumerate(lines, 1):
        record = _parsed(line)
        if record is not None:
            yield record
        elif number < len(lines):
            raise CheckpointError(f"{path} is damaged at line {number}.")


def _ends_cut(path: Path) -> bool:
    """Say whether the last line of a file of records is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    return bool(lines) and _parsed(lines[-1]) is None


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        plain = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return plain if isinstance(plain, dict) else None


@functools.lru_cache(maxsize=1 << 14)
def _quoted(name: str) -> str:
    return json.dumps(name)


def _scalars(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in record.items():
        if isinstance(value, Mapping):
            for inner, number in _scalars(value):
                yield f"{key}/{inner}", number
        elif key != "epoch" and isinstance(value, (int, float)):
            yield key, float(value)


def _tensorboard(path: Path) -> SummaryWriter | None:
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(path))
