"""Files that are mapped and shorter than they should be: a read past their end would kill the process."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from trisect.data import generate, read_directory, write_directory
from trisect.data.ids import positions_of
from trisect.data.later import LaterRows
from trisect.data.records import TextNames, TimelineRecord
from trisect.errors import DataError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.shards.arrays import load_array, save_array


def _cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("name", ["src", "x", "split.train"])
def test_a_graph_directory_that_was_cut_off(tmp_path: Path, name: str) -> None:
    write_directory(generate("community", vertices=3000), tmp_path / "g")
    _cut_off(tmp_path / "g" / f"{name}.npy")
    with pytest.raises(DataError, match=rf"{name}.npy is damaged \(it has [\d,]+ bytes, and the manifest says \d+\)"):
        read_directory(tmp_path / "g")


@pytest.mark.parametrize("name", ["src", "x"])
def test_cut_off_after_it_was_opened(tmp_path: Path, name: str) -> None:
    write_directory(generate("community", vertices=3000), tmp_path / "g")
    record = read_directory(tmp_path / "g")
    _cut_off(tmp_path / "g" / f"{name}.npy")
    with pytest.raises(
        DataError, match=rf"{name} is mapped from .*{name}.npy, of which [\d,]+ of [\d,]+ bytes are left"
    ):
        Graph.from_record(record)  # type: ignore[arg-type]


def test_a_timeline_that_was_cut_off_after_it_was_opened(tmp_path: Path) -> None:
    write_directory(generate("laundering", vertices=3000), tmp_path / "t")
    record = read_directory(tmp_path / "t")
    _cut_off(tmp_path / "t" / "dst.npy")
    with pytest.raises(DataError, match=r"dst is mapped from .*dst.npy"):
        Timeline.from_record(record)  # type: ignore[arg-type]


def test_a_view_of_a_file_that_was_cut_off(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.arange(10_000) % 7)
    ids = np.load(tmp_path / "ids.npy", mmap_mode="r")
    Graph.from_edges(ids[:5000], ids[5000:])
    _cut_off(tmp_path / "ids.npy")
    with pytest.raises(DataError, match=r"(src|dst) is mapped from"):
        Graph.from_edges(ids[:5000], ids[5000:])


def _named_timeline(path: Path) -> Path:
    """A timeline with every array that there is."""
    n, events = 2000, 3000
    record = TimelineRecord(
        vertices=n,
        src=np.arange(events) % n,
        dst=np.arange(events) * 7 % n,
        offsets=np.arange(0, events + 1, 10),
        weight=np.ones(events, np.float32),
        x=np.ones((n, 2), np.float32),
        y=np.arange(n) % 2,
        edge_y=np.arange(events) % 2,
        edge_x=np.ones((events, 2), np.float32),
        splits={"train": np.arange(n) % 3 == 0, "val": np.arange(n) % 3 == 1},
        names=TextNames.of([f"v{k}" for k in range(n)]),
        time=np.arange(events),
        meta={"columns": {"src": "a", "dst": "b", "time": "t"}, "classes": ["p", "q"], "edge_classes": ["p", "q"]},
    )
    return write_directory(record, path)


ARRAYS = ["src", "dst", "offsets", "weight", "x", "y", "edge_x", "edge_y", "time", "split.val", "names.offsets"]


@pytest.mark.parametrize("name", [*ARRAYS, "names.utf8"])
def test_every_array_is_looked_at_before_any_is_read(tmp_path: Path, name: str) -> None:
    record = read_directory(_named_timeline(tmp_path / "t"))
    os.truncate(tmp_path / "t" / f"{name}.npy", 0)
    rows = {"a": ["v1"], "b": ["zz"], "t": [99999]}
    for use in (
        lambda record: Timeline.from_record(record),
        lambda record: LaterRows(rows).join(record),
        lambda record: write_directory(record, tmp_path / "w"),
    ):
        with pytest.raises(DataError, match=rf"{name} is mapped from .*{name}.npy"):
            use(record)
    assert not (tmp_path / "w").exists()
    if name.startswith("names"):
        with pytest.raises(DataError, match=rf"{name} is mapped from"):
            positions_of(record.names, record.vertices, TextNames.of(["v1"]))


def test_an_array_of_a_shard_that_was_cut_off(tmp_path: Path) -> None:
    save_array(tmp_path / "a.npy", torch.arange(5000))
    assert load_array(tmp_path / "a.npy").sum() == 5000 * 4999 // 2
    _cut_off(tmp_path / "a.npy")
    with pytest.raises(DataError, match=r"a.npy cannot be read .*; start the run again"):
        load_array(tmp_path / "a.npy")
