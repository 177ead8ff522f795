"""What a layer asks of its view: it is run on a few rows by a view that writes its verbs down."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from trisect.errors import ConfigError
from trisect.graph.adjacency import Adjacency
from trisect.graph.build import Normalisation
from trisect.nn.temporal.recurrent import recurrent
from trisect.views.relations import Relation
from trisect.views.running import Tracking
from trisect.views.states import Form
from trisect.views.view import Neighbours, View

NONE = "none"
_ROWS, _STEPS, _MOST = 8, 2, 512


@dataclass(frozen=True)
class Call:
    """One verb that a layer asks for.

    Attributes:
        verb: "aggregate", "gather", "sum", "top" or "recur".
        width: how many channels of a row cross: of `recur` those of all frames side by side.
        trained: whether what crosses is made with parameters, so that a gradient of it is wanted in any case.
        kept: of `aggregate`, whether the sum is that of the features, which is kept.
        widths: of `recur`, those of each frame; `inputs` whether it is the layer's input, `needs` whether a gradient of
            it is wanted in any case.
        form: of `recur`, the form of its state; `out` how wide its output is.
        count: of `top`, how many rows are asked for.
        then: of `gather`, whether what is made of the rows is made by a function, of some rows at a time.
        double: of `sum`, whether it crosses in float64.
        trains: whether it is asked in training alone.
    """

    verb: str
    width: int
    trained: bool = False
    kept: bool = False
    widths: tuple[int, ...] = ()
    inputs: tuple[bool, ...] = ()
    needs: tuple[bool, ...] = ()
    form: Form | None = None
    out: int = 0
    count: int = 0
    then: bool = False
    double: bool = False
    trains: bool = False


@dataclass(frozen=True)
class LayerTrace:
    """What a layer asks of its view, and what planning must know of it besides.

    Attributes:
        parameters: how many numbers are trained.
        calls: in order; `first`: the same where it is the first layer and the sum of its features is kept, None where
            it does not begin with that sum.
        reads, writes: the shared inputs that it reads, and the one that it writes.
        related: the relations of edges that it tells apart, by name or number.
        across, along: the option of the exchange by which its rows cross parts, and its state runs; NONE: by none.
        tracked: how many numbers are running statistics of steps.
    """

    in_channels: int
    out_channels: int
    parameters: int = 0
    calls: tuple[Call, ...] = ()
    first: tuple[Call, ...] | None = None
    reads: tuple[str, ...] = ()
    writes: str | None = None
    across: str = NONE
    along: str = NONE
    tracked: int = 0
    related: tuple[str | int | tuple[str, ...], ...] = ()

    @property
    def _reading(self) -> list[Call]:
        return [call for call in self.calls if call.verb in ("aggregate", "gather")]

    @property
    def spatial(self) -> bool:
        """Whether it reads neighbours."""
        return bool(self._reading)

    @property
    def collects(self) -> bool:
        """Whether it asks for sums over neighbours alone, and not for their rows."""
        return all(call.verb == "aggregate" for call in self._reading)

    @property
    def preaggregates(self) -> bool:
        """Whether it begins with the sum of the features, which may be kept."""
        return self.first is not None

    @property
    def message_channels(self) -> int:
        """Width of the widest row that neighbours read; of a layer that reads none, of its input."""
        return max((call.width for call in self._reading), default=self.in_channels)

    @property
    def inside_channels(self) -> int:
        """Width of the rows that the temporal part reads besides the layer's input; without one, of the output."""
        call = self.recurrence
        if call is None or call.form is None or call.form.kind == "weight":
            return self.out_channels
        return sum(width for width, given in zip(call.widths, call.inputs, strict=True) if not given)

    @property
    def recurrence(self) -> Call | None:
        """The first use of `recur`; None: the layer has no state."""
        return next((call for call in self.calls if call.verb == "recur"), None)

    @property
    def form(self) -> Form | None:
        """The form of its state."""
        return None if self.recurrence is None else self.recurrence.form

    @property
    def state(self) -> str | None:
        """`vertex`, `window` or `weight`; None without a state."""
        return None if self.form is None else self.form.kind

    @property
    def window(self) -> int:
        """Of a window state, how many frames a step reads, its own included."""
        return self.form.frames + 1 if self.form is not None and self.form.kind == "window" else 1

    @property
    def summarises(self) -> bool:
        """Whether its state reads a summary of all vertices (EvolveGCN-H)."""
        return any(call.verb == "top" for call in self.calls)


