"""Checkpoints come back bit for bit, and a damaged or foreign one is noticed and passed over."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from trisect.errors import CheckpointError
from trisect.train.run.checkpoint import Checkpoint, Checkpoints, Region, write_shard
from trisect.train.run.manifest import MANIFEST, read_manifest


def state(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    buffer = torch.randn(20, generator=generator)
    return {
        "model/weight": torch.randn(3, 5, generator=generator),
        "model/view": buffer[4:10],
        "optimiser/step": torch.tensor(float(seed)),
        "random": torch.get_rng_state(),
        "empty": torch.zeros(0, 4),
        "half": torch.randn(4, generator=generator).bfloat16(),
        "transposed": torch.randn(2, 6, generator=generator, dtype=torch.float64).T,
    }


def save(
    store: Checkpoints,
    tensors: dict[str, torch.Tensor],
    meta: dict[str, Any],
    *,
    epoch: int,
    best: bool = False,
    regions: dict[str, Region] | None = None,
) -> Path:
    """Write the state after some epochs of a run of one rank."""
    draft = store.draft(epoch)
    return store.commit(draft, [write_shard(draft, 0, tensors, regions)], meta, epoch=epoch, best=best)


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]) for name in left
    )


@pytest.fixture
def store(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", run="a", keep=2)


def test_a_checkpoint_comes_back(store: Checkpoints):
    save(store, state(1), {"epoch": 1, "best_value": 0.1 + 0.2, "losses": [1.5]}, epoch=1, best=True)
    found = store.latest()
    assert found is not None
    assert same(found.tensors, state(1))
    assert not same(found.tensors, state(2))
    assert found.meta == {"epoch": 1, "best_value": 0.1 + 0.2, "losses": [1.5]}
    assert (found.epoch, found.best) == (1, True)


def test_equal_states_give_equal_files(store: Checkpoints, tmp_path: Path):
    other = Checkpoints(tmp_path / "other", run="a")
    first, second = save(store, state(1), {}, epoch=1), save(other, state(1), {}, epoch=1)
    third = save(other, state(2), {}, epoch=2)
    files = [(path / "rank-00000.safetensors").read_bytes() for path in (first, second, third)]
    assert files[0] == files[1] != files[2]


def test_none_where_nothing_was_saved(store: Checkpoints):
    assert store.latest() is None
    assert store.best() is None


def test_the_last_and_the_best_are_kept(store: Checkpoints):
    for epoch in range(1, 8):
        save(store, state(epoch), {}, epoch=epoch, best=epoch in {1, 3})
    assert [path.name for path in store.paths()] == ["epoch-000003", "epoch-000006", "epoch-000007"]
    best = store.best()
    assert best is not None
    assert same(best.tensors, state(3))
    assert not [path for path in store.directory.iterdir() if path.name.startswith(".")]


def test_an_epoch_may_be_written_again(store: Checkpoints):
    save(store, state(1), {}, epoch=1)
    save(store, state(2), {}, epoch=1)
    found = store.latest()
    assert found is not None
    assert same(found.tensors, state(2))


def truncate(path: Path) -> None:
    file = path / "rank-00000.safetensors"
    file.write_bytes(file.read_bytes()[:-7])


def flip(path: Path) -> None:
    file = path / "rank-00000.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)


def lose(path: Path) -> None:
    (path / "rank-00000.safetensors").unlink()


def lose_manifest(path: Path) -> None:
    (path / MANIFEST).unlink()


def cut_manifest(path: Path) -> None:
    content = (path / MANIFEST).read_bytes()
    (path / MANIFEST).write_bytes(content[: len(content) // 2])


def edit_manifest(path: Path) -> None:
    manifest = json.loads((path / MANIFEST).read_bytes())
    manifest["epoch"] = 99
    (path / MANIFEST).write_text(json.dumps(manifest))


def foreign_format(path: Path) -> None:
    (path / MANIFEST).write_text(json.dumps({"format": "other"}))


def later_version(path: Path) -> None:
    manifest = json.loads((path / MANIFEST).read_bytes())
    manifest["version"] = 99
    (path / MANIFEST).write_text(json.dumps(manifest))


def of_another_run(path: Path) -> None:
    other = Checkpoints(path.parent.parent / "other", run="b")
    saved = save(other, state(2), {}, epoch=2)
    shutil.rmtree(path)
    shutil.copytree(saved, path)


DAMAGE = [
    truncate,
    flip,
    lose,
    lose_manifest,
    cut_manifest,
    edit_manifest,
    foreign_format,
    later_version,
    of_another_run,
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_noticed_and_the_one_before_is_taken(store: Checkpoints, damage):
    save(store, state(1), {}, epoch=1)
    damage(save(store, state(2), {}, epoch=2))
    with pytest.raises(CheckpointError, match="epoch-000002"):
        store.read(store.paths()[-1])
    said: list[str] = []
    found = store.latest(said.append)
    assert found is not None
    assert same(found.tensors, state(1))
    assert len(said) == 1
    assert "epoch-000002" in said[0]
    assert "Continuing from epoch-000001" in said[0]
    # set aside, so that it neither counts among the last ones nor blocks epoch 2
    assert [path.name for path in store.paths()] == ["epoch-000001"]
    assert (store.directory / "epoch-000002.damaged").is_dir()


@pytest.mark.parametrize("damage", DAMAGE)
def test_nothing_usable_is_an_error_and_changes_nothing(store: Checkpoints, damage):
    damage(save(store, state(1), {}, epoch=1))
    before = sorted(store.directory.rglob("*"))
    with pytest.raises(CheckpointError):
        store.latest()
    assert sorted(store.directory.rglob("*")) == before


def test_whoever_comes_second_finds_the_same_and_what_was_set_aside_stays(store: Checkpoints):
    save(store, state(1), {}, epoch=1)
    flip(save(store, state(2), {}, epoch=2))
    said: list[str] = []
    found = [store.latest(said.append) for _ in range(2)]
    assert [one.epoch for one in found if one is not None] == [1, 1]
    assert len(said) == 1
    assert (store.directory / "epoch-000002.damaged" / MANIFEST).is_file()
    # the next one that is damaged at that epoch takes its place
    cut_manifest(save(store, state(2), {}, epoch=2))
    assert store.latest() is not None
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_manifest(store.directory / "epoch-000002.damaged")
    assert not [path for path in store.directory.iterdir() if path.name.startswith(".")]


def test_processes_that_know_nothing_of_each_other_may_set_aside_at_once(store: Checkpoints):
    for epoch in range(1, 30, 2):
        save(store, state(epoch), {}, epoch=epoch)
        truncate(save(store, state(epoch + 1), {}, epoch=epoch + 1))
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: store.latest(), range(8)))
        assert [one.epoch for one in found if one is not None] == [epoch] * 8
        assert (store.directory / f"epoch-{epoch + 1:06d}.damaged" / MANIFEST).is_file()
        assert not (store.directory / f"epoch-{epoch + 1:06d}").exists()


class Ranks:
    """Threads in the place of ranks; `gather` is theirs."""

    def __init__(self, world: int) -> None:
        self.given: list[Any] = [None] * world
        self.barrier = threading.Barrier(world, timeout=20)

    def gather(self, rank: int) -> Callable[[Any], list[Any]]:
        def gather(own: Any) -> list[Any]:
            self.given[rank] = own
            self.barrier.wait()
            seen = list(self.given)
            self.barrier.wait()
            return seen

        return gather


def together(stores: list[Checkpoints], said: list[str]) -> list[Checkpoint | CheckpointError | None]:
    ranks = Ranks(len(stores))

    def latest(rank: int) -> Checkpoint | CheckpointError | None:
        say = said.append if rank == 0 else lambda sentence: None
        try:
            return stores[rank].latest(say, rank=rank, gather=ranks.gather(rank))
        except CheckpointError as error:
            return error

    with ThreadPoolExecutor(len(stores)) as pool:
        return list(pool.map(latest, range(len(stores))))


@pytest.mark.parametrize("damage", DAMAGE)
def test_ranks_take_the_same_one(store: Checkpoints, damage):
    save(store, state(1), {}, epoch=1)
    damage(save(store, state(2), {}, epoch=2))
    said: list[str] = []
    found = together([store] * 3, said)
    assert [one.epoch for one in found if isinstance(one, Checkpoint)] == [1, 1, 1]
    assert len(said) == 1
    assert "Continuing from epoch-000001" in said[0]
    assert (store.directory / "epoch-000002.damaged").is_dir()
    assert [path.name for path in store.paths()] == ["epoch-000001"]


class Blind(Checkpoints):
    """Of a rank that cannot read some of the checkpoints, though the others can."""

    unseen: tuple[str, ...] = ()

    def read(self, path: Path, wanted: Callable[[str], bool] = lambda name: True) -> Checkpoint:
        if path.name in self.unseen:
            raise CheckpointError(f"The checkpoint {path} is damaged: rank-00001.safetensors cannot be read.")
        return super().read(path, wanted)


def test_ranks_that_see_different_damage_agree_on_what_is_whole_for_all(store: Checkpoints):
    store.keep = 5
    for epoch in range(1, 6):
        save(store, state(epoch), {}, epoch=epoch)
    stores = [Blind(store.directory, run="a", keep=5) for _ in range(3)]
    stores[1].unseen, stores[2].unseen = ("epoch-000005", "epoch-000003"), ("epoch-000004",)
    alone = [one.read(path).epoch for one in stores for path in one.paths()[-1:] if path.name not in one.unseen]
    assert alone == [5, 5], "by themselves they would not agree"
    said: list[str] = []
    found = together([*stores], said)
    assert [one.epoch for one in found if isinstance(one, Checkpoint)] == [2, 2, 2]
    assert len(said) == 1
    assert [path.name for path in store.paths()] == ["epoch-000001", "epoch-000002"]


def test_ranks_without_a_usable_one_all_say_so(store: Checkpoints, tmp_path: Path):
    assert together([store] * 2, []) == [None, None]
    flip(save(store, state(1), {}, epoch=1))
    found = together([store] * 2, [])
    assert all("epoch-000001 is damaged" in str(one) for one in found)
    assert [path.name for path in store.paths()] == ["epoch-000001"]
    save(store, state(1), {}, epoch=1)
    found = together([store, Checkpoints(tmp_path / "elsewhere", run="a")], [])
    assert all("Not every rank sees the checkpoints" in str(one) for one in found)


def test_a_draft_left_by_a_crash_is_no_checkpoint(store: Checkpoints):
    save(store, state(1), {}, epoch=1)
    write_shard(store.draft(2), 0, state(2))
    found = store.latest()
    assert found is not None
    assert found.epoch == 1
    save(store, state(2), {}, epoch=2)
    found = store.latest()
    assert found is not None
    assert same(found.tensors, state(2))


def test_shards_of_several_ranks_become_whole_tensors(store: Checkpoints):
    whole = torch.arange(24.0).reshape(6, 4)
    draft = store.draft(5)
    shards = [
        write_shard(draft, 0, {"x": whole[:2], "own": torch.ones(2)}, {"x": Region((6, 4), (0, 0))}),
        write_shard(draft, 1, {"x": whole[2:]}, {"x": Region((6, 4), (2, 0))}),
    ]
    path = store.commit(draft, shards, {}, epoch=5, best=False)
    found = store.latest()
    assert found is not None
    assert torch.equal(found.tensors["x"], whole)
    assert torch.equal(found.tensors["own"], torch.ones(2))
    manifest = read_manifest(path)
    assert manifest["tensors"]["x"] == {
        "shape": [6, 4],
        "shards": [
            {"file": "rank-00000.safetensors", "offset": [0, 0], "shape": [2, 4]},
            {"file": "rank-00001.safetensors", "offset": [2, 0], "shape": [4, 4]},
        ],
    }


def test_a_checkpoint_that_was_to_be_replaced_comes_back(tmp_path: Path) -> None:
    """Its process ended after it was moved away, and before the new one was there."""
    kept = Checkpoints(tmp_path / "checkpoints", run="r")
    draft = kept.draft(3)
    kept.commit(draft, [write_shard(draft, 0, {"w": torch.ones(2)})], {"epoch": 3}, epoch=3, best=False)
    kept.path(3).rename(kept.directory / ".epoch-000003.old")
    kept.draft(3)
    kept.remove_drafts()
    assert [path.name for path in kept.directory.iterdir()] == ["epoch-000003"]
    assert kept.read(kept.path(3)).tensors["w"].tolist() == [1.0, 1.0]
