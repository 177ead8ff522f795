"""Files that are mapped and shorter than they should be: a read past their end would kill the process."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from trisect.data import generate, read_directory, write_directory
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


def test_an_array_of_a_shard_that_was_cut_off(tmp_path: Path) -> None:
    save_array(tmp_path / "a.npy", torch.arange(5000))
    assert load_array(tmp_path / "a.npy").sum() == 5000 * 4999 // 2
    _cut_off(tmp_path / "a.npy")
    with pytest.raises(DataError, match=r"a.npy cannot be read .*; start the run again"):
        load_array(tmp_path / "a.npy")
