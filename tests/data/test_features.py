from __future__ import annotations

import numpy as np
import pytest

from trisect.data.features import check_features, with_features
from trisect.data.records import TimelineRecord
from trisect.errors import ConfigError

# steps: {0→1, 0→1, 2→0}, {}, {1→2, 3→3}
RECORD = TimelineRecord(
    vertices=4,
    src=np.array([0, 0, 2, 1, 3], np.int32),
    dst=np.array([1, 1, 0, 2, 3], np.int32),
    offsets=np.array([0, 3, 3, 5]),
    undirected=True,
)


def made(features: object, **changes: object) -> np.ndarray:
    record = TimelineRecord(**{**RECORD.__dict__, **changes})  # type: ignore[arg-type]
    x = with_features(record, features, 0).x  # type: ignore[arg-type]
    assert x is not None
    return x


def test_degree_counts_distinct_neighbours_and_is_capped() -> None:
    x = made({"degree": 2})
    assert x.shape == (3, 4, 2)
    assert x.argmax(2).tolist() == [[1, 1, 1, 0], [0, 0, 0, 0], [0, 1, 1, 0]]
    assert made({"degree": 3})[0].argmax(1).tolist() == [2, 1, 1, 0]
    assert (x.sum(2) == 1).all()


def test_activity_sums_over_windows() -> None:
    x = np.expm1(made({"activity": [1, 3]}))
    assert x.shape == (3, 4, 2)
    assert np.allclose(x[:, :, 0], [[3, 2, 1, 0], [0, 0, 0, 0], [0, 1, 1, 2]])
    assert np.allclose(x[:, :, 1], [[3, 2, 1, 0], [3, 2, 1, 0], [3, 3, 2, 2]])
    directed = np.expm1(made({"activity": [1]}, undirected=False))
    assert np.allclose(directed[0], [[2, 1], [0, 2], [1, 0], [0, 0]])


def test_weights_have_columns_of_their_own() -> None:
    weight = np.array([0.5, 1.0, 2.0, 4.0, 8.0], np.float32)
    x = np.expm1(made({"activity": [2]}, undirected=False, weight=weight))
    x[:2, :, 2:] *= weight[:3].mean()
    x[2, :, 2:] *= weight.mean()
    assert x.shape == (3, 4, 4)
    assert np.allclose(x[0, :, 2:], [[1.5, 2.0], [0, 1.5], [2.0, 0], [0, 0]])
    assert np.allclose(x[1], x[0])
    assert np.allclose(x[2, :, 2:], [[0, 0], [4, 0], [0, 4], [8, 8]])


def test_weights_below_zero_count_with_their_sign() -> None:
    weight = np.array([-8.0, 2.0, -0.5, 4.0, -4.0], np.float32)
    plain = made("activity", undirected=False, weight=weight)
    windows = made({"activity": [3]}, undirected=False, weight=weight)
    positive = made({"activity": [3]}, undirected=False, weight=-weight)
    assert np.isfinite(plain).all()
    assert np.isfinite(windows).all()
    assert np.allclose(plain[0, :, 2], [-np.log(7), 0, -np.log(1.5), 0])
    unit = np.abs(weight).mean()
    assert np.allclose(
        windows[2, :, 2], [-np.log1p(6 / unit), np.log1p(4 / unit), -np.log1p(0.5 / unit), -np.log1p(4 / unit)]
    )
    assert np.array_equal(positive[:, :, 2:], -windows[:, :, 2:])


@pytest.mark.parametrize(
    "features",
    ["activity", 3, {"degree": 3, "activity": [1, 2, 5], "repeats": [1, 3]}],
    ids=["activity", "width", "all"],
)
@pytest.mark.parametrize("undirected", [False, True])
def test_features_never_read_a_later_step(features: object, undirected: bool) -> None:
    rng = np.random.default_rng(3)
    offsets = np.array([0, 0, 7, 7, 19, 30, 31])
    ends = [rng.integers(0, 6, 31).astype(np.int32) for _ in range(2)]
    weight = (rng.standard_normal(31) * np.exp(np.arange(31) / 5)).astype(np.float32)

    def until(steps: int, wrong: int = 0) -> np.ndarray:
        last = int(offsets[steps])
        later = weight[:last].copy()
        later[last - wrong :] *= 100
        record = TimelineRecord(6, *(end[:last] for end in ends), offsets[: steps + 1], later, undirected)
        x = with_features(record, features, 0).x  # type: ignore[arg-type]
        assert x is not None
        return x

    full = until(6)
    for steps in range(1, 6):
        made_then = until(steps)
        assert np.array_equal(made_then, full[:steps] if full.ndim == 3 else full)
    if full.ndim == 3:
        assert not np.array_equal(until(5, wrong=3), full[:5])
        assert np.array_equal(until(5, wrong=3)[:4], full[:4])


def test_repeats_are_the_events_beyond_the_first_of_a_pair() -> None:
    x = np.expm1(made({"repeats": [1, 3]}))
    assert np.allclose(x[:, :, 0], [[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]])  # a loop is a pair met twice
    assert np.allclose(x[2, :, 1], [1, 1, 0, 1])
    directed = np.expm1(made({"repeats": [1]}, undirected=False))
    assert np.allclose(directed[0], [[1, 0], [0, 1], [0, 0], [0, 0]])
    assert not directed[1:].any()


def test_parts_stand_side_by_side() -> None:
    both = made({"activity": [1], "degree": 3})
    assert np.array_equal(both, np.concatenate([made({"degree": 3}), made({"activity": [1]})], axis=2))
    assert made(5).shape == (4, 5)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "give a width"),
        ("degree", "give a width"),
        ({}, "give a width"),
        ({"degre": 3}, "has the key 'degre'"),
        ({"degree": 0}, "features.degree is 0"),
        ({"activity": 3}, "features.activity is 3"),
        ({"activity": [0]}, "a list of window lengths"),
    ],
)
def test_wrong_features_are_refused(value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_features(value)
