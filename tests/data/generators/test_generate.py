from __future__ import annotations

import itertools

import numpy as np
import pytest

from trisect.data.generators.generate import GENERATORS, generate
from trisect.data.load import load
from trisect.data.records import Record, StaticRecord, TimelineRecord
from trisect.errors import ConfigError, DataError

SMALL = {
    "community": {"vertices": 400},
    "rmat": {"vertices": 300, "features": 8},
    "citation": {"vertices": 500},
    "evolving": {"vertices": 200, "steps": 6},
    "laundering": {"vertices": 800, "steps": 30, "fraud": 0.1},
    "uniform": {"vertices": 100, "steps": 4},
}


def same(a: Record, b: Record) -> bool:
    names = ("src", "dst", "offsets", "weight", "x", "y", "edge_y")
    return all(np.array_equal(getattr(a, name, None), getattr(b, name, None)) for name in names)


@pytest.mark.parametrize("name", GENERATORS)
def test_records_are_sound_and_seeded(name: str) -> None:
    record = generate(name, **SMALL[name])
    assert isinstance(record, TimelineRecord if GENERATORS[name].timeline else StaticRecord)
    assert record.src.dtype == record.dst.dtype == np.int32
    assert len(record.src) == len(record.dst) > 0
    assert min(record.src.min(), record.dst.min()) >= 0
    assert max(record.src.max(), record.dst.max()) < record.vertices
    if isinstance(record, TimelineRecord):
        assert record.offsets[0] == 0
        assert record.offsets[-1] == len(record.src)
        assert (np.diff(record.offsets) >= 0).all()
        assert record.steps == SMALL[name]["steps"]
    if record.splits:
        assert (sum(mask.astype(int) for mask in record.splits.values()) <= 1).all()
        assert all(mask.any() for mask in record.splits.values())
    assert same(record, generate(name, **SMALL[name]))
    assert not same(record, generate(name, seed=1, **SMALL[name]))


def test_every_argument_has_a_type_and_a_default() -> None:
    for generator in GENERATORS.values():
        assert generator.description.endswith(".")
        assert "seed" in generator.arguments
        assert all(argument.type in (int, float, bool) for argument in generator.arguments.values())


def smoothed(record: StaticRecord, hops: int) -> np.ndarray:
    assert record.x is not None
    x = record.x.astype(np.float64)
    src, dst = np.concatenate([record.src, record.dst]), np.concatenate([record.dst, record.src])
    degree = np.bincount(dst, minlength=record.vertices) + 1
    for _ in range(hops):
        y = x.copy()
        np.add.at(y, dst, x[src])
        x = y / degree[:, None]
    return x


def centroid_accuracy(x: np.ndarray, y: np.ndarray) -> float:
    """Accuracy of the nearest class centre, with centres from even vertices and scores from odd ones."""
    centres = np.stack([x[::2][y[::2] == k].mean(axis=0) for k in range(int(y.max()) + 1)])
    distance = ((x[1::2, None, :] - centres[None]) ** 2).sum(axis=2)
    return float((distance.argmin(axis=1) == y[1::2]).mean())


def test_community_needs_its_neighbourhood() -> None:
    record = generate("community", vertices=1500, features=32)
    assert isinstance(record, StaticRecord)
    assert record.y is not None
    alone, one, four = (centroid_accuracy(smoothed(record, hops), record.y) for hops in (0, 1, 4))
    assert alone < 0.35
    assert one < four
    assert four > 0.7


def test_citation_is_skewed_and_has_a_common_component() -> None:
    record = generate("citation", vertices=4000)
    assert record.y is not None
    assert record.x is not None
    sizes = np.bincount(record.y)
    assert len(sizes) == 40
    assert sizes.max() > 10 * sizes.min()
    assert np.linalg.norm(record.x.mean(axis=0)) > 4
    assert (record.dst < record.src).all(), "only earlier vertices are cited"
    cited = np.bincount(record.dst, minlength=4000)
    assert cited.max() > 15 * cited.mean()
    assert (record.y[record.src] == record.y[record.dst]).mean() > 0.6


