"""Whether a layer gives the same cut by vertex: it is run on all rows of a small graph, and then on the rows of parts.

Nothing crosses processes. The first run notes what each verb was given; those on a part's rows are answered from that.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from trisect.errors import ConfigError
from trisect.graph.adjacency import Adjacency
from trisect.graph.build import normalise
from trisect.noise import Noise
from trisect.views.local import Local
from trisect.views.view import View


class DiffersError(Exception):
    """A verb was asked something else by the part than by the whole."""


class Noted(View):
    """The view of all rows; keeps what `gather`, `scatter` and `sum` were given and gave."""

    def __init__(self, matrix: Adjacency, noise: Noise) -> None:
        super().__init__(Local([matrix], matrix.rows), noise=noise)
        self.notes: list[tuple[str, Tensor, Tensor]] = []

    def gather(self, x: Tensor, weight: Tensor | None = None, **options: Any) -> Any:
        """Return the rows, and keep them."""
        made = super().gather(x, weight, **options)
        self.notes.append(("gather", x, made))
        return made

    def scatter(self, near: Tensor) -> Tensor:
        """Return the rows, and keep them."""
        self.notes.append(("scatter", near, near))
        return near

    def sum(self, x: Tensor, partial: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Return the sum, and keep it."""
        made = super().sum(x, partial)
        self.notes.append(("sum", x, made))
        return made


