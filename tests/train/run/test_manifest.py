"""A manifest that fits its own hash is still not believed: what it says must be a checkpoint, inside its directory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trisect.errors import CheckpointError
from trisect.train.run.checkpoint import Checkpoints, Region, write_shard
from trisect.train.run.manifest import MANIFEST, manifest_hash, read_manifest

Change = Callable[[dict[str, Any], Path], None]


@pytest.fixture
def store(tmp_path: Path) -> Checkpoints:
    """Two checkpoints of two ranks, each of which holds half of a tensor."""
    store = Checkpoints(tmp_path / "checkpoints", run="a")
    for epoch in (1, 2):
        draft = store.draft(epoch)
        shards = [
            write_shard(draft, rank, {"w": torch.full((2, 3), float(rank))}, {"w": Region((4, 3), (2 * rank, 0))})
            for rank in range(2)
        ]
        store.commit(draft, shards, {"epoch": epoch}, epoch=epoch, best=False)
    return store


def forge(path: Path, change: Change) -> None:
    """Change a manifest, and its hash with it."""
    manifest = json.loads((path / MANIFEST).read_text())
    change(manifest, path)
    manifest["sha256"] = manifest_hash(manifest)
    (path / MANIFEST).write_text(json.dumps(manifest))


def put(*keys: Any, value: Any) -> Change:
    def change(manifest: dict[str, Any], path: Path) -> None:
        for key in keys[:-1]:
            manifest = manifest[key]
        manifest[keys[-1]] = value

    return change


def file_elsewhere(name: str) -> Change:
    def change(manifest: dict[str, Any], path: Path) -> None:
        manifest["files"][name] = manifest["files"].pop("rank-00001.safetensors")
        manifest["tensors"]["w"]["shards"][1]["file"] = name

    return change


def link(manifest: dict[str, Any], path: Path) -> None:
    shard = path / "rank-00001.safetensors"
    shard.rename(path.parent.parent / "outside")
    shard.symlink_to(path.parent.parent / "outside")


def queue(manifest: dict[str, Any], path: Path) -> None:
    (path / "rank-00001.safetensors").unlink()
    os.mkfifo(path / "rank-00001.safetensors")


def swapped_shapes(manifest: dict[str, Any], path: Path) -> None:
    manifest["tensors"]["w"]["shape"] = [3, 4]
    for rank, shard in enumerate(manifest["tensors"]["w"]["shards"]):
        shard.update(shape=[3, 2], offset=[0, 2 * rank])


W = ("tensors", "w")
HUGE = {"file": "rank-00000.safetensors", "offset": [0], "shape": [2**40]}
FORGERIES: dict[str, tuple[Change, str]] = {
    "absolute path": (file_elsewhere("/etc/passwd"), "names the file"),
    "path upwards": (file_elsewhere("../epoch-000001/rank-00001.safetensors"), "names the file"),
    "no files": (put("files", value={}), "a file that it does not list"),
    "files are a list": (put("files", value=[]), "has no proper 'files'"),
    "no size": (put("files", "rank-00000.safetensors", value={}), "size and the hash"),
    "a hole": (put(*W, "shards", 1, "offset", value=[0, 0]), "that overlap"),
    "a shard missing": (lambda manifest, path: manifest["tensors"]["w"]["shards"].pop(), "that do not cover it"),
    "no shards": (put(*W, "shards", value=[]), "that are none"),
    "beyond": (put(*W, "shards", 1, "offset", value=[3, 0]), "that reach beyond it"),
    "negative": (put(*W, "shards", 1, "offset", value=[-2, 0]), "without shape and offset"),
    "dimensions": (put(*W, "shards", 1, "offset", value=[2]), "another number of dimensions"),
    "huge": (put(*W, value={"shape": [2**40], "shards": []}), "that are none"),
    "huge shard": (put(*W, value={"shape": [2**40], "shards": [HUGE]}), "larger than their files"),
    "other shapes": (swapped_shapes, "its manifest says"),
    "shape of text": (put(*W, "shape", value="4x3"), "gives no shape"),
    "shape of truth": (put(*W, "shape", value=[True, 3]), "gives no shape"),
    "epoch of text": (put("epoch", value="2"), "has no proper 'epoch'"),
    "another epoch": (put("epoch", value=7), "says epoch 7, and its meta epoch 2"),
    "an epoch of text in its meta": (put("meta", "epoch", value="2"), "says meta.epoch: '2', and that must be a whole"),
    "no list of losses": (put("meta", "loss", value=3), "says meta.loss: 3, and that must be a list"),
    "a loss of text": (put("meta", "loss", value=[1.0, "x"]), r"says meta.loss[1]: 'x', and that must be a number"),
    "half a rate": (put("meta", "lr", value={"scale": 1.0}), "says meta.lr.stalled: None"),
    "a wrong guard": (put("meta", "guard", value=[1]), "says meta.guard: [1], and that must be a mapping"),
    "no meta": (put("meta", value=None), "has no proper 'meta'"),
    "an unknown tensor": (
        lambda manifest, path: manifest["tensors"].update(v=manifest["tensors"]["w"]),
        "is damaged",
    ),
    "a link": (link, "cannot be read"),
    "a queue": (queue, "cannot be read"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_manifest_is_refused_and_the_one_before_is_taken(store: Checkpoints, name: str):
    change, words = FORGERIES[name]
    said: list[str] = []
    forge(store.paths()[-1], change)
    checkpoint = store.latest(said.append)
    assert checkpoint is not None
    assert checkpoint.epoch == 1
    assert torch.equal(checkpoint.tensors["w"], torch.tensor([0.0, 0, 1, 1])[:, None].expand(4, 3))
    [sentence] = said
    assert words in sentence
    assert "\n" not in sentence


def test_a_manifest_that_is_left_alone_is_taken(store: Checkpoints):
    forge(store.paths()[-1], lambda manifest, path: None)
    checkpoint = store.latest()
    assert checkpoint is not None
    assert checkpoint.epoch == 2


@pytest.mark.parametrize("content", [b"[" * 100_000, b"{}", b"\xff\xfe", b"nan", b"[1]"])
def test_any_bytes_give_a_sentence(store: Checkpoints, content: bytes):
    path = store.paths()[-1]
    (path / MANIFEST).write_bytes(content)
    with pytest.raises(CheckpointError, match="The checkpoint"):
        read_manifest(path)


def test_drafts_do_not_follow_links(store: Checkpoints, tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("kept")
    (store.directory / ".epoch-000003.draft").symlink_to(outside)
    draft = store.draft(3)
    store.commit(draft, [write_shard(draft, 0, {"w": torch.ones(2)})], {"epoch": 3}, epoch=3, best=False)
    assert [path.name for path in outside.iterdir()] == ["precious"]
    checkpoint = store.latest()
    assert checkpoint is not None
    assert checkpoint.epoch == 3


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_is_named_like_a_checkpoint_is_set_aside(store: Checkpoints, tmp_path: Path, kind: str):
    name = store.directory / "epoch-000003"
    if kind == "file":
        name.write_text("mine")
    else:
        name.symlink_to(tmp_path / "nowhere")
    checkpoint = store.latest()
    assert checkpoint is not None
    assert checkpoint.epoch == 2
    draft = store.draft(3)
    store.commit(draft, [write_shard(draft, 0, {"w": torch.ones(2)})], {"epoch": 3}, epoch=3, best=False)
    assert (store.directory / "epoch-000003.damaged").is_symlink() == (kind == "link")
    assert os.path.lexists(store.directory / "epoch-000003.damaged")
    checkpoint = store.latest()
    assert checkpoint is not None
    assert checkpoint.epoch == 3
