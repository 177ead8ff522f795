"""`twin_of`: a second object for a module, which shares its parameters and buffers and leaves it as it is."""

from __future__ import annotations

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
    if getattr(twin, "cached", False) is True and is_convolution(module):
        twin.__dict__["cached"] = False
    return twin  # type: ignore[no-any-return]


_CONVOLUTIONS: dict[type, type] = {}


def _convolution(kind: type) -> type:
    """Return the class of convolutions that say when they are at their messages; its name is that of `kind`."""
    if issubclass(kind, _AtMessages):
        return kind
    if kind not in _CONVOLUTIONS:
        _CONVOLUTIONS[kind] = type(kind.__name__, (_AtMessages, kind), {"__module__": kind.__module__})
    return _CONVOLUTIONS[kind]


class _AtMessages:
    """Notes when messages are made, whose tensors have a row for each edge; or is run by the verbs of a view."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        now = asking()
        if now is not None and now.native is not None:
            return run_native(self, now.g, now.native, args, kwargs)
        return super().forward(*args, **kwargs)  # type: ignore[misc]

    def propagate(self, *args: Any, **kwargs: Any) -> Any:
        return _at_messages(super().propagate, args, kwargs)  # type: ignore[misc]

    def edge_updater(self, *args: Any, **kwargs: Any) -> Any:
        return _at_messages(super().edge_updater, args, kwargs)  # type: ignore[misc]


def _at_messages(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    now = asking()
    if now is None:
        return call(*args, **kwargs)
    now.inside += 1
    try:
        return call(*args, **kwargs)
    finally:
        now.inside -= 1
