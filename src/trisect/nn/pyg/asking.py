"""`Asking`: while a module runs under it, operations of torch that concern other rows ask a view.

A rank has own rows alone. An `edge_index` numbers its sources by the rows that `g.gather` gives, own rows first, and
its targets by the own rows. So these operations mean more than they say, and are done by verbs of the view:

- to index own rows by sources is `g.gather`; to add up by sources is `g.scatter`;
- a sum, mean, variance or standard deviation over the rows, a readout, and a batch norm are made of `g.sum`;
- dropout is by place: by vertex, or by the vertices of an edge.

All other operations run as they are written. What draws random numbers of its own is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from trisect.errors import ConfigError
from trisect.nn.pyg.indices import SOURCES, TARGETS, Indices
from trisect.nn.pyg.native import NotNativeError
from trisect.ops.dropout import dropout

if TYPE_CHECKING:
    from trisect.views.view import View

Handler = Callable[..., Any]
_ACTIVE = threading.local()


def asking() -> Asking | None:
    """Return what is active in this thread."""
    active: Asking | None = getattr(_ACTIVE, "asking", None)
    return active


class Asking(TorchFunctionMode):
    """One forward of a module on the own rows of a view.

    Attributes:
        g: the view.
        inside: how many convolutions are at their messages, whose tensors have a row for each edge.
        native: what forward was given besides x, where convolutions are done by verbs of the view; None: they run as
            they are written.
    """

    def __init__(self, g: View, native: dict[str, Tensor | None] | None = None) -> None:
        super().__init__()
        self.g, self.rows, self.inside, self.native = g, g.rows, 0, native
        self.indices = Indices()
        self._gathered: dict[int, tuple[Tensor, int, Tensor]] = {}
        self._before: Asking | None = None

    def __enter__(self) -> Asking:
        """Begin."""
        self._before, _ACTIVE.asking = asking(), self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        """End."""
        _ACTIVE.asking = self._before
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Do an operation of torch."""
        handler = HANDLERS.get(func)
        kwargs = {} if kwargs is None else kwargs
        if self.native is not None and any(arg is self.native["edge_index"] for arg in args):
            raise NotNativeError
        return func(*args, **kwargs) if handler is None else handler(self, func, *args, **kwargs)

    # What the view is asked

    def has_rows(self, x: object) -> bool:
        """Whether a tensor has a row for each own vertex."""
        if self.inside or not isinstance(x, Tensor) or x.dim() == 0 or x.shape[0] != self.rows:
            return False
        return not isinstance(x, torch.nn.Parameter)

    def near(self, x: Tensor, dim: int = 0) -> Tensor:
        """Return the rows that own rows read, along a dim of x; asked once for a tensor."""
        kept = self._gathered.get(id(x))
        if kept is not None and kept[1] == x._version:
            return kept[2]
        first = x.movedim(dim, 0)
        flat = first.reshape(self.rows, -1)
        exact = flat if flat.is_floating_point() else flat.double()  # whole numbers cross as such
        rows: Tensor = self._own_first(self.g.gather(exact))
        near = rows.to(flat.dtype).view(-1, *first.shape[1:]).movedim(0, dim)
        self._gathered[id(x)] = (x, x._version, near)
        return near

    def _own_first(self, columns: Tensor) -> Tensor:
        """Return rows of columns with the own rows first, where a chunk has others before them."""
        first = self.g.block.self_start
        if first == 0:
            return columns
        return torch.cat([columns[first : first + self.rows], columns[:first], columns[first + self.rows :]])

    @property
    def edge_index(self) -> Tensor:
        """The edges into own rows, int64 [2, edges]; sources are numbered with the own rows first."""
        with torch._C.DisableTorchFunction():
            edges, count = self.g.edge_index, self.columns
            if self.g.block.self_start == 0:
                return edges
            place = torch.empty(count, dtype=torch.int64, device=edges.device)
            numbers = torch.arange(count, device=edges.device)
            place[self._own_first(numbers)] = numbers
            return torch.stack([place[edges[0]], edges[1]])

    def give(self, near: Tensor) -> Tensor:
        """Return what all ranks have made for own rows, [rows, …], of columns [columns, …]."""
        flat = near.reshape(near.shape[0], -1)
        exact = flat if flat.is_floating_point() else flat.double()
        return self.g.scatter(exact.contiguous()).to(flat.dtype).view(self.rows, *near.shape[1:])

    def total(self, partial: Tensor) -> Tensor:
        """Return the sum over all ranks of what each has added up itself, of any shape."""
        exact = partial if partial.is_floating_point() else partial.double()
        return self.g.sum(exact.reshape(1, -1)).view(partial.shape).to(partial.dtype)

    @property
    def columns(self) -> int:
        """How many rows own rows read, themselves included."""
        return self.g.block.columns

    def edge_vertices(self, edges: int) -> Tensor | None:
        """Return a number for the vertices of each of so many edges; None: no edge_index has so many."""
        pair = self.indices.pair(edges)
        if pair is None:
            return None
        vertices = self._own_first(self.g.column_vertices)
        return vertices[pair[0]] * self.g.total_rows + vertices[pair[1]]


