"""Checkpoints: safetensors shards and one JSON manifest, written beside and renamed, never pickled.

A checkpoint is a directory `epoch-000020/` with a shard per rank and `manifest.json`:

    format, version, run, epoch, best, meta
    files    rank-00000.safetensors → {bytes, sha256}
    tensors  name → {shape: of the full tensor, shards: [{file, offset, shape}]}
    sha256   of the manifest itself without this key

Tensors are named by what they are, with their region of the full tensor, so that any layout may read them.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from trisect.comm.local.neighbours import Gather
from trisect.errors import CheckpointError
from trisect.settings.writing import to_json
from trisect.train.run.manifest import FORMAT, MANIFEST, VERSION, manifest_hash, read_manifest
from trisect.train.run.sound_json import open_regular

_UNFINISHED = re.compile(r"^\.epoch-[0-9]{6,12}\.(draft|old|[0-9a-f]{32})$")
_NAME = re.compile(r"^epoch-[0-9]{6,12}$")
_BLOCK = 1 << 20  # bytes


@dataclass(frozen=True)
class Region:
    """Which region of a tensor a rank holds: the shape of the full tensor, and the first index of each dimension."""

    shape: tuple[int, ...]
    offset: tuple[int, ...]


@dataclass(frozen=True)
class Shard:
    """What a rank wrote: its file, that file's size and hash, and its tensors' (own shape, region)."""

    file: str
    bytes: int
    sha256: str
    tensors: dict[str, tuple[tuple[int, ...], Region]]

    def plain(self) -> dict[str, Any]:
        """Give plain values that ranks may send to each other."""
        tensors = {name: (own, region.shape, region.offset) for name, (own, region) in self.tensors.items()}
        return {"file": self.file, "bytes": self.bytes, "sha256": self.sha256, "tensors": tensors}

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Shard:
        """Make the shard that `plain` was called on."""
        tensors = {name: (own, Region(shape, offset)) for name, (own, shape, offset) in values["tensors"].items()}
        return cls(values["file"], values["bytes"], values["sha256"], tensors)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint that was read and is undamaged; its tensors are the full ones, on the CPU."""

    path: Path
    epoch: int
    best: bool
    tensors: dict[str, Tensor]
    meta: dict[str, Any]


# what was read, and what is wrong with those that were passed over, by epoch
Newest = tuple[Checkpoint | None, dict[int, str]]


def at_once(read: Callable[[], Newest]) -> Newest:
    """Read checkpoints where they lie."""
    return read()


