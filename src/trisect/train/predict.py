"""Outputs of a trained model for every vertex, in the user's vertex order."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trisect.train.setup import Setup


def predict(setup: Setup, steps: range | None = None) -> dict[str, Tensor]:
    """What the task promises for each vertex, with the parameters as they are: every tensor is [steps, vertices, …].

    Args:
        steps: of a timeline; None: all.
    """
    decoder = setup.program.decoder
    return _collect(setup, steps, lambda frames, first: setup.task.predict(decoder, frames, first), hidden=False)


def embed(setup: Setup, steps: range | None = None) -> Tensor:
    """What the model knows of each vertex before it is turned into scores: [steps, vertices, channels].

    For tasks with a decoder it is the model's output; otherwise what its last layer reads.
    """
    hidden = setup.program.decoder is None
    return _collect(setup, steps, lambda frames, first: {"embedding": frames}, hidden=hidden)["embedding"]


@torch.no_grad()
def _collect(
    setup: Setup, steps: range | None, make: Callable[[Tensor, int], dict[str, Tensor]], *, hidden: bool
) -> dict[str, Tensor]:
    parts: dict[str, list[Tensor]] = {}
    for first, frames in setup.program.outputs(range(setup.steps) if steps is None else steps, hidden=hidden):
        for name, value in make(frames, first).items():
            parts.setdefault(name, []).append(setup.to_user_order(value, dim=1).cpu())
    return {name: torch.cat(values) for name, values in parts.items()}