def trace_of(layer: nn.Module, *, timeline: bool) -> LayerTrace:
    """Return what a layer asks; layers that are alike are run once in a process.

    Args:
        layer: called as layer(x, g), with `in_channels`; its parameters may lie on the meta device.
        timeline: whether x has a dim of steps.

    Raises:
        ConfigError: the layer fails on a few rows.
    """
    key = *key_of(layer), timeline
    trace = _traced.get(key)
    if trace is None:
        if len(_traced) >= _MOST:
            _traced.clear()
        trace = _traced[key] = _trace(layer, timeline=timeline)
    return trace


_traced: dict[tuple[object, ...], LayerTrace] = {}


def key_of(layer: nn.Module) -> tuple[object, ...]:
    """Return what layers have in common that ask and keep alike: class, text, settings and shapes of parameters."""
    shapes = tuple((name, tuple(p.shape), p.dtype, p.requires_grad) for name, p in layer.named_parameters())
    settings = tuple(
        (name, key, repr(value))
        for name, module in layer.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, (bool, int, float, str, tuple))
    )
    kinds = tuple(type(module) for module in layer.modules())
    return kinds, repr(layer), settings, shapes, getattr(layer, "reads", ()), getattr(layer, "writes", None)


def on_cpu(layer: nn.Module, make: Callable[[Tensor], Tensor]) -> nn.Module:
    """Return the layer where it lies on the CPU; else a copy of it, with tensors that are made in place of the others.

    Args:
        make: make(tensor) → a tensor of its shape on the CPU; no values are copied from a device.
    """
    memo: dict[int, Any] = {}
    for tensor in (*layer.parameters(), *layer.buffers()):
        if tensor.device.type != "cpu":
            made = make(tensor)
            memo[id(tensor)] = nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made
    return copy.deepcopy(layer, memo) if memo else layer


def real(layer: nn.Module) -> nn.Module:
    """Return the layer, or a copy with memory on the CPU."""
    return on_cpu(layer, lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype))


def _light(tensor: Tensor) -> Tensor:
    """Return zeros of the shape of a tensor, which take no memory where it is a parameter."""
    if isinstance(tensor, nn.Parameter):
        return torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)
    return torch.zeros(tensor.shape, dtype=tensor.dtype)


def ring(rows: int, degree: int, dtype: torch.dtype, channels: int = 0) -> Adjacency:
    """Return a matrix whose rows read the `degree` rows from their own on, with so many features of an edge."""
    columns = (torch.arange(rows)[:, None] + torch.arange(degree)[None]) % rows
    pointers = torch.arange(0, rows * degree + 1, degree)
    indices = columns.sort(1).values.flatten().to(torch.int32)
    matrix = Adjacency.from_csr(pointers, indices, torch.ones(rows * degree, dtype=dtype), rows)
    if not channels:
        return matrix
    # where they are the weights of relations, each edge has one
    features = torch.nn.functional.one_hot(torch.arange(rows * degree) % channels, channels)
    return matrix.with_features(features.to(dtype))


def edge_channels(layer: nn.Module) -> int:
    """Return how many features of an edge a layer reads."""
    return max(getattr(module, "edge_channels", 0) for module in layer.modules())


def reads_all_relations(layer: nn.Module) -> bool:
    """Whether the features of edges that a layer reads are their weights in all relations."""
    return any(getattr(module, "reads_all_relations", False) for module in layer.modules())


def _trace(layer: nn.Module, *, timeline: bool) -> LayerTrace:
    made: Any = on_cpu(layer, _light)
    buffers = {name: buffer.clone() for name, buffer in made.named_buffers()}
    try:
        # what a module draws is drawn from a copy of torch's generator
        with torch.random.fork_rng(devices=[]):
            out, view = _asked(made, timeline=timeline, keeps=False)
            first = _asked(made, timeline=timeline, keeps=True)[1].calls
            evaluated = _asked(made, timeline=timeline, keeps=False, trains=False)[1].calls
    finally:
        for name, buffer in made.named_buffers():
            buffer.copy_(buffers[name])
    return LayerTrace(
        made.in_channels,
        out,
        sum(p.numel() for p in layer.parameters() if p.requires_grad),
        _marked(view.calls, evaluated),
        _marked(first, evaluated) if any(call.kept for call in first) else None,
        getattr(layer, "reads", ()),
        getattr(layer, "writes", None),
        related=tuple(dict.fromkeys(view.asked_relations)),
        tracked=sum(view.tracked.values()),
    )


