"""Backward without what torch does around it: no checks of arguments, and no import of its compiler for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge


def run_backward(roots: Sequence[tuple[GradientEdge | Tensor, Tensor]]) -> None:
    """Go back from roots with their gradients.

    As `torch.autograd.backward` does, without its checks of the arguments, which every small cell would pay for, and
    which load sympy: 40 MB and a third of a second.
    """
    torch.autograd.Variable._execution_engine.run_backward(
        tuple([root for root, _ in roots]),
        tuple([gradient for _, gradient in roots]),
        False,
        False,
        (),
        allow_unreachable=True,
        accumulate_grad=True,
    )
