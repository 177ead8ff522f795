from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trisect.errors import DataError
from trisect.graph import Adjacency, Timeline, validate
from trisect.graph.build import adjacency_from_edges
from trisect.graph.timeline.difference import ENCODINGS, Encoding, apply, difference, entering, full_bytes


def same(found: Adjacency, expected: Adjacency) -> bool:
    if (found.values is None) != (expected.values is None) or found.shape != expected.shape:
        return False
    values = found.values is None or expected.values is None or torch.equal(found.values, expected.values)
    arrays = all(torch.equal(getattr(found, name), getattr(expected, name)) for name in ("starts", "ends", "indices"))
    return arrays and values and found.dtype == expected.dtype and found.self_start == expected.self_start


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Adjacency, Adjacency]:
    """Two matrices of one shape that share edges: duplicates, none at all, vertices that only one of them has."""
    rows, columns = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    random = np.random.default_rng(draw(st.integers(0, 2**20)))
    pool = np.stack([random.integers(0, columns, 30), random.integers(0, rows, 30)])
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    made = []
    for _ in range(2):
        chosen = pool[:, random.integers(0, 30, int(random.integers(0, 40) * random.integers(0, 2)))]
        alive = chosen[1] >= random.integers(0, rows)
        chosen = chosen[:, alive]
        kind = draw(st.sampled_from(["none", "count", "weight"]))
        if kind == "none":
            chosen = np.unique(chosen, axis=1)
        weight = random.integers(1, 4, chosen.shape[1]) / 2 if kind == "weight" else None
        matrix = adjacency_from_edges(chosen[0], chosen[1], weight, rows, columns=columns, dtype=dtype)
        made.append(matrix)
    return made[0], made[1]


@given(pairs(), st.sampled_from(ENCODINGS))
@settings(max_examples=300, deadline=None)
def test_applying_a_difference_gives_the_new_matrix(both: tuple[Adjacency, Adjacency], encoding: Encoding) -> None:
    old, new = both
    for base in (old, None):
        message = difference(base, new, encoding)
        found = apply(message, base)
        validate(found)
        assert same(found, new)
        assert message.bytes == sum(array.untyped_storage().nbytes() for array in _own(message.tensors.values()))
    if not same(old, new):
        assert not same(found, old)


def _own(tensors: object) -> list[torch.Tensor]:
    return [array.clone() for array in tensors]  # type: ignore[attr-defined]


@given(pairs())
@settings(max_examples=100, deadline=None)
def test_bytes(both: tuple[Adjacency, Adjacency]) -> None:
    old, new = both
    full = difference(old, new, "full")
    assert full.bytes == full_bytes(new) == new.entries * (16 + new.dtype.itemsize)
    a, b = ({(r, c) for r, c in zip(*(x.tolist() for x in m.coordinates()), strict=True)} for m in both)
    assert difference(old, new, "difference").bytes == 16 * len(a ^ b) + new.dtype.itemsize * len(b)
    whole = difference(None, new).bytes
    assert difference(old, new).bytes <= whole <= full.bytes


def test_unchanged_values_are_not_sent() -> None:
    old = adjacency_from_edges([0, 0, 1, 2], [1, 1, 2, 0])
    assert difference(old, old).bytes == 0
    new = adjacency_from_edges([0, 0, 0, 1, 2], [1, 1, 1, 2, 1])
    sent = difference(old, new).tensors
    assert {name: array.tolist() for name, array in sent.items()} == {
        "removed": [0],  # (0, 2)
        "row": [1],
        "column": [2],
        "changed": [0],  # (1, 0): 2 → 3
        "values": [3.0],
    }


def test_what_enters_a_window_is_its_raw_events() -> None:
    timeline = Timeline.from_arrays([0, 1, 1], [1, 0, 1], [0, 1, 3], smoothing={"kind": "edge-life", "length": 2})
    assert entering(timeline, 1).bytes == 2 * 8
    weighted = Timeline.from_arrays([0, 1, 1], [1, 0, 1], [0, 1, 3], weight=[1.0, 2.0, 3.0])
    assert entering(weighted, 1).bytes == 2 * 12


def test_mistakes() -> None:
    matrix = adjacency_from_edges([0, 1, 2, 3], [1, 2, 3, 4])
    with pytest.raises(DataError, match="choose one of full, difference, compact"):
        difference(None, matrix, "dense")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="give the snapshot"):
        apply(difference(matrix, matrix))
