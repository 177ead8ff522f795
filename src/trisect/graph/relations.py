"""Relations: edges of several types beside each other in one matrix, and the matrices of each that kernels sum over.

The edges of all relations are one union. An entry's features are its weights in each relation, [entries, relations], 0
where the two vertices have no edge of that relation. So whatever cuts, permutes or stores a matrix with features of
edges cuts all relations along, with one halo; what is made here, is made of a block, wherever that was cut from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trisect.errors import DataError, unknown
from trisect.graph.adjacency import Adjacency
from trisect.graph.build import row_sums, scale
from trisect.graph.build import self_loops as with_loops
from trisect.graph.check import as_tensor

_MOST = 1 << 31  # columns are int32
_NONE = "The edges have no relations; give the data `relation`."


def relation_array(relation: Any, names: Sequence[str] | None, edges: int) -> tuple[Tensor, tuple[str, ...]]:
    """Return which relation each edge has, int64 [edges], and what relations are called, in the order of the numbers.

    Args:
        relation: numbers from 0, or names.
        names: of the numbers; of names, which there are and in which order (by default those that occur, sorted).
    """
    array = relation.detach().cpu().numpy() if isinstance(relation, Tensor) else np.asarray(relation)
    if array.shape != (edges,):
        raise DataError(f"relation has the shape {list(array.shape)} for {edges} edges; give one relation an edge.")
    if array.dtype.kind in "iub":
        numbers = torch.from_numpy(array.astype(np.int64))
        most = int(numbers.max()) + 1 if edges else 0
        if edges and int(numbers.min()) < 0:
            raise DataError(f"relation holds {int(numbers.min())}; give each edge a number from 0, or a name.")
        chosen = tuple(str(k) for k in range(most)) if names is None else _checked(names)
        if most > len(chosen):
            raise DataError(f"relation holds the number {most - 1}, and there are {len(chosen)} names of relations.")
        return numbers, chosen
    missing = [k for k, value in enumerate(array.tolist()) if not isinstance(value, str) or not value]
    if missing:
        value = array.tolist()[missing[0]]
        raise DataError(f"relation of edge {missing[0]} is {value!r}; give each edge a name, or a number from 0.")
    found, which = np.unique(array.astype(str), return_inverse=True)
    chosen = tuple(map(str, found)) if names is None else _checked(names)
    strange = sorted(set(map(str, found)) - set(chosen))
    if strange:
        raise DataError(unknown("relation", strange[0], chosen))
    place = torch.tensor([chosen.index(str(name)) for name in found], dtype=torch.int64)
    return place[torch.from_numpy(which.astype(np.int64).reshape(-1))], chosen


def _checked(names: Sequence[str]) -> tuple[str, ...]:
    chosen = tuple(map(str, names))
    twice = next((name for k, name in enumerate(chosen) if name in chosen[:k]), None)
    if twice is not None:
        raise DataError(f"relations has {twice!r} twice; give each a name of its own.")
    return chosen


def relation_weights(numbers: Tensor, count: int, weight: Tensor | None) -> Tensor:
    """Return the weight of each edge in each relation, float32 [edges, relations]: one column an edge is not 0."""
    out = torch.zeros(numbers.numel(), count)
    value = torch.ones(numbers.numel(), 1) if weight is None else weight.float().cpu()[:, None]
    return out.scatter_(1, numbers[:, None], value)


def related_edges(
    relation: Any, names: Sequence[str] | None, edges: int, weight: Any, edge_x: Any
) -> tuple[Tensor, tuple[str, ...]]:
    """Return the weights of edges in each relation, [edges, relations], and what relations are called."""
    if edge_x is not None:
        raise DataError("The edges have relations and features (edge_x) as well; give one of them.")
    numbers, chosen = relation_array(relation, names, edges)
    return relation_weights(numbers, len(chosen), None if weight is None else as_tensor("weight", weight)), chosen


def find_relation(name: str | int | tuple[str, ...], names: Sequence[str]) -> int:
    """Return the number of a relation.

    Args:
        name: as it is called, or its number; of one called `author__writes__paper` also the tuple of PyG, and `writes`
            where no other has it.
    """
    if isinstance(name, int) and not isinstance(name, bool):
        if 0 <= name < len(names):
            return name
        raise DataError(f"There is no relation {name}; the data have {len(names)}, counted from 0.")
    called = "__".join(name) if isinstance(name, tuple) else str(name)
    if called in names:
        return list(names).index(called)
    middle = [k for k, other in enumerate(names) if other.split("__")[1:2] == [called]]
    if len(middle) == 1:
        return middle[0]
    if not names:
        raise DataError(f"There is no relation {called!r}, since the data have none; give them `relation`.")
    raise DataError(unknown("relation", called, names))


def stacked_relations(block: Adjacency) -> Adjacency:
    """Return the matrices of all relations one below the other, [rows·relations, columns], made once for a block.

    Row i·R + r is that of row i in relation r.
    """
    return _kept(block, "stacked", _stacked)


def interleaved_relations(block: Adjacency) -> Adjacency:
    """Return the matrices of all relations beside each other, [rows, columns·relations], made once for a block.

    Column j·R + r is what vertex j gives in relation r: its weight, divided by the sum of the row's in that relation.
    """
    return _kept(block, "interleaved", _interleaved)


def mean_relations(block: Adjacency) -> Adjacency:
    """Return `stacked_relations` with each row divided by its sum."""
    return _kept(block, "means", lambda union: _divided(stacked_relations(union)))


def relation_of(block: Adjacency, number: int, *, row: bool = False, self_loops: bool = False) -> Adjacency:
    """Return the matrix of one relation, [rows, columns]. Made once for a block.

    Args:
        row: divide each row by its sum.
        self_loops: first add a loop of weight 1 to each row that has none in this relation.
    """

    def made(union: Adjacency) -> Adjacency:
        every = stacked_relations(union)
        count = union.edge_channels
        rows = slice(number, None, count)
        matrix = Adjacency(
            every.starts[rows].contiguous(),
            every.ends[rows].contiguous(),
            every.indices,
            every.values,
            union.columns,
            self_start=union.self_start,
        ).vouched()
        matrix = with_loops(matrix.compact()) if self_loops else matrix.compact()
        return _divided(matrix) if row else matrix

    return _kept(block, (number, row, self_loops), made)


def _kept(block: Adjacency, key: object, make: Any) -> Adjacency:
    if block.features is None:
        raise DataError(_NONE)
    kept = block.checked()._derived.relations
    if key not in kept:
        kept[key] = make(block)
    return kept[key]


def _divided(matrix: Adjacency) -> Adjacency:
    sums = row_sums(matrix)
    return scale(matrix, torch.where(sums == 0, 0.0, 1.0 / sums), None)


def _edges(block: Adjacency) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return row, column, relation and weight of all edges, by row, then column, then relation."""
    row, column = block.coordinates()
    weights = block.edge_attributes()
    if weights is None:
        raise DataError(_NONE)
    entry, relation = torch.nonzero(weights, as_tuple=True)
    return row[entry], column[entry], relation, weights[entry, relation]


