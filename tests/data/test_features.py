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
    x[:, :, 2:] *= weight.mean()
    assert x.shape == (3, 4, 4)
    assert np.allclose(x[0, :, 2:], [[1.5, 2.0], [0, 1.5], [2.0, 0], [0, 0]])
    assert np.allclose(x[1], x[0])
    assert np.allclose(x[2, :, 2:], [[0, 0], [4, 0], [0, 4], [8, 8]])


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
