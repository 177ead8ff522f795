"""A matrix of a user's own arrays is read only where it is sound: every call says what is wrong, or is right."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from trisect.errors import DataError, TrisectError
from trisect.graph import Adjacency, adjacency_from_edges, normalise, self_loops, symmetrise
from trisect.graph import sound as sound_module
from trisect.graph.sound import check_entries, first_unsound_torch
from trisect.ops import aggregate, attend

ROWS, COLUMNS, ENTRIES = 6, 6, 15


def arrays(generator: torch.Generator) -> dict[str, object]:
    src, dst = (torch.randint(0, ROWS, (ENTRIES,), generator=generator) for _ in range(2))
    matrix = adjacency_from_edges(src, dst, torch.rand(ENTRIES, generator=generator), ROWS)
    names = ("starts", "ends", "indices", "values", "columns", "column_base", "self_start")
    held = {name: getattr(matrix, name) for name in names}
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in held.items()}


def spoilt(fields: dict[str, object], chance: random.Random) -> dict[str, object]:
    """One array or number of a matrix changed at random; some changes leave it sound."""
    fields = dict(fields)
    name = chance.choice(list(fields))
    value = fields[name]
    if not isinstance(value, Tensor):
        fields[name] = chance.choice([0, 1, 3, -1, -(2**40), 2**31, 2**40, 2.5, None, "6", True, ROWS - 1])
        return fields
    kind = chance.randrange(6)
    if kind == 0:
        number = chance.choice([0, 1, ROWS, -1, 10**6, -(2**31), 2**31 - 1])
        fields[name] = value.clone()
        fields[name][chance.randrange(max(1, value.numel()))] = number
    elif kind == 1:
        fields[name] = value[: chance.randrange(value.numel())]
    elif kind == 2:
        fields[name] = value.to(chance.choice([torch.int32, torch.int64, torch.float64, torch.bool, torch.int8]))
    elif kind == 3:
        fields[name] = torch.stack([value, value], 1)[:, 0]  # a stride of two
    elif kind == 4:
        fields[name] = chance.choice([value[None], value.tolist(), None, value.flip(0), value.to_sparse()])
    else:
        fields[name] = value[torch.randperm(value.numel(), generator=torch.Generator().manual_seed(kind))]
    return fields


def dense_of(matrix: Adjacency) -> Tensor:
    """The matrix by a plain loop over its arrays."""
    out = torch.zeros(matrix.rows, matrix.columns)
    for row in range(matrix.rows):
        for k in range(int(matrix.starts[row]), int(matrix.ends[row])):
            value = 1.0 if matrix.values is None else float(matrix.values[k])
            out[row, int(matrix.indices[k]) - matrix.column_base] += value
    return out


def uses(matrix: Adjacency) -> list[Callable[[], object]]:
    x = torch.arange(matrix.columns * 2, dtype=torch.float32).view(-1, 2)
    heads = torch.ones(matrix.columns, 1), torch.ones(matrix.rows, 1)

    def equal_product() -> None:
        sums = aggregate(x, matrix)
        torch.testing.assert_close(sums, dense_of(matrix).to(sums.dtype) @ x)

    return [
        equal_product,
        lambda: aggregate(x, matrix, "mean"),
        lambda: aggregate(x.requires_grad_(), matrix, "max").sum().backward(),
        lambda: attend(x[:, None].requires_grad_(), *heads, matrix).sum().backward(),
        matrix.transpose,
        lambda: matrix.columns_between(0, matrix.columns // 2).transpose(),
        lambda: matrix.rows_between(0, matrix.rows // 2).compact(),
        matrix.dense,
        matrix.edge_weight,
        lambda: normalise(matrix, "symmetric", True),
        lambda: self_loops(matrix),
        lambda: symmetrise(matrix),
        lambda: torch.testing.assert_close(matrix.dense().float(), dense_of(matrix)),
    ]


@pytest.mark.parametrize("seed", range(4))
def test_any_arrays_give_a_sentence_or_the_right_sums(seed: int):
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    accepted, said = 0, []
    for _ in range(150):
        fields = spoilt(arrays(generator), chance)
        # each use on a matrix of its own: none may rely on another having looked
        for number in range(13):
            try:
                matrix = Adjacency(**fields)  # type: ignore[arg-type]
                uses(matrix)[number]()
                accepted += 1
            except TrisectError as error:
                said.append(str(error))
    assert len(said) > 500
    assert not [sentence for sentence in said if "\n" in sentence or len(sentence) > 300]
    assert accepted > 100


def test_both_ways_of_looking_agree(monkeypatch: pytest.MonkeyPatch):
    for seed in range(300):
        chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        fields = arrays(generator)
        starts, ends, indices = (fields[name].clone() for name in ("starts", "ends", "indices"))  # type: ignore[attr-defined]
        chance.choice([starts, ends, indices])[chance.randrange(ROWS)] = chance.choice([-1, 0, 3, 7, 99])
        row, _ = first_unsound_torch(starts, ends, indices, COLUMNS, 0)
        said = []
        for native in (True, False):
            monkeypatch.setattr(sound_module, "available", lambda native=native: native)
            try:
                check_entries(starts, ends, indices, COLUMNS, 0)
                said.append("")
            except DataError as error:
                said.append(str(error))
        assert bool(said[0]) == bool(said[1]) == (row >= 0)


def test_wide_numbers_are_not_cut_off():
    pointers = torch.tensor([0, 1])
    with pytest.raises(DataError, match="columns must be below"):
        Adjacency.from_csr(pointers, torch.tensor([2**32]), None, 1)
    with pytest.raises(DataError, match=r"indptr is torch\.float32"):
        Adjacency.from_csr(pointers.float(), torch.tensor([0]), None, 1)


def test_a_look_is_taken_once_and_views_inherit_it(monkeypatch: pytest.MonkeyPatch):
    looks = []
    monkeypatch.setattr("trisect.graph.adjacency.check_entries", lambda *arrays: looks.append(1))
    matrix = Adjacency(torch.tensor([0, 1]), torch.tensor([1, 2]), torch.tensor([0, 1], dtype=torch.int32), None, 2)
    aggregate(torch.ones(2, 1), matrix)
    aggregate(torch.ones(1, 1), matrix.rows_between(0, 1).columns_between(0, 1))
    aggregate(torch.ones(2, 1), matrix.transpose())
    aggregate(torch.ones(2, 1), matrix.with_values(torch.ones(2)).double())
    assert len(looks) == 1