def _stacked(block: Adjacency) -> Adjacency:
    row, column, relation, weight = _edges(block)
    target = row * block.edge_channels + relation
    order = torch.argsort(target, stable=True)
    pointers = _pointers(target, block.rows * block.edge_channels)
    return Adjacency.from_csr(pointers, column[order].to(torch.int32), _values(weight[order]), block.columns).vouched()


def _interleaved(block: Adjacency) -> Adjacency:
    count = block.edge_channels
    if block.columns * count >= _MOST:
        raise DataError(f"{block.columns:,} vertices with {count} relations are more than 2^31 columns.")
    row, column, relation, weight = _edges(block)
    target = row * count + relation
    sums = torch.zeros(block.rows * count, dtype=torch.float64, device=row.device)
    sums.index_add_(0, target, weight.double())
    shares = (weight.double() / sums[target]).to(weight.dtype)
    indices = (column * count + relation).to(torch.int32)
    return Adjacency.from_csr(_pointers(row, block.rows), indices, shares, block.columns * count).vouched()


def _values(weight: Tensor) -> Tensor | None:
    plain = weight.dtype == torch.float32 and bool((weight == 1.0).all())
    return None if plain else weight.contiguous()


def _pointers(target: Tensor, rows: int) -> Tensor:
    pointers = torch.zeros(rows + 1, dtype=torch.int64, device=target.device)
    pointers[1:] = torch.cumsum(torch.bincount(target, minlength=rows), 0)
    return pointers
