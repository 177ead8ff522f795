from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trisect.data import generate, load, read_directory, write_directory
from trisect.data.records import Record, StaticRecord, TextNames, TimelineRecord
from trisect.errors import DataError

ARRAYS = ("src", "dst", "offsets", "weight", "x", "y", "edge_y")


def differing(a: Record, b: Record) -> list[str]:
    found = [name for name in ARRAYS if not np.array_equal(getattr(a, name, None), getattr(b, name, None))]
    found += [name for name in a.splits if not np.array_equal(a.splits[name], b.splits[name])]
    found += [name for name in ("vertices", "undirected") if getattr(a, name) != getattr(b, name)]
    return found


@pytest.mark.parametrize("name", ["community", "laundering", "evolving"])
def test_round_trip(name: str, tmp_path: Path) -> None:
    record = generate(name, vertices=300)
    write_directory(record, tmp_path / "g")
    again = read_directory(tmp_path / "g", verify=True)
    assert type(again) is type(record)
    assert differing(record, again) == []
    assert differing(record, read_directory(write_directory(generate(name, vertices=300, seed=1), tmp_path / "h")))
    assert isinstance(again.src, np.memmap)
    assert again.meta["task"] == record.meta["task"]


@pytest.mark.parametrize("names", [np.array([5, 7, 9]), np.array(["a", "bé", "c"]), TextNames.of(["a", "bé", ""])])
def test_names(names: Any, tmp_path: Path) -> None:
    record = StaticRecord(3, np.array([0], np.int32), np.array([2], np.int32), names=names)
    again = read_directory(write_directory(record, tmp_path / "g"))
    assert np.asarray(again.names).tolist() == np.asarray(names).tolist()
    assert not list(tmp_path.glob("g/*.pkl"))


def test_edgeless_graph(tmp_path: Path) -> None:
    none = np.zeros(0, np.int32)
    again = read_directory(write_directory(TimelineRecord(4, none, none, np.zeros(3, np.int64)), tmp_path / "g"))
    assert isinstance(again, TimelineRecord)
    assert (again.vertices, again.steps, len(again.src)) == (4, 2, 0)


def edit(directory: Path, **changes: Any) -> None:
    path = directory / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_damage_is_noticed(tmp_path: Path) -> None:
    record = generate("uniform", vertices=20, steps=3)

    def fresh(name: str) -> Path:
        return write_directory(record, tmp_path / name)

    edit(fresh("a"), version=99)
    edit(fresh("b"), format="other")
    edit(fresh("c"), vertices="many")
    (fresh("d") / "src.npy").unlink()
    with open(fresh("e") / "src.npy", "ab") as file:
        file.write(b"x")
    (fresh("f") / "manifest.json").write_text("{")
    arrays = json.loads((fresh("g") / "manifest.json").read_text())["arrays"]
    edit(tmp_path / "g", arrays={**arrays, "../d/dst": arrays["dst"]})
    for name, words in {
        "a": "version 99",
        "b": "format must be",
        "c": "vertices is 'many'",
        "d": "lacks",
        "e": "damaged",
        "f": "cannot be read",
        "g": "lists an array",
        "none": "no graph directory",
    }.items():
        with pytest.raises(DataError, match=words):
            read_directory(tmp_path / name)
    flipped = fresh("h") / "src.npy"
    content = bytearray(flipped.read_bytes())
    content[-4] ^= 1
    flipped.write_bytes(content)
    read_directory(tmp_path / "h")  # sizes agree, so only the sum shows it
    with pytest.raises(DataError, match="damaged"):
        read_directory(tmp_path / "h", verify=True)


def test_options_of_a_directory(tmp_path: Path) -> None:
    write_directory(generate("uniform", vertices=20, steps=3), tmp_path / "g")
    record = load({"path": tmp_path / "g", "features": "activity", "symmetrise": True})
    assert record.undirected
    assert record.x is not None
    assert record.x.shape == (3, 20, 4)
    assert load({"path": tmp_path / "g", "features": 5}).x.shape == (20, 5)  # type: ignore[union-attr]
    with pytest.raises(DataError, match="keeps no times"):
        load({"path": tmp_path / "g", "period": 2})
    write_directory(generate("rmat", vertices=50, features=0, classes=0), tmp_path / "s")
    static = load({"path": tmp_path / "s", "features": 4, "classes": 3, "symmetrise": True})
    assert static.y is not None
    assert set(static.splits) == {"train", "val", "test"}
    pairs = set(zip(static.src.tolist(), static.dst.tolist(), strict=True))
    assert len(pairs) == len(static.src)
    assert all(a <= b for a, b in pairs)
