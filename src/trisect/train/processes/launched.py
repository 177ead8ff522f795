"""`launch`: call a function on local ranks, from a script or a notebook, without torchrun."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trisect.comm import values
from trisect.comm.world import world_from_environment
from trisect.errors import ConfigError, TrisectError
from trisect.layout import Layout
from trisect.settings.writing import to_json
from trisect.train.fit import layout_of
from trisect.train.processes.faults import be_rank, leave
from trisect.train.processes.folders import temporary_folder
from trisect.train.processes.handed import pack, unpack
from trisect.train.processes.launch import launch as start

_PATH, _RESULT = "path.json", "result"


def launch(
    function: Callable[..., Any],
    layout: str | Mapping[str, Any] | Layout,
    *arguments: Any,
    threads: int | None = None,
) -> Any:
    """Call function(*arguments) on every rank of a layout, on this machine; return what it returned on rank 0.

    The function calls `trisect.parallelize` with the same layout. It goes to new processes, which do not import the
    main module: it lies in a module of its own, or `cloudpickle` is installed. Under torchrun, and with a layout of one
    rank, it is called here.

    Args:
        function: returns None or plain values: numbers, strings, tensors, and lists and dicts of them.
        threads: of each rank; cores / ranks by default.
    """
    world = layout_of(layout).world
    if world == 1 or world_from_environment() is not None:
        return function(*arguments)
    handed = pack({"function": function, "arguments": arguments})
    with temporary_folder("trisect-launch-") as folder:
        (folder / _PATH).write_text(to_json(sys.path))
        command = [sys.executable, "-m", "trisect.train.processes.launched", str(folder)]
        start(command, world, threads=threads, handed=handed, folders=[folder])
        return values.unpack((folder / _RESULT).read_bytes())


def main(folder: Path) -> None:
    """Be a rank that `launch` has started."""
    world = world_from_environment()
    if world is None:
        raise ConfigError("RANK is not set; this module is started by trisect.launch alone.")
    try:
        with be_rank(world):
            sys.path[:] = json.loads((folder / _PATH).read_text())
            objects = unpack(sys.stdin.buffer)
            function = objects["function"]
            result = function(*objects["arguments"])
            if world.rank == 0:
                (folder / _RESULT).write_bytes(_packed(function, result))
    except TrisectError as error:  # the launcher has been told and says it
        print(f"trisect: {error}", file=sys.stderr)
        leave(error.exit_code)


def _packed(function: Callable[..., Any], result: Any) -> bytes:
    try:
        return values.pack(result)
    except TypeError as error:
        name = getattr(function, "__name__", "the function")
        raise ConfigError(f"{name} returned what cannot be handed back ({error}); return plain values.") from None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