def active_rows(x: Tensor) -> bool:
    """Whether a forward is active of which x has the rows."""
    now = asking()
    return now is not None and now.has_rows(x)


# Indices


def _getitem(ask: Asking, func: Handler, x: Tensor, key: Any) -> Any:
    if isinstance(key, int) and not isinstance(key, bool) and ask.indices.is_pair(x) and -2 <= key < 2:
        return ask.indices.note(func(x, key), ask.indices.split(x)[key % 2])
    first = key[0] if isinstance(key, tuple) and key else key
    if ask.indices.side(first) == SOURCES and x.dim() and x.shape[0] == ask.rows and x.is_floating_point():
        return func(ask.near(x), key)
    return _same(ask, func, x, key)


def _select(ask: Asking, func: Handler, x: Tensor, dim: int, index: int) -> Tensor:
    if dim == 0:
        picked: Tensor = _getitem(ask, lambda x, key: func(x, 0, key), x, index)
        return picked
    return func(x, dim, index)  # type: ignore[no-any-return]


def _unbind(ask: Asking, func: Handler, x: Tensor, dim: int = 0) -> Any:
    found = func(x, dim)
    if dim == 0 and ask.indices.is_pair(x):
        for side, index in zip(ask.indices.split(x), found, strict=True):
            ask.indices.note(index, side)
    return found


def _index_select(ask: Asking, func: Handler, x: Tensor, dim: int, index: Tensor) -> Tensor:
    if ask.indices.side(index) == SOURCES and x.shape[dim] == ask.rows:
        x = ask.near(x, dim)
    return _same(ask, func, x, dim, index)  # type: ignore[no-any-return]


