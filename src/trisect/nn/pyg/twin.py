"""`twin_of`: a second object for a module, which shares its parameters and buffers and leaves it as it is."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

from torch import Tensor, nn

from trisect.nn.pyg.asking import asking
from trisect.nn.pyg.native import run_native


def is_convolution(module: nn.Module) -> bool:
    """Whether a module is a `MessagePassing` of PyG."""
    return any(
        kind.__name__ == "MessagePassing" and kind.__module__.startswith("torch_geometric.")
        for kind in type(module).__mro__
    )


def twin_of(module: nn.Module) -> nn.Module:
    """Return a module that runs as this one does, of twins of its modules.

    Parameters and buffers are the same tensors in the same places: what trains or loads one does so to both. What
    `forward` keeps in other attributes, such as cached edges, stays in the twin.
    """
    return _twin(module, {})


def _twin(module: nn.Module, made: dict[int, nn.Module]) -> nn.Module:
    if id(module) in made:
        return made[id(module)]
    kind: Any = type(module)
    twin: Any = object.__new__(_convolution(kind) if is_convolution(module) else kind)
    made[id(module)] = twin
    twin.__dict__.update(vars(module))
    twin.__dict__["_modules"] = {
        name: None if child is None else _twin(child, made) for name, child in module._modules.items()
    }
    for name, value in vars(module).items():
        # what a forward has left: a pass asks for the same as the one before
        if name.startswith("_cached") or (isinstance(value, Tensor) and value.grad_fn is not None):
            twin.__dict__[name] = None
        if isinstance(value, MethodType) and value.__self__ is module:
            twin.__dict__[name] = MethodType(value.__func__, twin)
    if is_convolution(module):
        for name, hook in _HOOKS.items():
            twin.__dict__[name] = OrderedDict({**vars(module)[name], -1: hook})
    if getattr(twin, "cached", False) is True and is_convolution(module):
        twin.__dict__["cached"] = False
    return twin  # type: ignore[no-any-return]


_CONVOLUTIONS: dict[type, type] = {}


def _convolution(kind: type) -> type:
    """Return the class of the twins of a class of convolutions; its name is that of `kind`."""
    if issubclass(kind, _Convolution):
        return kind
    if kind not in _CONVOLUTIONS:
        _CONVOLUTIONS[kind] = type(kind.__name__, (_Convolution, kind), {"__module__": kind.__module__})
    return _CONVOLUTIONS[kind]


class _Convolution:
    """A convolution that may be run by the verbs of a view."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        now = asking()
        if now is not None and now.native is not None:
            return run_native(self, now.g, now.native, args, kwargs)
        return super().forward(*args, **kwargs)  # type: ignore[misc]


def _begin(conv: Any, inputs: Any) -> None:
    """Note that messages are made."""
    now = asking()
    if now is not None:
        now.inside += 1


def _end(conv: Any, inputs: Any, output: Any) -> None:
    now = asking()
    if now is not None:
        now.inside -= 1


_HOOKS = {
    "_propagate_forward_pre_hooks": _begin,
    "_propagate_forward_hooks": _end,
    "_edge_update_forward_pre_hooks": _begin,
    "_edge_update_forward_hooks": _end,
}


@contextmanager
def as_trained(module: nn.Module, *, trains: bool) -> Iterator[None]:
    """Let a module be as in evaluation, unless it trains."""
    were = [] if trains else [child for child in module.modules() if child.training]
    for child in were:
        child.training = False
    try:
        yield
    finally:
        for child in were:
            child.training = True
