"""What a layer keeps for backward: it is run on a few rows, and all that autograd saves is listed.

A tensor that is saved has a size that is linear in the rows and the entries of the matrix. Three small runs give the
line, for the project's own layers and for users' alike; nothing has to be known about them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trisect.graph.adjacency import Adjacency
from trisect.nn.base import Context, Layer
from trisect.nn.halves import AnyLayer
from trisect.nn.temporal.dynamic import DynamicLayer
from trisect.noise import Noise
from trisect.ops.memory import is_pooled, pooling_all

_ROWS, _DEGREE, _STEPS = 32, 3, 8


@dataclass(frozen=True)
class SavedTensor:
    """One tensor that a layer keeps, in bytes: for each row and step, for each entry, and whatever the size.

    `pooled`: whether it lies on a buffer of `ops.memory`; torch takes others from the C library.
    """

    row: float
    entry: float
    constant: float
    pooled: bool = True

    def bytes(self, rows: float, entries: float) -> float:
        """Give its bytes with so many rows and entries, over all steps."""
        return max(0.0, self.row * rows + self.entry * entries + self.constant)


@dataclass(frozen=True)
class Saved:
    """What a layer keeps for backward beside its parameters and the data.

    Attributes:
        inside: tensors that are neither its input nor its output.
        reads, writes: whether its input, or its output, is kept.
        pooled: whether its output lies on a buffer of `ops.memory`.
    """

    inside: tuple[SavedTensor, ...]
    reads: bool
    writes: bool
    pooled: bool = True


def saved_by(layer: AnyLayer, *, aggregated: bool = False, dtype: torch.dtype = torch.float32) -> Saved:
    """List what a layer keeps when it is run in training.

    Args:
        layer: may lie on the meta device.
        aggregated: whether it is the first layer, and its sum over neighbours is at hand.
    """
    real = copy.deepcopy(layer)
    if any(p.is_meta for p in real.parameters()) or any(b.is_meta for b in real.buffers()):
        real.to_empty(device="cpu")
    real.to(dtype)
    with torch.no_grad():
        for parameter in real.parameters():
            parameter.fill_(0.01)
    with pooling_all():
        runs = [
            _record(real, rows, degree, aggregated, dtype)
            for rows, degree in ((_ROWS, _DEGREE), (2 * _ROWS, _DEGREE), (_ROWS, 2 * _DEGREE))
        ]
    small, rows_doubled, degree_doubled = (run.sizes for run in runs)
    origins = runs[0].origins
    if not len(small) == len(rows_doubled) == len(degree_doubled):
        # a layer that saves more tensors for more rows; its sum is a line all the same
        small, rows_doubled, degree_doubled = ([sum(sizes)] for sizes in (small, rows_doubled, degree_doubled))
        origins = [all(origins)]
    steps = _STEPS if isinstance(layer, DynamicLayer) else 1
    base_rows, base_entries = _ROWS * steps, _ROWS * _DEGREE * steps
    inside = []
    for first, second, third, pooled in zip(small, rows_doubled, degree_doubled, origins, strict=True):
        entry = (third - first) / base_entries
        row = (second - first - entry * base_entries) / base_rows
        inside.append(SavedTensor(row, entry, first - row * base_rows - entry * base_entries, pooled))
    return Saved(tuple(inside), runs[0].reads, runs[0].writes, runs[0].pooled)


@dataclass(frozen=True)
class _Run:
    sizes: list[int]
    origins: list[bool]
    reads: bool
    writes: bool
    pooled: bool


def _record(layer: AnyLayer, rows: int, degree: int, aggregated: bool, dtype: torch.dtype) -> _Run:
    """Run a layer on some rows of a ring, and note the storages that it saves."""
    call, inputs = _call_of(layer, rows, degree, aggregated, dtype)
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        # it is held, so that no other comes to lie at its address; but without its place in the graph, which would hold
        # itself where an operation saves its own result
        return saved.setdefault(tensor.untyped_storage().data_ptr(), tensor.detach())

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = call()
    outside = {p.untyped_storage().data_ptr() for p in (*layer.parameters(), *layer.buffers())}
    given = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    result = out.untyped_storage().data_ptr()
    inside = [
        tensor
        for storage, tensor in saved.items()
        if storage not in outside and storage not in given and storage != result
    ]
    return _Run(
        # the shape is asked, since a buffer of the pool is larger than what lies on it
        [
            tensor.numel() * tensor.element_size() if is_pooled(tensor) else tensor.untyped_storage().nbytes()
            for tensor in inside
        ],
        [is_pooled(tensor) for tensor in inside],
        bool(given & set(saved)),
        result in saved,
        is_pooled(out),
    )


def _call_of(
    layer: AnyLayer, rows: int, degree: int, aggregated: bool, dtype: torch.dtype
) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """Give a function that runs the layer once, and the tensors that it reads."""
    adjacency = _ring(rows, degree, dtype)
    noise = Noise(0, 1, vertices=torch.arange(rows))
    if isinstance(layer, DynamicLayer):
        xs = torch.ones(_STEPS, rows, layer.in_channels, dtype=dtype)
        sums = xs.clone() if aggregated else None
        x = xs.requires_grad_(not aggregated)
        state = layer.initial_state(rows, dtype=dtype, device=torch.device("cpu"))
        snapshots = [adjacency] * _STEPS
        inputs = [xs, *state, *([] if sums is None else [sums])]
        return (lambda: layer(x, snapshots, state, noise.at(layer=0), 0, sums)[0]), inputs
    shared = {name: torch.ones(rows, layer.out_channels, dtype=dtype) for name in layer.reads}
    x = torch.ones(rows, layer.in_channels, dtype=dtype).requires_grad_(not aggregated)
    context = Context(noise.at(layer=0), shared)
    inputs = [x, *shared.values()]
    if aggregated and layer.preaggregates:
        sums = x.detach().clone()
        return (lambda: layer.combine_aggregated(sums, x, context)), [*inputs, sums]
    return (lambda: layer(x, adjacency, context)), inputs


def _ring(rows: int, degree: int, dtype: torch.dtype) -> Adjacency:
    """Each row reads the `degree` rows after it."""
    columns = (torch.arange(rows)[:, None] + torch.arange(degree)[None]) % rows
    pointers = torch.arange(0, rows * degree + 1, degree)
    indices = columns.sort(1).values.flatten().to(torch.int32)
    return Adjacency.from_csr(pointers, indices, torch.ones(rows * degree, dtype=dtype), rows)


def key_of(layer: nn.Module) -> tuple[object, ...]:
    """Give what two layers have in common that keep alike: class, text and the shapes of parameters."""
    shapes = tuple((name, tuple(p.shape)) for name, p in layer.named_parameters())
    extra = (layer.reads, layer.writes) if isinstance(layer, Layer) else ()
    return (type(layer), repr(layer), shapes, extra)
