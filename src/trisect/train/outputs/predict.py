"""Outputs of a trained model for every vertex, in the user's vertex order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from trisect.comm.local.neighbours import Gather
from trisect.errors import CheckpointError, ConfigError
from trisect.layout import Layout
from trisect.train.run.run_directory import RunDirectory
from trisect.train.setup import Setup

_AVERAGE = "optimiser.ema."


def predict(setup: Setup, steps: range | None = None) -> dict[str, Tensor]:
    """Give the task's outputs for each vertex, with the parameters as they are: every tensor is [steps, vertices, …].

    Args:
        steps: of a timeline; None: all.
    """
    return _collect(setup, predictions(setup, steps))


def embed(setup: Setup, steps: range | None = None) -> Tensor:
    """Give what the model knows of each vertex before it is turned into scores: [steps, vertices, channels].

    For tasks with a decoder it is the model's output; otherwise what its last layer reads.
    """
    return _collect(setup, embeddings(setup, steps))["embedding"]


@torch.no_grad()
def outputs(
    setup: Setup, steps: range | None = None, *, embedded: bool = True
) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Embeddings and the task's outputs of some steps, a few at a time: (first step, name → [steps, rows, …]).

    Rows stand in the program's order.

    Args:
        steps: of a timeline; None: all.
        embedded: whether embeddings are wanted beside what the task makes of them.
    """
    if setup.program.decodes and embedded:
        yield from _decoded(setup, steps)
        return
    if embedded:
        yield from embeddings(setup, steps)
    yield from predictions(setup, steps)


@torch.no_grad()
def _decoded(setup: Setup, steps: range | None) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Give `outputs` of a model with a decoder, in one pass: what the decoder reads, and what the task makes of it."""
    program = setup.program
    for first, frames in program.outputs(range(setup.steps) if steps is None else steps):
        yield first, {"embedding": frames} | program.task.predict(program.decoder, frames, first)


def embeddings(setup: Setup, steps: range | None = None) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Give the embeddings alone, as `outputs` gives them."""
    hidden = not setup.program.decodes
    for first, frames in setup.program.outputs(range(setup.steps) if steps is None else steps, hidden=hidden):
        yield first, {"embedding": frames}


@torch.no_grad()
def predictions(setup: Setup, steps: range | None = None) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Give the task's outputs alone, as `outputs` gives them."""
    program = setup.program
    for first, frames in program.outputs(range(setup.steps) if steps is None else steps):
        yield first, program.task.predict(program.decoder, frames, first)


def _collect(setup: Setup, computed: Iterator[tuple[int, dict[str, Tensor]]]) -> dict[str, Tensor]:
    parts: dict[str, list[Tensor]] = {}
    for _, columns in computed:
        for name, value in columns.items():
            parts.setdefault(name, []).append(setup.to_user_order(value, dim=1).cpu())
    return {name: torch.cat(values) for name, values in parts.items()}


def trained_parameters(
    directory: RunDirectory,
    say: Callable[[str], None] = lambda sentence: None,
    *,
    rank: int = 0,
    gather: Gather = lambda own: [own],
) -> dict[str, Tensor]:
    """Give the parameters of the best epoch of a run, by name (`model.…`, `decoder.…`), whatever layout wrote them.

    Args:
        rank, gather: of ranks that read together, as for `Checkpoints.latest`.
    """
    checkpoint = directory.checkpoints.latest(say, _is_parameter, rank=rank, gather=gather)
    if checkpoint is None:
        raise ConfigError(f"The run in {directory.path} has no checkpoint yet; let it train first.")
    # before its first evaluation a run has no best epoch; its newest parameters serve then, averaged where they are
    best = {name.removeprefix("best."): t for name, t in checkpoint.tensors.items() if name.startswith("best.")}
    newest = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith(_AVERAGE)}
    means = {name.removeprefix(_AVERAGE): t for name, t in checkpoint.tensors.items() if name.startswith(_AVERAGE)}
    return best or {**newest, **means}


def predicting(layout: Layout) -> Layout:
    """Give the same cut for outputs: exact, so that nothing is stale and rows cross as they are."""
    return replace(layout, chunks=1, wire="float32")


def load_parameters(setup: Setup, tensors: dict[str, Tensor], directory: RunDirectory) -> None:
    """Put trained parameters into the modules at hand: all of the model's, or one stage's."""
    names = setup.modules.state_dict().keys()
    try:
        setup.modules.load_state_dict({name: tensor for name, tensor in tensors.items() if name in names})
    except RuntimeError:
        raise CheckpointError(f"The checkpoint in {directory.path} does not fit the model in its run.") from None


def _is_parameter(name: str) -> bool:
    return name.removeprefix("best.").removeprefix(_AVERAGE).split(".", 1)[0] in ("model", "decoder")
