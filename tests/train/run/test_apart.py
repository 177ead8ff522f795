"""Ranks that do not see the run directory: threads in their place, each with a folder of its own."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import PrefixStore, TCPStore

from trisect.comm.files import Files
from trisect.comm.notes import StoreNotes
from trisect.errors import CheckpointError
from trisect.train.run.apart import Apart, Host, marked
from trisect.train.run.checkpoint import Checkpoint, Checkpoints
from trisect.train.run.writer import CheckpointWriter

WORLD = 4  # ranks 0, 1 on a host that sees the run directory, and 2, 3 on one that does not


class Ranks:
    """Four ranks on two hosts, which meet in a store."""

    def __init__(self, folder: Path, timeout: float = 20.0) -> None:
        self.server = TCPStore("127.0.0.1", 0, None, True, timeout=datetime.timedelta(seconds=20))
        self.run = folder / "run"
        (self.run / "events").mkdir(parents=True)
        self._given: list[Any] = [None] * WORLD
        self._barrier = threading.Barrier(WORLD, timeout=20)
        hosts = []
        for rank in range(WORLD):
            own = folder / f"host-{rank // 2}"
            own.mkdir(exist_ok=True)
            store = PrefixStore("a", self.server)
            hosts.append(Host(rank - rank % 2, own, StoreNotes(store), Files(store, timeout), timeout))
        self.hosts = hosts
        with marked(self.run) as mark:
            looked = self.each(lambda rank: self.look(rank, mark if rank < 2 else folder / mark.name))
        assert not list(self.run.glob(".*"))
        assert all(one is not None for one in looked)
        self.apart: list[Apart] = looked
        for apart in self.apart:
            (apart.directory / "events").mkdir(exist_ok=True)
        self.checkpoints = [Checkpoints(apart.directory / "checkpoints", run="r") for apart in self.apart]

    def look(self, rank: int, mark: Path) -> Apart | None:
        apart = Apart.look(mark, self.hosts[rank], rank, partial(self.gather, rank))
        if apart is not None and not apart.here:
            assert apart.directory == self.run
        return apart

    def each(self, work: Callable[[int], Any]) -> list[Any]:
        with ThreadPoolExecutor(WORLD) as pool:
            return list(pool.map(work, range(WORLD)))

    def gather(self, rank: int, own: Any) -> list[Any]:
        self._given[rank] = own
        self._barrier.wait()
        seen = list(self._given)
        self._barrier.wait()
        return seen

    def write(self, writers: list[CheckpointWriter], epoch: int) -> None:
        for rank, writer in enumerate(writers):
            writer.begin(state(rank, epoch), lambda name: True, {"epoch": epoch}, best=False)
        for writer in writers:
            writer.wait()

    def writers(self) -> list[CheckpointWriter]:
        return [
            CheckpointWriter(
                self.checkpoints[rank], rank=rank, world=WORLD, notes=self.hosts[rank].notes, apart=self.apart[rank]
            )
            for rank in range(WORLD)
        ]

    def latest(self, said: list[str]) -> list[Checkpoint | None]:
        def read(rank: int) -> Checkpoint | None:
            checkpoints = self.checkpoints[rank]
            say = said.append if rank == 0 else lambda sentence: None
            reading = partial(self.apart[rank].reading, checkpoints)
            return checkpoints.latest(say, rank=rank, gather=partial(self.gather, rank), reading=reading)

        return self.each(read)


def state(rank: int, epoch: int) -> dict[str, torch.Tensor]:
    return {f"program.rank-{rank}": torch.full((5,), float(10 * epoch + rank))}


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path)


def test_who_does_not_see_the_run_is_found_by_all(ranks: Ranks) -> None:
    assert [apart.ranks for apart in ranks.apart] == [[2, 3]] * WORLD
    assert [apart.here for apart in ranks.apart] == [False, False, True, True]
    assert ranks.apart[0].describe() == f"Ranks 2, 3 do not see {ranks.run}, and hand their files to rank 0."
    with marked(ranks.run) as mark:
        assert ranks.each(lambda rank: ranks.look(rank, mark)) == [None] * WORLD
        with pytest.raises(CheckpointError, match="rank 1 runs, on the host of rank 0"):
            ranks.each(lambda rank: ranks.look(rank, mark if rank != 1 else mark / "other"))


def test_shards_and_events_come_to_rank_0_and_go_back(ranks: Ranks) -> None:
    writers = ranks.writers()
    events = ranks.run / "events" / "rank-3.jsonl"
    events.write_text("before\n")
    for epoch in (1, 2):
        for rank in (2, 3):
            with (ranks.apart[rank].directory / "events" / f"rank-{rank}.jsonl").open("a") as file:
                file.write(f"rank {rank}, epoch {epoch}\n")
        ranks.write(writers, epoch)
        assert not list(ranks.apart[2].directory.glob("*.safetensors"))
    assert events.read_text() == "before\nrank 3, epoch 1\nrank 3, epoch 2\n"
    ranks.each(lambda rank: ranks.apart[rank].finish())
    assert events.read_text() == "before\nrank 3, epoch 1\nrank 3, epoch 2\n"

    said: list[str] = []
    for checkpoint in ranks.latest(said):
        assert checkpoint is not None
        assert checkpoint.epoch == 2
        assert sorted(checkpoint.tensors) == [f"program.rank-{rank}" for rank in range(WORLD)]
        for rank in range(WORLD):
            assert checkpoint.tensors[f"program.rank-{rank}"].equal(state(rank, 2)[f"program.rank-{rank}"])
    assert said == []
    keys = ranks.server.num_keys()
    for apart in ranks.apart:
        apart.drop_copies()
    assert not (ranks.apart[2].directory / "checkpoints").exists()
    assert len(ranks.checkpoints[0].paths()) == 2

    # as on one host: the newest is damaged, and all take the one before; then there is none
    shard = ranks.run / "checkpoints" / "epoch-000002" / "rank-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    assert [one.epoch for one in ranks.latest(said) if one is not None] == [1] * WORLD
    assert "rank-00003.safetensors does not match" in said[0]
    assert "Continuing from epoch-000001 instead" in said[0]
    for apart in ranks.apart:
        apart.drop_copies()
    (ranks.run / "checkpoints" / "epoch-000001").rename(ranks.run / "gone")
    assert ranks.latest(said) == [None] * WORLD
    assert ranks.server.num_keys() == keys + 2  # the two words of rank 0


def test_a_rank_that_reads_less_leads_all_to_an_older_one(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    writers = ranks.writers()
    for rank in (2, 3):
        (ranks.apart[rank].directory / "events" / f"rank-{rank}.jsonl").touch()
    ranks.write(writers, 1)
    ranks.write(writers, 2)
    honest = ranks.checkpoints[1].read

    def read(path: Path, wanted: Callable[[str], bool] = lambda name: True) -> Checkpoint:
        if path.name == "epoch-000002":
            raise CheckpointError(f"The checkpoint {path} is damaged: it cannot be read.")
        return honest(path, wanted)

    monkeypatch.setattr(ranks.checkpoints[1], "read", read)
    assert [one.epoch for one in ranks.latest([]) if one is not None] == [1] * WORLD


def test_a_host_that_is_gone_ends_the_checkpoint_in_time(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, timeout=0.3)
    notes, checkpoints = ranks.hosts[0].notes, ranks.checkpoints[0]
    writer = CheckpointWriter(checkpoints, rank=0, world=WORLD, notes=notes, apart=ranks.apart[0], timeout=0.3)
    for rank in (1, 2, 3):  # all have said what they wrote, and rank 2 never hands it over
        plain = {"file": f"rank-{rank:05d}.safetensors", "bytes": 1, "sha256": "", "tensors": {}}
        notes.leave(f"checkpoint-1/shard-{rank}", {"shard": plain, "digest": None})
    writer.begin(state(0, 1), lambda name: True, {"epoch": 1}, best=False)
    with pytest.raises(RuntimeError, match=r"Timed out: nobody handed over checkpoint-1/rank-00002.safetensors"):
        writer.wait()
    assert checkpoints.paths() == []