def _same(ask: Asking, func: Handler, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Do an operation whose result numbers what x numbers."""
    made, side = func(x, *args, **kwargs), ask.indices.side(x)
    if side is None or not isinstance(made, Tensor) or made.dtype != torch.int64:
        return made
    return ask.indices.note(made, side)


def _flip(ask: Asking, func: Handler, x: Tensor, *dims: Any) -> Tensor:
    made: Tensor = func(x, *dims)
    axes = dims[0] if dims and not isinstance(dims[0], int) else dims
    if ask.indices.is_pair(x) and 0 in [axis % 2 for axis in axes]:
        ask.indices.note(made, ask.indices.split(x)[1])
    return made


def _stack(ask: Asking, func: Handler, tensors: Any, dim: int = 0) -> Tensor:
    tensors = list(tensors)
    made: Tensor = func(tensors, dim)
    return ask.indices.note(made, ask.indices.side(tensors[0])) if ask.indices.is_pair(made) and dim == 0 else made


def _cat(ask: Asking, func: Handler, tensors: Any, *args: Any, **kwargs: Any) -> Tensor:
    tensors = list(tensors)
    made: Tensor = func(tensors, *args, **kwargs)
    sides = [side for tensor in tensors if (side := ask.indices.side(tensor)) is not None]
    return ask.indices.note(made, sides[0]) if sides and made.dtype == torch.int64 else made


# Sums by an index


def _scatter(ask: Asking, func: Handler, out: Tensor, dim: int, index: Tensor, src: Any, *args: Any, **kw: Any) -> Any:
    side, adds = ask.indices.side(index), _adds(func, args, kw)
    if side == TARGETS or not isinstance(src, Tensor) or dim % max(1, out.dim()) != 0:
        return func(out, dim, index, src, *args, **kw)
    if side == SOURCES:
        if out.shape[0] != ask.rows:
            return func(out, dim, index, src, *args, **kw)
        if not adds:
            raise ConfigError(f"{func.__name__} by the sources of edges takes no sum, which a cut cannot do.")
        near = func(out.new_zeros(ask.columns, *out.shape[1:]), dim, index, src, *args, **kw)
        return _into(func, out, ask.give(near))
    if not ask.has_rows(src):
        return func(out, dim, index, src, *args, **kw)
    if not adds:
        raise ConfigError(f"{func.__name__} over all vertices takes no sum, which a cut cannot do.")
    return _into(func, out, ask.total(func(torch.zeros_like(out), dim, index, src, *args, **kw)))


def _adds(func: Handler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    reduce = kwargs.get("reduce", args[0] if args and isinstance(args[0], str) else "sum")
    return not func.__name__.startswith("scatter_reduce") or reduce == "sum"


def _into(func: Handler, out: Tensor, more: Tensor) -> Tensor:
    return out.add_(more) if func.__name__.endswith("_") else out + more


# Statistics over all rows


def _reduces_rows(ask: Asking, x: Any, dim: Any) -> bool:
    if not ask.has_rows(x) or not x.is_floating_point():
        return False
    dims = list(range(x.dim())) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    return not dims or 0 in [d % x.dim() for d in dims]


def _sum(ask: Asking, func: Handler, x: Tensor, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Tensor:
    if dim is None and not keepdim:
        made: Tensor = func(x, **kwargs)
    else:
        made = func(x, dim=dim, keepdim=keepdim, **kwargs)
    return ask.total(made) if _reduces_rows(ask, x, dim) else made


def _mean(ask: Asking, func: Handler, x: Tensor, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Tensor:
    if not _reduces_rows(ask, x, dim):
        return func(x, **kwargs) if dim is None and not keepdim else func(x, dim=dim, keepdim=keepdim, **kwargs)  # type: ignore[no-any-return]
    dims = list(range(x.dim())) if dim is None else dim
    share = _sum(ask, torch.sum, x, dims, keepdim, **kwargs)
    return share / _count(ask, x, dims)


def _count(ask: Asking, x: Tensor, dims: Any) -> int:
    count = 1
    for d in [dims] if isinstance(dims, int) else dims:
        count *= ask.g.total_rows if d % x.dim() == 0 else x.shape[d]
    return count


def _var(
    ask: Asking,
    func: Handler,
    x: Tensor,
    dim: Any = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: int | None = None,
) -> Tensor:
    if isinstance(dim, bool):  # x.var(unbiased)
        dim, unbiased = None, dim
    less = int(unbiased) if correction is None else correction
    if not _reduces_rows(ask, x, dim):
        return func(x, dim=dim, correction=less, keepdim=keepdim)  # type: ignore[no-any-return]
    dims = list(range(x.dim())) if dim is None else dim
    square = (x - _mean(ask, torch.mean, x, dims, True)) ** 2
    variance = _sum(ask, torch.sum, square, dims, keepdim) / max(0, _count(ask, x, dims) - less)
    return variance.sqrt() if func.__name__ == "std" else variance


def _batch_norm(
    ask: Asking,
    func: Handler,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise by the statistics of all rows; of messages, by those of all edges."""
    counted = ask.has_rows(x) or ask.inside or ask.indices.pair(x.shape[0]) is not None
    if not training or not counted:
        return func(x, running_mean, running_var, weight, bias, training, momentum, eps)  # type: ignore[no-any-return]
    others = [0, *range(2, x.dim())]
    shape = [1, -1, *[1] * (x.dim() - 2)]
    own = x.new_full((1,), x.numel() / x.shape[1] if x.shape[1] else 0.0)
    both = ask.total(torch.cat([x.sum(others), own]))
    count = both[-1].detach()
    mean = both[:-1] / count
    centred = x - mean.view(shape)
    variance = ask.total((centred**2).sum(others)) / count
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((variance * count / (count - 1)).to(running_var.dtype), momentum)
    y = centred * torch.rsqrt(variance + eps).view(shape)
    if weight is not None:
        y = y * weight.view(shape)
    return y if bias is None else y + bias.view(shape)


def _instance_norm(
    ask: Asking,
    func: Handler,
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise [1, channels, rows or edges] by the statistics of all of them, as PyG's InstanceNorm asks."""
    rows = x[0].t() if x.dim() == 3 and x.shape[0] == 1 else x
    if not use_input_stats or not (ask.has_rows(rows) or ask.inside):
        return func(x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)  # type: ignore[no-any-return]
    made = _batch_norm(ask, func, rows, running_mean, running_var, weight, bias, True, momentum, eps)
    return made.t()[None]


# Chance


def _dropout(
    ask: Asking, func: Handler, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    if not training or p == 0.0:
        return x
    if p == 1.0:
        return x * 0.0
    if ask.has_rows(x):
        return ask.g.dropout(x.reshape(ask.rows, -1), p).view(x.shape)
    if x.dim() > 2 and ask.has_rows(x.movedim(-2, 0)):  # [stacks, rows, channels]
        first = x.movedim(-2, 0)
        return ask.g.dropout(first.reshape(ask.rows, -1), p).view(first.shape).movedim(0, -2)
    ids = ask.edge_vertices(x.shape[0]) if x.dim() else None
    if ids is None:
        raise ConfigError(
            f"dropout of a tensor of shape {list(x.shape)}, which has neither a row for each vertex nor one for each"
            " edge, would differ between cuts; drop rows of vertices or edges."
        )
    chance = ask.g.chance("edges")
    if chance is None:
        return x
    return dropout(x.reshape(x.shape[0], -1), p, chance[0].at(vertices=ids)).view(x.shape)


def _refused(ask: Asking, func: Handler, *args: Any, **kwargs: Any) -> Any:
    raise ConfigError(
        f"{func.__name__} draws random numbers inside forward, which would differ between cuts; draw them outside and"
        " keep them in a buffer, or use dropout."
    )


HANDLERS: dict[Any, Handler] = {
    Tensor.__getitem__: _getitem,
    Tensor.select: _select,
    torch.select: _select,
    Tensor.unbind: _unbind,
    torch.unbind: _unbind,
    Tensor.index_select: _index_select,
    torch.index_select: _index_select,
    Tensor.flip: _flip,
    torch.flip: _flip,
    torch.stack: _stack,
    torch.cat: _cat,
    torch.concat: _cat,
    torch.hstack: _cat,
    **dict.fromkeys(
        (
            Tensor.view,
            Tensor.reshape,
            Tensor.expand,
            Tensor.expand_as,
            Tensor.unsqueeze,
            Tensor.clone,
            Tensor.contiguous,
            Tensor.long,
            Tensor.to,
            Tensor.detach,
            Tensor.flatten,
            Tensor.masked_select,
            torch.masked_select,
            torch.unsqueeze,
            torch.clone,
        ),
        _same,
    ),
    **dict.fromkeys(
        (
            Tensor.scatter_add_,
            Tensor.scatter_add,
            torch.scatter_add,
            Tensor.scatter_reduce_,
            Tensor.scatter_reduce,
            torch.scatter_reduce,
            Tensor.index_add_,
            Tensor.index_add,
            torch.index_add,
        ),
        _scatter,
    ),
    **dict.fromkeys((Tensor.sum, torch.sum), _sum),
    **dict.fromkeys((Tensor.mean, torch.mean), _mean),
    **dict.fromkeys((Tensor.var, torch.var, Tensor.std, torch.std), _var),
    functional.batch_norm: _batch_norm,
    functional.instance_norm: _instance_norm,
    functional.dropout: _dropout,
    **dict.fromkeys(
        (
            functional.dropout1d,
            functional.dropout2d,
            functional.alpha_dropout,
            functional.feature_alpha_dropout,
            functional.gumbel_softmax,
            torch.rand,
            torch.rand_like,
            torch.randn,
            torch.randn_like,
            torch.randint,
            torch.randint_like,
            torch.randperm,
            torch.bernoulli,
            Tensor.bernoulli,
            Tensor.bernoulli_,
            torch.multinomial,
            Tensor.multinomial,
            torch.normal,
            Tensor.normal_,
            Tensor.uniform_,
            Tensor.random_,
            Tensor.exponential_,
        ),
        _refused,
    ),
}