def _marked(calls: Sequence[Call], evaluated: Sequence[Call]) -> tuple[Call, ...]:
    """Return the calls of training, with a mark on those that evaluation leaves out."""
    verbs, marked = [call.verb for call in evaluated], []
    for call in calls:
        asked = call.verb in verbs
        if asked:
            del verbs[: verbs.index(call.verb) + 1]
        marked.append(call if asked else replace(call, trains=True))
    return tuple(marked)


def _asked(layer: Any, *, timeline: bool, keeps: bool, trains: bool = True) -> tuple[int, Recorder]:
    """Run a layer; return the width of its output, and the view that has its calls."""
    dtype = next((p.dtype for p in layer.parameters() if p.is_floating_point()), torch.float32)
    matrix = ring(_ROWS, 3, dtype, edge_channels(layer))
    x = torch.zeros(_ROWS, layer.in_channels, dtype=dtype)
    if timeline:
        x = x.expand(_STEPS, -1, -1).clone()
    view = Recorder(matrix, x, steps=_STEPS if timeline else None, keeps=keeps, trains=trains)
    width = getattr(layer, "out_channels", 0) or layer.in_channels
    view.shared.update({name: torch.zeros(_ROWS, width, dtype=dtype) for name in getattr(layer, "reads", ())})
    name = type(getattr(layer, "module", layer)).__name__
    try:
        with torch.enable_grad():
            out = layer(x, view)
    except Exception as error:
        called = getattr(layer, "called", "module(x, g), g a trisect.View")
        raise ConfigError(
            f"{name} failed on {_ROWS} rows of {layer.in_channels} channels ({type(error).__name__}: {error}); a module"
            f" is called as {called}."
        ) from error
    if not isinstance(out, Tensor) or out.shape[:-1] != x.shape[:-1]:
        shape = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ConfigError(f"{name} gives {shape} for x of shape {list(x.shape)}; return a row for each row.")
    if reads_all_relations(layer):
        view.asked_relations += range(edge_channels(layer))
    return out.shape[-1], view