def test_rmat_is_skewed_for_any_number_of_vertices() -> None:
    record = generate("rmat", vertices=1000, degree=10, shuffle=False, features=0, classes=0)
    assert len(record.src) == 10_000
    assert record.x is None
    assert record.y is None
    assert record.src.max() > 500
    out = np.bincount(record.src, minlength=1000)
    assert out[:500].sum() > 0.7 * out.sum()


def test_evolving_contacts_recur_and_stay_within() -> None:
    record = generate("evolving", vertices=500, steps=8)
    assert isinstance(record, TimelineRecord)
    assert record.y is not None
    pairs = []
    for t in range(record.steps):
        there = slice(record.offsets[t], record.offsets[t + 1])
        src, dst = record.src[there], record.dst[there]
        assert (src != dst).all()
        assert (record.y[t][src] == record.y[t][dst]).mean() > 0.7
        pairs.append(set(zip(src.tolist(), dst.tolist(), strict=True)))
    recurring = np.mean([len(a & b) / len(b) for a, b in itertools.pairwise(pairs)])
    assert recurring > 0.3
    moved = (record.y[1:] != record.y[:-1]).mean()
    assert 0 < moved < 0.05


def test_laundering_patterns() -> None:
    record = generate("laundering", vertices=3000, steps=40, fraud=0.1, window=10)
    assert isinstance(record, TimelineRecord)
    assert record.y is not None
    assert record.edge_y is not None
    assert record.weight is not None
    assert (record.weight > 0).all()
    guilty = record.edge_y == 1
    assert record.y[record.src[guilty]].all()
    assert record.y[record.dst[guilty]].all()
    touched = np.zeros(3000, bool)
    touched[record.src[guilty]] = touched[record.dst[guilty]] = True
    assert np.array_equal(touched, record.y == 1), "every labelled account takes part in a planted transfer"
    assert set(record.meta["accounts_by_pattern"]) == {"fan-in", "fan-out", "cycle", "scatter-gather"}
    assert all(record.meta["accounts_by_pattern"].values())
    # accounts also pay normally, so the label is not simply "has only planted transfers"
    assert (record.y[record.src[~guilty]] == 1).any()
    out = np.bincount(record.src, minlength=3000)
    assert out.max() > 10 * out.mean(), "activity has a heavy tail"


def test_laundering_without_fraud_and_with_one_step() -> None:
    record = generate("laundering", vertices=100, steps=1, fraud=0.0)
    assert record.y is not None
    assert not record.y.any()


def test_uniform_sizes() -> None:
    record = generate("uniform", vertices=50, degree=3, steps=7)
    assert isinstance(record, TimelineRecord)
    assert np.diff(record.offsets).tolist() == [150] * 7


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("comunity", {}, "did you mean 'community'"),
        ("community", {"vertcies": 5}, "did you mean 'vertices'"),
        ("community", {"vertices": "many"}, "data.vertices is 'many'"),
        ("community", {"vertices": 5.5}, "data.vertices is 5.5"),
        ("community", {"vertices": True}, "data.vertices is True"),
        ("rmat", {"shuffle": 3}, "data.shuffle is 3"),
    ],
)
def test_wrong_arguments(name: str, arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        generate(name, **arguments)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("community", {"vertices": 0}, "vertices is 0"),
        ("community", {"vertices": 5, "classes": 9}, "classes is 9"),
        ("evolving", {"switch": 1.5}, "switch is 1.5"),
        ("rmat", {"a": 0.9}, "a \\+ b \\+ c"),
        ("laundering", {"transactions": -1}, "transactions is -1"),
    ],
)
def test_impossible_sizes(name: str, arguments: dict[str, object], words: str) -> None:
    with pytest.raises(DataError, match=words):
        generate(name, **arguments)


def test_text_arguments_are_read() -> None:
    assert generate("uniform", vertices="1_000", degree="2", steps="3").vertices == 1000


def test_weights_are_left_out_on_demand() -> None:
    section = {"generate": "laundering", "vertices": 100, "steps": 5}
    assert load(section).weight is not None
    assert load({**section, "weighted": False}).weight is None
    with pytest.raises(ConfigError, match=r"data\.weighted is 3"):
        load({**section, "weighted": 3})
