"""`WrappedPyG`: a module of the user's own, `forward(x, edge_index, …)`, as the one layer of a model."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from trisect.errors import ConfigError
from trisect.nn.base import Wrapped
from trisect.nn.pyg.asking import Asking
from trisect.nn.pyg.native import Form, form_of
from trisect.nn.pyg.twin import as_trained, is_convolution, twin_of

if TYPE_CHECKING:
    from trisect.views.view import View

# by their names, what a forward is given of the data
GIVEN = ("edge_index", "edge_weight", "edge_attr", "batch")


def is_pyg(module: nn.Module) -> bool:
    """Whether a module is called with an edge_index: it has convolutions of PyG, or an argument of that name."""
    if any(is_convolution(child) for child in module.modules()):
        return True
    return type(module).forward is not nn.Module.forward and "edge_index" in _parameters(module)


class WrappedPyG(Wrapped):
    """A module that is called as PyG's are. It can be cut by vertex.

    Args:
        module: called as module(x, edge_index=…, …), with what of `GIVEN` its forward names.
        in_channels: width of the features.
        edge_channels: features of an edge; `flat`: whether the one that there is has no dim of its own.
        weighted: whether edges have weights.

    Attributes:
        native: whether convolutions are done by verbs of the view, whose matrix then has the form that they read.
    """

    native = False

    def __init__(
        self, module: nn.Module, in_channels: int, *, edge_channels: int = 0, flat: bool = False, weighted: bool = False
    ) -> None:
        arguments = arguments_of(module, edge_channels=edge_channels, weighted=weighted)
        super().__init__(twin_of(module), in_channels)
        self.arguments, self.flat = arguments, flat
        self.edge_channels = edge_channels if "edge_attr" in arguments else 0

    @property
    def form(self) -> Form | None:
        """The form of the matrix that all convolutions read, where they can be done by verbs of a view; else None."""
        forms = {form_of(child) for child in self.module.modules() if is_convolution(child)}
        return forms.pop() if len(forms) == 1 else None

    @property
    def called(self) -> str:
        """How the module is called, for errors."""
        return f"module({', '.join(('x', *self.arguments))})"

    @property
    def reads_weights(self) -> bool:
        """Whether forward is given the weights of edges."""
        return "edge_weight" in self.arguments

    def forward(self, x: Tensor, g: View) -> Tensor:
        """Return module(x, edge_index, …), [rows, out_channels]."""
        given = {name: self._given(name, x, g) for name in self.arguments}
        with as_trained(self.module, trains=g.trains), Asking(g, given if self.native else None):
            out: Tensor = self.module(x, **given)
        return out

    def _given(self, name: str, x: Tensor, g: View) -> Tensor | None:
        if name == "edge_index":
            return torch.empty(2, 0, dtype=torch.int64) if self.native else g.edge_index
        if name == "batch":
            return torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)
        if name == "edge_weight":
            if self.native:
                return x.new_empty(0)
            weight = g.edge_weight
            return x.new_ones(g.block.entries) if weight is None else weight.to(x.dtype)
        features = g.block.edge_attributes()
        if features is None:
            raise ConfigError("forward reads edge_attr, and the edges have none; give the data edge_attr.")
        features = features.to(x.dtype)
        return features[:, 0] if self.flat else features


def _parameters(module: nn.Module) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(module.forward).parameters)


def arguments_of(module: nn.Module, *, edge_channels: int, weighted: bool) -> tuple[str, ...]:
    """Return the names of what forward is given besides x.

    Raises:
        ConfigError: it needs an argument that the data do not have.
    """
    name, arguments = type(module).__name__, _parameters(module)
    positional = [p.name for p in arguments.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if not positional:
        raise ConfigError(f"{name}.forward takes no x; write it as forward(self, x, edge_index).")
    given = []
    for argument in list(arguments.values())[1:]:
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            continue
        needed = argument.default is argument.empty
        there = {"edge_index": True, "edge_weight": weighted, "edge_attr": edge_channels > 0, "batch": needed}
        if there.get(argument.name):
            given.append(argument.name)
        elif needed and argument.name in GIVEN:
            raise ConfigError(
                f"{name}.forward needs {argument.name}, and the data have none; give the data {argument.name}, or the"
                " argument a default."
            )
        elif needed:
            raise ConfigError(
                f"{name}.forward needs {argument.name!r}, which is not known; its arguments are x and"
                f" {', '.join(GIVEN)}; rename it, or give it a default."
            )
    if "edge_index" not in given and "edge_index" not in arguments:
        raise ConfigError(f"{name}.forward takes no edge_index; write it as forward(self, x, edge_index).")
    return tuple(given)
