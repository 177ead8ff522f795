"""Whether the tensors of a checkpoint fit the modules that take them up, by names and shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trisect.errors import CheckpointError

Shapes = Mapping[str, tuple[int, ...]]

REMEDY = "continue it with the release and the settings that wrote it, or start a new run in another --out."
_MODULES = ("model", "decoder")
_HISTORY = re.compile(r"^layer=\d+,vertex=\d+,chunks=\d+(,order=[0-9a-f]+)?\.rank-\d+\.history\.\d+$")


def require_state(shapes: Shapes, parameters: Shapes, where: str, *, complete: bool) -> None:
    """Raise a CheckpointError that names the first tensor of a checkpoint that does not fit.

    Args:
        shapes: the shapes of its tensors.
        parameters: those of the modules that take it up, by name (`model.…`, `decoder.…`).
        where: names the checkpoint.
        complete: whether these are all modules of the run; those of a stage find tensors of other stages too.
    """
    _require_parameters(shapes, parameters, "", where, complete=complete)
    _require_optimizer(shapes, parameters, "optimiser.", where, complete=complete)
    # parameters and optimizer of the best epoch, and of the last that the guard found good, where there were any
    for prefix in ("best.", "good."):
        if any(name.startswith(prefix) and not name.startswith(f"{prefix}optimiser.") for name in shapes):
            _require_parameters(shapes, parameters, prefix, where, complete=complete)
    _require_optimizer(shapes, parameters, "good.optimiser.", where, complete=complete)
    prefixes = (*(f"{name}." for name in _MODULES), "best.", "good.", "optimiser.", "program.")
    for name in shapes:
        if not name.startswith(prefixes) or (
            name.startswith("program.") and not _HISTORY.match(name.removeprefix("program."))
        ):
            raise CheckpointError(f"{where} has a tensor {name!r}, which this release does not know; {REMEDY}")


def _require_parameters(shapes: Shapes, parameters: Shapes, prefix: str, where: str, *, complete: bool) -> None:
    for name, shape in parameters.items():
        own = shapes.get(prefix + name)
        if own is None:
            raise CheckpointError(f"{where} has no tensor {prefix + name!r}, which the model needs; {REMEDY}")
        if tuple(own) != tuple(shape):
            raise CheckpointError(
                f"{where} has {prefix + name!r} of shape {list(own)}, and the model needs {list(shape)}; {REMEDY}"
            )
    if complete:
        for name in shapes:
            rest = name.removeprefix(prefix)
            if name.startswith(prefix) and rest.split(".", 1)[0] in _MODULES and rest not in parameters:
                raise CheckpointError(f"{where} has a tensor {name!r}, for which the model has no place; {REMEDY}")


def _require_optimizer(shapes: Shapes, parameters: Shapes, prefix: str, where: str, *, complete: bool) -> None:
    """Raise where there is optimizer state of a parameter that the model lacks; `Optimizer.load` checks the rest."""
    for name in shapes if complete else ():
        if name.startswith(prefix) and name.removeprefix(prefix).partition(".")[2] not in parameters:
            raise CheckpointError(f"{where} has a tensor {name!r}, for which the model has no place; {REMEDY}")