class Recorder(View):
    """A view of a ring of rows that writes down which verbs are asked, and gives zeros.

    Attributes:
        calls: in order.
        tracked: how many running statistics each norm has.
        asked_relations: by name or number.
    """

    def __init__(self, matrix: Adjacency, x: Tensor, *, steps: int | None, keeps: bool, trains: bool = True) -> None:
        whole = View.whole(matrix if steps is None else [matrix] * steps)
        super().__init__(whole.spatial, whole.along, steps=whole.steps, trains=trains)
        self._x, self._features = x, (x, x) if keeps else None
        self.calls: list[Call] = []
        self.tracked: dict[Tracking, int] = {}
        self.asked_relations: list[Any] = []

    def _zeros(self, x: Tensor, width: int, *inputs: Tensor | None) -> Tensor:
        trained = any(tensor is not None and tensor.requires_grad for tensor in (x, *inputs))
        return x.new_zeros(()).expand(*x.shape[:-1], width).requires_grad_(trained)

    def aggregate(
        self,
        x: Tensor,
        weight: Tensor | None = None,
        *,
        root: Tensor | None = None,
        bias: Tensor | None = None,
        add: Tensor | None = None,
        alpha: float = 0.0,
        theta: float = 1.0,
        relu: bool = False,
        slope: float | None = None,
        p: float = 0.0,
        relation: str | int | tuple[str, ...] | None = None,
    ) -> Tensor:
        """Note a sum; see `View.aggregate`."""
        if relation is not None:
            more: dict[str, Any] = {"alpha": alpha, "theta": theta, "relu": relu, "slope": slope, "p": p}
            return self.related(relation).aggregate(x, weight, root=root, bias=bias, add=add, **more)
        outputs = x.shape[-1] if weight is None else weight.shape[0]
        narrows = weight is not None and self.narrows(weight, alpha, theta) and not self.keeps(x)
        width = outputs if narrows else x.shape[-1]
        trained = x.requires_grad or (narrows and weight is not None and weight.requires_grad)
        self.calls.append(Call("aggregate", width, trained, self.keeps(x)))
        return self._zeros(x, outputs, weight, root, bias, add)

    def gather(
        self,
        x: Tensor,
        weight: Tensor | None = None,
        *,
        then: Callable[[Tensor, Tensor, Neighbours], Tensor] | None = None,
        width: int | None = None,
        relation: str | int | tuple[str, ...] | None = None,
    ) -> Any:
        """Note rows that are read; see `View.gather`."""
        if relation is not None:
            return self.related(relation).gather(x, weight, then=then, width=width)
        near = self._zeros(x, x.shape[-1] if weight is None else weight.shape[0], weight)
        self.calls.append(Call("gather", near.shape[-1], near.requires_grad, then=then is not None))
        if then is None:
            return near
        if width is None:
            own = x if x.dim() == 2 else x[0]
            neighbours = Neighbours(self.block, None, lambda: None)
            width = then(near if x.dim() == 2 else near[0], own, neighbours).shape[-1]
        return self._zeros(x, width, near, torch.zeros((), requires_grad=True))

    def relation(
        self, relation: str | int | tuple[str, ...], normalisation: Normalisation, self_loops: bool
    ) -> Relation:
        """Return a relation of the ring; the names of all, and which there are, are known to the data."""
        self.asked_relations.append(relation)
        if self.block.features is None:
            self.spatial = View.whole([ring(_ROWS, 3, self.block.dtype, 1)] * len(self.spatial.blocks)).spatial
        return Relation(0, normalisation, self_loops)

    def scatter(self, near: Tensor) -> Tensor:
        """Note rows that go the other way, which crosses as much; see `View.scatter`."""
        self.calls.append(Call("gather", near.shape[-1], near.requires_grad))
        return near

    def sum(self, x: Tensor, partial: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Note a sum over all rows; see `View.sum`."""
        sums = x.sum(-2, keepdim=True) if partial is None else self._back(partial(self.frames(x)), x)
        self.calls.append(Call("sum", sums.shape[-1], sums.requires_grad, double=partial is not None))
        return sums

    def update(self, norm: Tracking, found: Tensor) -> None:
        """Note running statistics; see `View.update`."""
        self.tracked[norm] = found[0].numel()

    def top(self, x: Tensor, scores: Tensor, k: int) -> Tensor:
        """Note the best rows; see `View.top`."""
        self.calls.append(Call("top", x.shape[-1], x.requires_grad, count=k))
        return x[..., : min(k, _ROWS), :]

    def recur(self, module: Any, *frames: Tensor) -> Tensor:
        """Note a recurrent module, and do not run it; see `View.recur`."""
        if self.along is None:
            return super().recur(module, *frames)
        self.recurrences, module = self.recurrences + 1, recurrent(module)
        like, widths = frames[0], tuple(frame.shape[-1] for frame in frames)
        form = Form.of(module, like.dtype, like.device)
        shape = (like.shape[0], *form.shape(1)) if form.kind == "weight" else (*like.shape[:2], module.out_channels)
        inputs = tuple(frame.untyped_storage().data_ptr() == self._x.untyped_storage().data_ptr() for frame in frames)
        needs = tuple(frame.requires_grad for frame in frames)
        self.calls.append(Call("recur", sum(widths), True, False, widths, inputs, needs, form, shape[-1]))
        return like.new_zeros(()).expand(shape).requires_grad_(True)

    def dense(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        add: Tensor | None = None,
        relu: bool = False,
        p: float = 0.0,
        theta: float = 1.0,
    ) -> Tensor:
        """Return zeros; see `View.dense`."""
        return self._zeros(x, weight.shape[0], weight, bias, add)

    def normalise(self, x: Tensor, norm: nn.LayerNorm, *, relu: bool = False, p: float = 0.0) -> Tensor:
        """Return zeros; see `View.normalise`."""
        return self._zeros(x, x.shape[-1], *norm.parameters())
