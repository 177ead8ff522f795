from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trisect.data import load, load_named
from trisect.data.formats.npz import Options, from_arrays
from trisect.data.named import NAMED
from trisect.data.records import StaticRecord, TimelineRecord
from trisect.errors import ConfigError, DataError

# vertices, edges or events, steps: from the table that comes with the data
SIZES = {
    "cora": (2708, 2 * 5278, 1),
    "citeseer": (3327, 2 * 4552, 1),
    "pubmed": (19717, 2 * 44324, 1),
    "squirrel": (5201, 198353, 1),
    "minesweeper": (10000, 39402, 1),
    "tolokers": (11758, 519000, 1),
    "twitch-DE": (9498, 153138, 1),
    "bitcoin-otc": (5881, 35592, 138),
    "bitcoin-alpha": (3783, 24186, 137),
    "uci-messages": (1899, 59835, 89),
    "mathoverflow": (24818, 506550, 79),
    "cit-hepph": (34546, 421578, 132),
    "chess": (7301, 65053, 100),
    "amlsim-20K_cycle200": (20000, 117805, 149),
    "chickenpox": (20, 102 * 517, 517),
    "montevideo-bus": (675, 690 * 740, 740),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name: str, shared_data: Path) -> None:
    record = load({"name": name}, shared_data)
    steps = record.steps if isinstance(record, TimelineRecord) else 1
    assert (record.vertices, len(record.src), steps) == SIZES[name]
    assert isinstance(record, TimelineRecord) == NAMED[name].timeline
    assert record.meta["task"] == NAMED[name].task


def test_planetoid(shared_data: Path) -> None:
    record = load_named("cora", shared_data)
    assert record.x is not None
    assert record.x.shape == (2708, 1433)
    rows = record.x.sum(axis=1)
    assert np.allclose(rows[rows > 0], 1)
    assert {name: int(mask.sum()) for name, mask in record.splits.items()} == {"train": 140, "val": 500, "test": 1000}
    forward = set(zip(record.src.tolist(), record.dst.tolist(), strict=True))
    assert all((b, a) in forward for a, b in forward), "both directions are there, so the record is not `undirected`"
    assert not record.undirected
    raw = load_named("cora", shared_data, row_normalise=False)
    assert raw.x is not None
    assert set(np.unique(raw.x)) == {0.0, 1.0}
    assert raw.x.sum() == 49216


def test_splits_by_index(shared_data: Path) -> None:
    first, third = load_named("minesweeper", shared_data), load_named("minesweeper", shared_data, split=2)
    every = load_named("minesweeper", shared_data, split="all")
    assert every.splits["test"].shape == (10000, 10)
    assert np.array_equal(every.splits["test"][:, 2], third.splits["test"])
    assert not np.array_equal(first.splits["test"], third.splits["test"])
    with pytest.raises(DataError, match=r"data\.split is 10"):
        load_named("minesweeper", shared_data, split=10)


def test_structure_only_is_symmetrised(shared_data: Path) -> None:
    both = load_named("ego-twitter", shared_data, features=2, classes=None)
    loops = int((both.src == both.dst).sum())
    assert both.undirected
    assert 2 * len(both.src) - loops == 2_684_606, "as many as the data's table says"
    assert len(load_named("ego-twitter", shared_data, symmetrise=False, features=2, classes=None).src) == 1_768_149


def test_structure_only_gets_features_and_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "c.npz"
    np.savez(path, indptr=np.arange(1001) * 5, indices=rng.integers(0, 1000, 5000))
    section = {"path": path, "features": 8, "classes": 4}
    record, again, other = load(section), load(section), load({**section, "seed": 1})
    assert record.y is not None
    assert np.array_equal(record.y, again.y)
    assert not np.array_equal(record.y, other.y)
    assert np.bincount(record.y).min() > 100
    assert set(record.splits) == {"train", "val", "test"}
    bare = load({"path": path})
    assert bare.x is None
    assert bare.y is None
    with pytest.raises(DataError, match=r"give data\.features"):
        load({"path": path, "classes": 4})


def test_edge_classes(shared_data: Path) -> None:
    bitcoin = load_named("bitcoin-otc", shared_data)
    assert isinstance(bitcoin, TimelineRecord)
    assert bitcoin.edge_y is not None
    assert bitcoin.edge_y.mean() == pytest.approx(0.900, abs=0.001)
    chess = load_named("chess", shared_data)
    assert isinstance(chess, TimelineRecord)
    assert sorted(np.unique(chess.edge_y)) == [0, 1, 2]


