"""What a layer keeps for backward: it is run on a few rows, and all that autograd saves is listed.

A tensor that is saved has a size that is linear in the rows and the entries of the matrix. Three small runs give the
line, for the project's own layers and for users' alike; nothing has to be known about them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from trisect.errors import LayoutError
from trisect.noise import Noise
from trisect.ops.backward import run_backward
from trisect.ops.memory import empty, is_pooled, pooling_all
from trisect.plan.storages import StorageLog
from trisect.views.trace import edge_channels, key_of, real, ring, trace_of
from trisect.views.view import View

_ROWS, _DEGREE, _STEPS = 128, 3, 8
_MOST = 512  # layers that are remembered
# bytes of weights; larger layers are not run, which with gradients would take as much memory as in a run
LARGEST = 128 << 20


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
class Passing:
    """The most bytes that a layer has for a moment in a pass, beside what it keeps.

    They are those of one step and those of all steps: `share` of them grows with the steps.
    """

    row: float
    entry: float
    constant: float
    share: float = 0.0
    steps: int = 1

    def bytes(self, rows: float, entries: float, steps: int) -> float:
        """Give its bytes with so many rows and entries of a step, and so many steps."""
        longer = 1.0 + self.share * (steps / self.steps - 1.0)
        return max(0.0, self.constant + (self.row * rows + self.entry * entries) * longer)


@dataclass(frozen=True)
class Saved:
    """What a layer keeps for backward beside its parameters and the data.

    Attributes:
        inside: tensors that are neither its input nor its output.
        reads, writes: whether its input, or its output, is kept.
        pooled: whether its output lies on a buffer of `ops.memory`.
        forward: what it has besides while it goes forward, its output included unless that is kept.
        backward: what it has besides while it goes back, the gradients of its output and input included.
    """

    inside: tuple[SavedTensor, ...]
    reads: bool
    writes: bool
    pooled: bool = True
    forward: Passing = Passing(0.0, 0.0, 0.0)
    backward: Passing = Passing(0.0, 0.0, 0.0)


_looked_at: dict[tuple[object, ...], Saved] = {}


def saved_by(
    layer: nn.Module,
    timeline: bool,
    *,
    aggregated: bool = False,
    dtype: torch.dtype = torch.float32,
    degree: int = _DEGREE,
) -> Saved:
    """List what a layer keeps when it is run in training; layers that are alike are run once in a process.

    Args:
        layer: may lie on the meta device.
        timeline: whether x has a dim of steps.
        aggregated: whether it is the first layer, and its sum over neighbours is at hand.
        degree: about how many entries a row of the matrix has: which of a layer's moments takes most depends on it.

    Raises:
        LayoutError: the weights of the layer take more than `LARGEST` bytes.
    """
    weights = dtype.itemsize * sum(parameter.numel() for parameter in layer.parameters())
    if weights > LARGEST:
        raise LayoutError(f"its weights take {weights / 2**20:,.0f} MiB, which a plan does not build")
    key = (*key_of(layer), timeline, aggregated, dtype, degree)
    saved = _looked_at.get(key)
    if saved is None:
        if len(_looked_at) >= _MOST:
            _looked_at.clear()
        saved = _looked_at[key] = look(layer, timeline, aggregated, dtype, degree)
    return saved


def look(layer: nn.Module, timeline: bool, aggregated: bool, dtype: torch.dtype, degree: int) -> Saved:
    """Run a layer on a few rows, and list what it keeps; see `saved_by`."""
    tried = copy.deepcopy(real(layer)).to(dtype)
    with torch.no_grad():
        for parameter in tried.parameters():
            parameter.fill_(0.01)
    steps = _STEPS if timeline else 0
    with pooling_all():
        runs = [
            _record(tried, rows, entries, aggregated, dtype, steps)
            for rows, entries in ((_ROWS, degree), (2 * _ROWS, degree), (_ROWS, degree + 1))
        ]
        longer = _record(tried, _ROWS, degree, aggregated, dtype, 2 * steps) if timeline else runs[0]
    small, rows_doubled, degree_higher = (run.sizes for run in runs)
    origins = runs[0].origins
    if not len(small) == len(rows_doubled) == len(degree_higher):
        # a layer that saves more tensors for more rows; its sum is a line all the same
        small, rows_doubled, degree_higher = ([sum(sizes)] for sizes in (small, rows_doubled, degree_higher))
        origins = [all(origins)]
    inside = []
    for sizes, pooled in zip(zip(small, rows_doubled, degree_higher, strict=True), origins, strict=True):
        row, entry, constant = _line(sizes, _ROWS * max(1, steps), degree)
        inside.append(SavedTensor(row, entry, constant, pooled))
    forward, backward = (
        _passing([getattr(run, name) for run in (*runs, longer)], degree, max(1, steps))
        for name in ("forward", "backward")
    )
    return Saved(tuple(inside), runs[0].reads, runs[0].writes, runs[0].pooled, forward, backward)


def _line(sizes: Sequence[float], rows: int, degree: int) -> tuple[float, float, float]:
    """From the bytes with some rows, with twice as many and with an entry more a row: those of each row and entry, and
    the rest.
    """
    first, second, third = sizes
    entry = (third - first) / rows
    row = (second - first) / rows - entry * degree
    return row, entry, first - (row + entry * degree) * rows


def _passing(sizes: Sequence[float], degree: int, steps: int) -> Passing:
    *three, longer = sizes
    row, entry, constant = _line(three, _ROWS, degree)
    one = three[0] - constant
    share = min(1.0, max(0.0, (longer - three[0]) / one)) if one > 0.0 else 0.0
    return Passing(row, entry, constant, share, steps)


@dataclass(frozen=True)
class _Run:
    sizes: list[int]
    origins: list[bool]
    reads: bool
    writes: bool
    pooled: bool
    forward: int
    backward: int


def _record(layer: Any, rows: int, degree: int, aggregated: bool, dtype: torch.dtype, steps: int) -> _Run:
    """Run a layer on some rows of a ring, forward and back, and note the storages that it saves and those that pass."""
    call, inputs = _call_of(layer, rows, degree, aggregated, dtype, steps)
    # what a matrix remembers of itself (its transpose, groups of steps) is no part of a pass, and made before it
    with torch.enable_grad():
        first = call()
    if first.requires_grad:
        run_backward([(get_gradient_edge(first), torch.ones_like(first))])
    del first
    handed = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    log, reads = StorageLog((*inputs, *layer.parameters(), *layer.buffers())), False

    def keep(tensor: Tensor) -> Tensor:
        nonlocal reads
        reads = reads or tensor.untyped_storage().data_ptr() in handed
        # without its place in the graph, which would hold itself where an operation saves its own result
        return tensor.detach()

    with log, torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = call()
    result, pooled, turn, shape = log.number_of(out), is_pooled(out), len(log.events), out.shape
    root = get_gradient_edge(out) if out.requires_grad else None
    del out
    kept = log.live()
    staying = sum(log.storages[number].bytes for number in kept)
    forward, backward = log.highest(last=turn) - staying, 0
    if root is not None:
        with log:
            run_backward([(root, empty(shape, dtype).fill_(1.0))])
        backward = log.highest(first=turn) - staying
    for tensor in (*inputs, *layer.parameters()):
        tensor.grad = None
    inside = [log.storages[number] for number in sorted(kept - {result})]
    return _Run(
        [storage.bytes for storage in inside],
        [storage.pooled for storage in inside],
        reads,
        result in kept,
        pooled,
        forward,
        backward,
    )


def _call_of(
    layer: Any, rows: int, degree: int, aggregated: bool, dtype: torch.dtype, steps: int
) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """Return a function that runs the layer once, and the tensors that it reads; without steps, on a graph."""
    related = trace_of(layer, timeline=steps > 0).related
    names = tuple("__".join(name) if isinstance(name, tuple) else str(name) for name in related)
    channels = max(edge_channels(layer), len(names), *(name + 1 for name in related if isinstance(name, int)), 0)
    matrix, noise = ring(rows, degree, dtype, channels), Noise(0, 1, vertices=torch.arange(rows))
    names += tuple(str(k) for k in range(len(names), channels))
    shape = (steps, rows, layer.in_channels) if steps else (rows, layer.in_channels)
    x = torch.ones(shape, dtype=dtype).requires_grad_(not aggregated)
    sums = x.detach().clone() if aggregated and trace_of(layer, timeline=steps > 0).preaggregates else None
    shared = {name: torch.ones(rows, layer.out_channels, dtype=dtype) for name in getattr(layer, "reads", ())}

    def call() -> Tensor:
        features = None if sums is None else (x, sums)
        view = View.whole([matrix] * steps if steps else matrix, noise, features=features, relations=names)
        view.shared.update(shared)
        out: Tensor = layer(x, view)
        return out

    return call, [x, *shared.values(), *([] if sums is None else [sums])]
