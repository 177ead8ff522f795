"""Hosts that do not see the run directory: their ranks write into a folder of their own, and rank 0 gets the files.

With each checkpoint such a rank hands over its shard and the events that it has written by then, at the end the other
events. A run that goes on begins with the checkpoint that rank 0 hands to each of these hosts.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trisect.comm.files import Files
from trisect.comm.local.neighbours import Gather
from trisect.comm.notes import Notes, wait_for
from trisect.errors import CheckpointError, FaultError
from trisect.train.run.checkpoint import Checkpoints, Newest, Shard
from trisect.train.run.manifest import MANIFEST, read_manifest

MARK = ".visible-"  # of a file that is there for a moment
_POLL = 0.01  # seconds
_NONE = -1
GoesOn = Callable[[], bool]


@dataclass(frozen=True)
class Host:
    """The host that a rank runs on.

    Attributes:
        first: its first rank.
        folder: which its ranks share, and which is removed after the run.
        notes, files: what they leave for ranks of any host.
        timeout: seconds that they wait for one.
    """

    first: int
    folder: Path
    notes: Notes
    files: Files
    timeout: float


@contextmanager
def marked(run: Path) -> Iterator[Path]:
    """Put a file into the run directory whose name nobody can know who does not see it."""
    with tempfile.NamedTemporaryFile(prefix=MARK, dir=run.absolute()) as file:
        yield Path(file.name)


class Apart:
    """What ranks do whose hosts do not see the run directory, and what rank 0 does for them.

    Args:
        run: the run directory.
        firsts: the first rank of each rank's host, in the order of ranks.
        blind: those of them whose hosts do not see the run directory.

    Attributes:
        ranks: those that do not see the run directory.
        here: whether this rank is one of them.
        directory: where this rank writes.
    """

    def __init__(self, run: Path, host: Host, rank: int, firsts: Sequence[int], blind: Sequence[int]) -> None:
        self._host, self._rank, self._blind = host, rank, blind
        self.ranks = [other for other, first in enumerate(firsts) if first in blind]
        self.here = rank in self.ranks
        self.directory = host.folder / "run" if self.here else run
        self.directory.mkdir(exist_ok=True)
        self._handed = 0  # bytes of the events
        self._readings = 0

    @classmethod
    def look(cls, mark: Path, host: Host, rank: int, gather: Gather) -> Apart | None:
        """Find out with all ranks which hosts do not see the file by which rank 0 has `marked` a run; None: all do."""
        seen = gather((mark.is_file(), host.first))
        blind = sorted({first for sees, first in seen if not sees})
        if 0 in blind:
            ranks = ", ".join(str(other) for other, (sees, first) in enumerate(seen) if not sees and first == 0)
            raise CheckpointError(
                f"The directory {mark.parent} does not exist where rank {ranks} runs, on the host of rank 0; put it"
                " where all ranks of this host see it."
            )
        return cls(mark.parent, host, rank, [first for _, first in seen], blind) if blind else None

    def describe(self) -> str:
        """Say which ranks hand their files over."""
        several = len(self.ranks) > 1
        who = f"Rank{'s' * several} {', '.join(map(str, self.ranks))} {'do' if several else 'does'} not see"
        return f"{who} {self.directory}, and {'hand their' if several else 'hands its'} files to rank 0."

    def give(self, key: str, file: str, goes_on: GoesOn, *, events: bool) -> None:
        """Hand the shard of a checkpoint to rank 0, and the events until now where they are asked for."""
        path = self.directory / file
        try:
            with path.open("rb") as shard:
                self._host.files.give(f"{key}/{file}", shard, goes_on)
        finally:
            path.unlink(missing_ok=True)
        if events:
            self._give_events(key, goes_on)

    def take(self, key: str, rank: int, draft: Path, shard: Shard, goes_on: GoesOn, *, events: bool) -> bool:
        """Put what `give` hands over where the rank would have written it; False where `goes_on` said no."""
        if rank not in self.ranks:
            return True
        with (draft / Path(shard.file).name).open("xb") as file:
            taken = self._host.files.take(f"{key}/{shard.file}", file, goes_on)
            os.fsync(file.fileno())
        if taken is not None and taken != (shard.bytes, shard.sha256):
            raise FaultError(f"rank {rank} read another shard from its disk than it had written; go on with --resume.")
        return taken is not None and (not events or self._take_events(key, rank, goes_on))

    def finish(self) -> None:
        """Hand the last events to rank 0, which adds them to its files."""
        if self.here:
            self._give_events("end")
        elif self._rank == 0:
            for rank in self.ranks:
                self._take_events("end", rank)

    def _give_events(self, key: str, goes_on: GoesOn = lambda: True) -> None:
        with self._events(self._rank).open("rb") as file:
            file.seek(self._handed)
            if self._host.files.give(f"{key}/events-{self._rank}", file, goes_on):
                self._handed = file.tell()

    def _take_events(self, key: str, rank: int, goes_on: GoesOn = lambda: True) -> bool:
        # added to the others when they are whole, which a line may not be: its end then comes with the next ones
        with tempfile.TemporaryFile() as taken:
            if self._host.files.take(f"{key}/events-{rank}", taken, goes_on) is None:
                return False
            taken.seek(0)
            with self._events(rank).open("ab") as file:
                shutil.copyfileobj(taken, file)
        return True

    def _events(self, rank: int) -> Path:
        return self.directory / "events" / f"rank-{rank}.jsonl"

    def reading(self, checkpoints: Checkpoints, read: Callable[[], Newest]) -> Newest:
        """Read the newest checkpoint, as `Checkpoints.latest` asks for it: rank 0 then hands it to the hosts that do
        not see it, and their ranks read that one.
        """
        key = f"handed-{self._readings}"
        self._readings += 1
        if self._rank == 0:
            checkpoint, passed = read()
            self._host.notes.leave(key, _NONE if checkpoint is None else checkpoint.epoch)
            if checkpoint is not None:
                with ThreadPoolExecutor(len(self._blind)) as pool:
                    list(pool.map(partial(self._give_checkpoint, key, checkpoint.path), self._blind))
            return checkpoint, passed
        if self.here:
            epoch = self._wait(lambda: self._host.notes.find(key), "rank 0 did not say what its newest checkpoint is")
            if epoch != _NONE:
                path = checkpoints.path(epoch)
                if self._rank == self._host.first:
                    self._take_checkpoint(key, path)
                self._wait(lambda: path.is_dir() or None, f"{path} was not handed over")
        return read()

    def drop_copies(self) -> None:
        """Remove the checkpoints that were handed to this host, which all its ranks have read."""
        if self.here and self._rank == self._host.first:
            shutil.rmtree(self.directory / "checkpoints", ignore_errors=True)

    def _give_checkpoint(self, key: str, path: Path, first: int) -> None:
        for name in (MANIFEST, *read_manifest(path)["files"]):
            with (path / name).open("rb") as file:
                self._host.files.give(f"{key}/{first}/{name}", file)

    def _take_checkpoint(self, key: str, path: Path) -> None:
        draft = path.with_name(f".{path.name}.draft")
        draft.mkdir(parents=True)
        self._take_file(key, draft, MANIFEST)
        for name in read_manifest(draft)["files"]:
            self._take_file(key, draft, name)
        draft.rename(path)

    def _take_file(self, key: str, folder: Path, name: str) -> None:
        with (folder / name).open("xb") as file:
            self._host.files.take(f"{key}/{self._host.first}/{name}", file)

    def _wait(self, look: Callable[[], Any], missing: str) -> Any:
        return wait_for(look, lambda: True, self._host.timeout, missing, _POLL)