def test_fraud_labels(shared_data: Path) -> None:
    record = load_named("amlsim-20K_cycle200", shared_data, features="activity")
    assert record.y is not None
    assert record.y.sum() == 945
    assert record.weight is not None
    assert record.x is not None
    assert record.x.shape == (149, 20000, 4)
    assert np.expm1(record.x[:, :, 0]).sum() == pytest.approx(117805, rel=1e-4)
    assert np.expm1(record.x[:, :, 3]).sum() == pytest.approx(float(record.weight.sum()), rel=1e-3)


def test_lags(shared_data: Path) -> None:
    raw = np.load(shared_data / "chickenpox.npz")["y"]
    record = load_named("chickenpox", shared_data, lags=3)
    assert record.x is not None
    assert record.y is not None
    assert record.x.shape == (518, 20, 3)
    assert np.array_equal(record.y, raw[3:])
    assert np.array_equal(record.x[10], raw[10:13].T), "the features of a step are the values before its target"
    assert not np.array_equal(record.x[10], raw[11:14].T)


def test_standardised_target_uses_early_steps_only(shared_data: Path) -> None:
    record = load_named("england-covid", shared_data)
    raw = np.load(shared_data / "england-covid.npz")["y"]
    seen = raw[: int(0.7 * len(raw))]
    assert record.y is not None
    assert np.allclose(record.y * seen.std() + seen.mean(), raw[8:], atol=1e-3)


def test_another_period(shared_data: Path) -> None:
    weekly = load_named("uci-messages", shared_data, period="1w")
    assert isinstance(weekly, TimelineRecord)
    assert weekly.steps == 28


def test_archive_is_recognised_by_its_arrays(tmp_path: Path) -> None:
    path = tmp_path / "anything.npz"
    np.savez(path, edge_index=np.array([[0, 1], [1, 2]]), x=np.ones((4, 2)), y=np.array([0, 1, 1, -1]))
    record = load({"path": path, "row_normalise": False})
    assert isinstance(record, StaticRecord)
    assert record.vertices == 4
    assert record.x is not None
    assert record.x.dtype == np.float32
    assert not any(mask[3] for mask in record.splits.values()), "class -1 is in no split"
    np.savez(path, src=np.array([2, 0]), dst=np.array([1, 1]), time=np.array([5, 3]), weight=np.array([1.0, 2.0]))
    timeline = load({"path": path})
    assert isinstance(timeline, TimelineRecord)
    assert (timeline.src.tolist(), timeline.offsets.tolist()) == ([0, 2], [0, 1, 1, 2])
    assert timeline.weight is not None
    assert timeline.weight.tolist() == [2.0, 1.0]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"a": np.ones(2)}, "no known graph"),
        ({"edges": np.array([[0.5, 1.0]])}, "must be integers"),
        ({"edges": np.array([[-1, 1]])}, "must not be negative"),
        ({"src": np.array([0]), "dst": np.array([1]), "time": np.array([0.5])}, r"data\.period is missing"),
    ],
)
def test_unusable_arrays(arrays: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(DataError, match=words):
        from_arrays(arrays, Options())


def test_wrong_sections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRISECT_DATA", raising=False)
    for section, words in [
        ({}, "give one of name, path and generate"),
        ({"name": "cora", "path": "x"}, "name and path together"),
        ({"name": "cora", "perod": 1}, "did you mean 'period'"),
        ({"name": "cora", "split": -1}, r"data\.split is -1"),
        ({"name": "cora", "symmetrise": "yes"}, r"data\.symmetrise is 'yes'"),
        ({"name": 3}, r"data\.name is 3"),
        ({"generate": "uniform", "vertice": 3}, "did you mean 'vertices'"),
    ]:
        with pytest.raises(ConfigError, match=words):
            load(section, tmp_path)
    for section, words in [
        ({"name": "cora"}, "holds no cora.npz"),
        ({"name": "corra"}, "did you mean 'cora'"),
        ({"path": tmp_path / "none"}, "does not exist"),
        ({"path": tmp_path}, "no graph directory"),
    ]:
        with pytest.raises(DataError, match=words):
            load(section, tmp_path)
    with pytest.raises(DataError, match="no data directory is known"):
        load({"name": "cora"})
    with pytest.raises(DataError, match="does not exist"):
        load({"name": "cora"}, tmp_path / "none")


def test_variable_names_the_directory(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRISECT_DATA", str(shared_data))
    assert load({"name": "chameleon_filtered", "smoothing": None}).vertices == 890


def test_pickles_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "evil.npz"
    np.savez(path, edges=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="pickled objects, which are never read"):
        load({"path": path})