class Replayed(View):
    """The view of some rows, answered from what the view of all rows noted.

    Args:
        own: the rows, of all; `columns`: those that they read, own ones first.
        block: their matrix.
        whole: the view of all rows.

    Attributes:
        found: by the number of the note, what parts have added up so far; shared by all parts.
    """

    def __init__(self, block: Adjacency, own: Tensor, columns: Tensor, whole: Noted, found: dict[int, Tensor]) -> None:
        noise = None if whole.noise is None else whole.noise.at(vertices=own)
        super().__init__(_Part([block], block.rows, columns), noise=noise, vertices=whole.rows)
        self._own, self._columns, self._notes, self.found = own, columns, whole.notes, found
        self._taken = 0

    def _next(self, verb: str) -> tuple[int, Tensor, Tensor]:
        number = self._taken
        noted, x, made = self._notes[number] if number < len(self._notes) else ("nothing", self._own, self._own)
        if noted != verb:
            raise DiffersError
        self._taken += 1
        return number, x, made

    def gather(self, x: Tensor, weight: Tensor | None = None, **options: Any) -> Any:
        """Return the rows that the whole had."""
        _, whole, _ = self._next("gather")
        if not alike(x, whole[self._own]):
            raise DiffersError
        # own rows as they are here, whose last bits may be others
        return torch.cat([x, whole[self._columns[self.rows :]]])

    def scatter(self, near: Tensor) -> Tensor:
        """Return the sums that the whole had."""
        number, whole, made = self._next("scatter")
        if near.shape[1:] != whole.shape[1:]:
            raise DiffersError
        self.found.setdefault(number, torch.zeros_like(made)).index_add_(0, self._columns, near)
        return made[self._own]

    def sum(self, x: Tensor, partial: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Return the sum that the whole had."""
        number, whole, made = self._next("sum")
        if x.shape[1:] != whole.shape[1:]:
            raise DiffersError
        self.found.setdefault(number, torch.zeros_like(made)).add_(x.sum(0, keepdim=True))
        return made


class _Part(Local):
    def __init__(self, blocks: list[Adjacency], rows: int, ids: Tensor) -> None:
        super().__init__(blocks, rows)
        self._ids = ids

    def column_ids(self, step: int) -> Tensor:
        return self._ids


class _Outputs:
    """What the modules of a layer return, in order, and which of them are at work."""

    def __init__(self, layer: nn.Module) -> None:
        self.found: list[tuple[str, nn.Module, Tensor]] = []
        self.stack: list[tuple[str, nn.Module]] = []
        for name, module in layer.named_modules():
            module.register_forward_pre_hook(functools.partial(self._begin, name))
            module.register_forward_hook(functools.partial(self._end, name))

    def _begin(self, name: str, module: nn.Module, inputs: Any) -> None:
        self.stack.append((name, module))

    def _end(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        self.stack.pop()
        first = output[0] if isinstance(output, tuple) and output else output
        if isinstance(first, Tensor):
            self.found.append((name, module, first.detach().clone()))

    def taken(self) -> list[tuple[str, nn.Module, Tensor]]:
        """Return what was found since the last time."""
        found, self.found = self.found, []
        self.stack.clear()
        return found


def alike(part: Tensor, whole: Tensor) -> bool:
    """Whether rows of a part are those of the whole."""
    if part.shape != whole.shape:
        return False
    return torch.allclose(part.double(), whole.double(), rtol=1e-6, atol=1e-8, equal_nan=True)


def same_by_verbs(layer: Any, *, weighted: bool) -> bool:
    """Whether a `WrappedPyG` gives the same with its convolutions done by verbs of a view.

    Args:
        weighted: whether the matrix of these has the weights of edges.
    """
    layer = copy.deepcopy(layer).cpu().double().train()
    raw, form, noise = _example(layer.edge_channels), layer.form, Noise(1)
    if form is None:
        return False
    plain = raw if weighted else raw.with_values(torch.ones(raw.entries, dtype=torch.float64))
    prepared = normalise(plain, form.normalisation, form.self_loops)
    x = torch.randn(raw.rows, layer.in_channels, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    outs = []
    try:
        with torch.no_grad():
            for layer.native, matrix in ((False, raw), (True, prepared)):
                outs.append(layer(x, View.whole(matrix, noise)))
    except Exception:
        return False
    return alike(*outs)


def require_cuttable(layer: Any) -> None:
    """Raise a ConfigError that names the module which a cut by vertex would change; the layer stays as it is."""
    layer = copy.deepcopy(layer).cpu().double().train()
    graph, outputs = _example(layer.edge_channels), _Outputs(_body(layer))
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(graph.rows, layer.in_channels, generator=draw, dtype=torch.float64)
    whole, found = Noted(graph, Noise(1)), dict[int, Tensor]()
    before = [buffer.clone() for buffer in layer.buffers()]
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            layer(x, whole)
    except ConfigError as error:
        raise _refusal(layer, outputs.stack[-1:], str(error)) from error
    except Exception:  # the trace says what fails on rows of the right width
        return
    after, all_rows = [buffer.clone() for buffer in layer.buffers()], outputs.taken()
    for own in (torch.arange(0, _VERTICES, 2), torch.arange(1, _VERTICES, 2)):
        for buffer, value in zip(layer.buffers(), before, strict=True):
            buffer.copy_(value)
        block, columns = _block(graph, own)
        part, fault = Replayed(block, own, columns, whole, found), None
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                layer(x[own], part)
        except Exception as error:
            fault = error
        stack = outputs.stack[-1:]
        for (name, module, rows), (_, _, some) in zip(all_rows, outputs.taken(), strict=False):
            dim = next((dim for dim, size in enumerate(rows.shape) if size == _VERTICES), None)
            if dim is not None and not alike(some, rows.index_select(dim, own)):
                raise _refusal(layer, [(name, module)], _OTHER)
        if fault is not None:
            raise _refusal(layer, stack, _OTHER) from fault
    for number, total in found.items():
        if not alike(total, whole.notes[number][2]):
            raise _refusal(layer, [], _OTHER)
    for buffer, value in zip(layer.buffers(), after, strict=True):
        if not alike(buffer, value):
            raise _refusal(layer, [], "it keeps other statistics when the vertices are cut")


_VERTICES = 12
_OTHER = (
    "it gives a row another result when the vertices are cut, since it reads rows of others or their order in another"
    " way than along edges, by sums over all rows, or by batch norm"
)


def _body(layer: Any) -> nn.Module:
    """Return the user's own module."""
    body: nn.Module = layer.module if hasattr(layer, "module") else layer.conv
    return body


def _refusal(layer: Any, at: list[tuple[str, nn.Module]], why: str) -> ConfigError:
    whole = type(_body(layer)).__name__
    if not at or not at[0][0]:
        return ConfigError(f"{whole} cannot be cut by vertex: {why}.")
    name, module = at[0]
    return ConfigError(f"{whole}.{name} ({module}) cannot be cut by vertex: {why.rstrip('.')}.")


def _example(channels: int) -> Adjacency:
    """Return a matrix of directed edges, whose vertices are read and read differently often."""
    draw = torch.Generator().manual_seed(3)
    keys = torch.randperm(_VERTICES * _VERTICES, generator=draw)[:37].sort().values
    row, column = keys // _VERTICES, keys % _VERTICES
    row, column = row[row != column], column[row != column]
    pointers = torch.zeros(_VERTICES + 1, dtype=torch.int64)
    pointers[1:] = torch.bincount(row, minlength=_VERTICES).cumsum(0)
    weights = torch.rand(row.numel(), generator=draw, dtype=torch.float64) + 0.5
    matrix = Adjacency.from_csr(pointers, column.to(torch.int32), weights, _VERTICES)
    features = torch.rand(row.numel(), channels, generator=draw, dtype=torch.float64)
    return matrix.with_features(features) if channels else matrix


def _block(graph: Adjacency, own: Tensor) -> tuple[Adjacency, Tensor]:
    """Return the rows of a part over its columns, own ones first, and the columns."""
    column, row = graph.edge_index()
    mine = torch.isin(row, own)
    read = torch.unique(column[mine])
    columns = torch.cat([own, read[~torch.isin(read, own)]])
    place = torch.full((graph.columns,), -1).index_put_((columns,), torch.arange(columns.numel()))
    row, column = place[row[mine]], place[column[mine]]
    order = (row * columns.numel() + column).argsort()
    pointers = torch.zeros(own.numel() + 1, dtype=torch.int64)
    pointers[1:] = torch.bincount(row, minlength=own.numel()).cumsum(0)
    values, features = graph.edge_weight(), graph.edge_attributes()
    block = Adjacency.from_csr(
        pointers,
        column[order].to(torch.int32),
        None if values is None else values[mine][order],
        columns.numel(),
    )
    return block if features is None else block.with_features(features[mine][order]), columns