class Checkpoints:
    """The checkpoints of one run: the last `keep` and the best.

    Args:
        directory: made when the first checkpoint is written.
        run: identifies the run; a checkpoint with another one is foreign.
        keep: how many of the last stay, besides the best.
    """

    def __init__(self, directory: str | Path, *, run: str, keep: int = 2) -> None:
        self.directory = Path(directory)
        self.run = run
        self.keep = keep

    def draft(self, epoch: int) -> Path:
        """Make an empty directory beside the final one, for the ranks' shards."""
        draft = self.directory / f".epoch-{epoch:06d}.draft"
        _remove(draft)
        self.directory.mkdir(exist_ok=True)  # the run directory itself must be there: who removed it wants it no more
        draft.mkdir()
        return draft

    def commit(self, draft: Path, shards: Sequence[Shard], meta: Mapping[str, Any], *, epoch: int, best: bool) -> Path:
        """Write the manifest and give the draft its name; until then no reader sees it."""
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "run": self.run,
            "epoch": epoch,
            "best": best,
            "files": {shard.file: {"bytes": shard.bytes, "sha256": shard.sha256} for shard in shards},
            "tensors": _index(shards),
            "meta": dict(meta),
        }
        manifest["sha256"] = manifest_hash(manifest)
        write_synced(draft / MANIFEST, to_json(manifest, indent=1).encode())
        _sync_directory(draft)
        final = self.path(epoch)
        if not _is_directory(final):
            _mark_damaged(final)  # a file or a link, if anything
            draft.rename(final)
        else:  # a resumed run writes an epoch again
            old = self.directory / f".epoch-{epoch:06d}.old"
            _remove(old)
            final.rename(old)
            draft.rename(final)
            _remove(old)
        _sync_directory(self.directory)
        self._prune()
        return final

    def remove_drafts(self) -> None:
        """Remove what processes that ended in the middle of a checkpoint left; called by the one that may write.

        A draft gets another name first: a thread that still writes it cannot commit it while it is being removed.
        """
        for path in sorted(self.directory.iterdir()) if self.directory.is_dir() else ():
            if not _UNFINISHED.match(path.name):
                continue
            stem = path.name[1:].split(".")[0]
            final = self.directory / stem
            with suppress(FileNotFoundError):
                if path.suffix == ".old" and not final.exists():  # the one that was to replace it never came
                    path.rename(final)
                    continue
                gone = path.with_name(f".{stem}.{uuid.uuid4().hex}")
                path.rename(gone)
                _remove(gone)

    def set_aside_others(self) -> list[str]:
        """Rename what is named like a checkpoint and is none, a file or a link; give the names."""
        if not self.directory.is_dir():
            return []
        others = [p for p in self.directory.iterdir() if _NAME.match(p.name) and not _is_directory(p)]
        for path in others:
            _mark_damaged(path)
        return [path.name for path in others]

    def paths(self) -> list[Path]:
        """List all checkpoints, the oldest first, damaged ones too."""
        if not self.directory.is_dir():
            return []
        paths = [path for path in self.directory.iterdir() if _is_directory(path) and _NAME.match(path.name)]
        return sorted(paths, key=_epoch_of)

    def latest(
        self,
        say: Callable[[str], None] = lambda sentence: None,
        wanted: Callable[[str], bool] = lambda name: True,
        *,
        rank: int = 0,
        gather: Gather = lambda own: [own],
        reading: Callable[[Callable[[], Newest]], Newest] = at_once,
    ) -> Checkpoint | None:
        """Read the newest undamaged checkpoint; give None where there is none at all.

        Of its tensors those are read whose names are `wanted`.

        A damaged or foreign one is told to `say`, set aside under a name ending in `.damaged`, and the one before it
        is tried. Ranks that call this together all get the same epoch: the newest that each of them can read.
        Nothing is set aside before all have read, and then by rank 0 alone.

        Args:
            rank, gather: this rank among those that call, and what each of them gives, in their order.
            reading: calls what reads, when the files are there.

        Raises:
            CheckpointError: there are checkpoints, and none of them can be used.
        """
        checkpoint, passed = reading(partial(self._newest, wanted))
        while True:
            seen = gather((None if checkpoint is None else _epoch_of(checkpoint.path), passed))
            epochs = [epoch for epoch, _ in seen]
            damage: dict[int, str] = {epoch: said for _, other in reversed(seen) for epoch, said in other.items()}
            if None in epochs:
                if damage:
                    raise CheckpointError(damage[min(damage)])
                if checkpoint is None and set(epochs) == {None}:
                    return None
                raise CheckpointError(
                    f"Not every rank sees the checkpoints in {self.directory}; put it on a file system that all hosts"
                    " share."
                )
            agreed = min(epochs)
            if set(epochs) == {agreed}:
                break
            if checkpoint is None or _epoch_of(checkpoint.path) > agreed:
                checkpoint, more = reading(partial(self._newest, wanted, agreed))
                passed |= more
        if rank == 0:
            for epoch in damage:
                _mark_damaged(self.path(epoch))
        if damage:
            say(f"{damage[min(damage)]} Continuing from {self.path(agreed).name} instead.")
        return checkpoint

    def _newest(self, wanted: Callable[[str], bool], limit: int | None = None) -> Newest:
        """Read the newest undamaged checkpoint (at most `limit`), and say what is wrong with those passed over."""
        passed: dict[int, str] = {}
        for path in reversed(self.paths()):
            if limit is None or _epoch_of(path) <= limit:
                try:
                    return self.read(path, wanted), passed
                except CheckpointError as error:
                    passed[_epoch_of(path)] = str(error)
        return None, passed

    def path(self, epoch: int) -> Path:
        """Name the directory of the checkpoint after so many epochs."""
        return self.directory / f"epoch-{epoch:06d}"

    def best(self) -> Checkpoint | None:
        """Read the newest checkpoint that was the best when it was written, or give None."""
        for path in reversed(self.paths()):
            if _is_best(path):
                return self.read(path)
        return None

    def read(self, path: Path, wanted: Callable[[str], bool] = lambda name: True) -> Checkpoint:
        """Read a checkpoint, after its sizes and hashes were compared with its manifest."""
        manifest = read_manifest(path)
        if manifest["epoch"] != _epoch_of(path):
            raise CheckpointError(f"The checkpoint {path} is one of epoch {manifest['epoch']}; give it its name back.")
        if manifest["run"] != self.run:
            raise CheckpointError(f"The checkpoint {path} belongs to another run (its settings differ); remove it.")
        for name, expected in manifest["files"].items():
            _verify(path, name, expected)
        return Checkpoint(
            path=path,
            epoch=manifest["epoch"],
            best=manifest["best"],
            tensors=_assemble(path, {k: v for k, v in manifest["tensors"].items() if wanted(k)}),
            meta=manifest["meta"],
        )

    def _prune(self) -> None:
        paths = self.paths()
        last = set(paths[-self.keep :])
        best = next((path for path in reversed(paths) if _is_best(path)), None)
        for path in paths:
            if path not in last and path != best:
                _remove(path)


_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_shard(
    draft: Path, rank: int, tensors: Mapping[str, Tensor], regions: Mapping[str, Region] | None = None
) -> Shard:
    """Write a rank's tensors to `rank-00000.safetensors` in `draft`. A tensor without a region is a full one."""
    name = f"rank-{rank:05d}.safetensors"
    size, digest = _write_tensors(draft / name, tensors)
    entries = {}
    for key, value in tensors.items():
        own = tuple(value.shape)
        entries[key] = (own, (regions or {}).get(key) or Region(own, (0,) * len(own)))
    return Shard(name, size, digest, entries)


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> tuple[int, str]:
    """Write a safetensors file one tensor at a time, since history may fill half of the memory; its size and hash."""
    # as the library has it: by falling alignment, then by name
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {}
    end = 0
    for name in names:
        value = tensors[name]
        begin, end = end, end + value.numel() * value.element_size()
        header[name] = {"dtype": _TYPES[value.dtype], "shape": list(value.shape), "data_offsets": [begin, end]}
    text = to_json(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with _created(path) as file:
        for head in (len(text).to_bytes(8, "little"), text):
            digest.update(head)
            file.write(head)
        for name in names:
            if tensors[name].numel():
                content = tensors[name].detach().to("cpu").contiguous().view(-1).view(torch.uint8).numpy().data
                for begin in range(0, len(content), _BLOCK):  # written while it is still in the cache
                    block = content[begin : begin + _BLOCK]
                    digest.update(block)
                    file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return 8 + len(text) + end, digest.hexdigest()


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    with _created(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside and rename, so that a reader sees the old file or the new one and nothing between."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        write_synced(draft, content)
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _created(path: Path) -> IO[bytes]:
    """Make a new file to write; what was there is removed, so that a link leads nowhere."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), "wb")


def _remove(path: Path) -> None:
    """Remove a file, a link or a directory; nothing where there is none."""
    if _is_directory(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _index(shards: Sequence[Shard]) -> dict[str, Any]:
    index: dict[str, Any] = {}
    for shard in shards:
        for name, (own, region) in shard.tensors.items():
            entry = index.setdefault(name, {"shape": list(region.shape), "shards": []})
            entry["shards"].append({"file": shard.file, "offset": list(region.offset), "shape": list(own)})
    return index


def _assemble(path: Path, index: Mapping[str, Any]) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    files: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    try:
        for name, entry in index.items():
            for shard in entry["shards"]:
                if shard["file"] not in files:
                    files[shard["file"]] = safe_open(path / shard["file"], framework="pt")
                part: Tensor = files[shard["file"]].get_tensor(name)
                if list(part.shape) != shard["shape"]:
                    raise CheckpointError(
                        f"The checkpoint {path} is damaged: {shard['file']} has {name!r} of shape {list(part.shape)},"
                        f" and its manifest says {shard['shape']}."
                    )
                if shard["shape"] == entry["shape"]:
                    tensors[name] = part
                    continue
                tensor = tensors.setdefault(name, torch.empty(entry["shape"], dtype=part.dtype))
                if tensor.dtype != part.dtype:
                    raise CheckpointError(f"The checkpoint {path} is damaged: {name!r} is of several types.")
                tensor[tuple(slice(o, o + n) for o, n in zip(shard["offset"], shard["shape"], strict=True))] = part
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"The checkpoint {path} is damaged: {str(error)[:120]}.") from None
    return tensors


def _verify(path: Path, name: str, expected: Mapping[str, Any]) -> None:
    try:
        with os.fdopen(open_regular(path / name), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != expected["bytes"]:
                raise CheckpointError(
                    f"The checkpoint {path} is damaged: {name} has {size} bytes, and its manifest says"
                    f" {expected['bytes']}."
                )
            digest = hashlib.sha256()
            while block := file.read(1 << 22):
                digest.update(block)
    except OSError as error:
        raise CheckpointError(f"The checkpoint {path} is damaged: {name} cannot be read ({error.strerror}).") from None
    if digest.hexdigest() != expected["sha256"]:
        raise CheckpointError(f"The checkpoint {path} is damaged: {name} does not match the hash in its manifest.")


def _is_best(path: Path) -> bool:
    try:
        return bool(read_manifest(path)["best"])
    except CheckpointError:
        return False


def _mark_damaged(path: Path) -> None:
    """Rename a checkpoint so that it counts no more; of several processes that try, one does it."""
    claimed = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.rename(claimed)
    except OSError:  # another one was faster, or whoever predicts may only read here
        return
    damaged = path.with_name(f"{path.name}.damaged")
    _remove(damaged)
    claimed.rename(damaged)


def _epoch_of(path: Path) -> int:
    return int(path.name.removeprefix("epoch-"))
