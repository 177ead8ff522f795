"""The world that a process finds itself in: its rank, how many there are, and where they meet."""

from __future__ import annotations

import datetime
import functools
import itertools
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from trisect.errors import LayoutError
from trisect.layout import Layout

__all__ = [
    "FAILURES",
    "FOLDERS",
    "LAUNCHER",
    "LISTENER",
    "Store",
    "World",
    "agent_store",
    "meet",
    "restart_count",
    "world_from_environment",
]

FAILURES = "TRISECT_FAILURES"
FOLDERS = "TRISECT_FOLDERS"
LAUNCHER = "TRISECT_LAUNCHER"
LISTENER = "TRISECT_LISTENER"  # the descriptor of the listening socket that rank 0 was handed

_meetings = itertools.count()


@dataclass(frozen=True)
class World:
    """What the environment says about the ranks that were started (by us or by torchrun)."""

    rank: int
    size: int
    local_rank: int
    local_size: int

    @property
    def first_here(self) -> int:
        """Give the first rank of this host."""
        return self.rank - self.local_rank

    def require(self, layout: Layout) -> None:
        """Raise a LayoutError where the layout needs another number of ranks."""
        if self.size != layout.world:
            raise LayoutError(
                f"The layout needs {layout.time} × {layout.layer} × {layout.vertex} = {layout.world} ranks, but"
                f" {self.size} were started; start {layout.world}, or change the layout."
            )


def world_from_environment(environment: Mapping[str, str] | None = None) -> World | None:
    """Give the world that this process was started in, or None where it stands alone."""
    variables = os.environ if environment is None else environment
    if "RANK" not in variables or "WORLD_SIZE" not in variables:
        return None
    rank, size = int(variables["RANK"]), int(variables["WORLD_SIZE"])
    return World(rank, size, int(variables.get("LOCAL_RANK", rank)), int(variables.get("LOCAL_WORLD_SIZE", size)))


def restart_count() -> int:
    """Say how often torchrun has started the ranks of this world again; 0 without it."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def agent_store(world: World, timeout: float = 600.0) -> Store | None:
    """Give the store of torchrun's agent, which outlives its ranks; None where there is none."""
    if "TORCHELASTIC_RESTART_COUNT" not in os.environ or not _is_of_agent():
        return None
    return PrefixStore("trisect", _store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, timeout))


def _is_of_agent() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def meet(world: World, timeout: float = 600.0) -> Store:
    """Where the ranks of this world leave word for one another before they are connected.

    Every rank calls it equally often; each time they find an empty store.
    """
    if "MASTER_ADDR" not in os.environ or "MASTER_PORT" not in os.environ:
        raise LayoutError("RANK is set, but MASTER_ADDR and MASTER_PORT are not; start the ranks with torchrun.")
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    name = f"trisect/{restart_count()}/{next(_meetings)}"
    return PrefixStore(name, _store(host, port, world, timeout))


@functools.cache
def _store(host: str, port: int, world: World, timeout: float) -> TCPStore:
    # torchrun's agent keeps one for its ranks; elsewhere rank 0 does, unless the user has connected the ranks already
    is_master = world.rank == 0 and not _is_of_agent() and not dist.is_initialized()
    return TCPStore(
        host,
        port,
        world.size,
        is_master=is_master,
        timeout=datetime.timedelta(seconds=timeout),
        wait_for_workers=False,
        master_listen_fd=_listener(host, port) if is_master else None,
    )


def _listener(host: str, port: int) -> int | None:
    """Give a socket that listens on the address where ranks meet, and on no other; torch would listen on all."""
    handed = os.environ.pop(LISTENER, None)
    if handed is not None:
        return int(handed)
    with suppress(OSError):  # the address may be one that only others know this host by
        return socket.create_server((host, port), backlog=2048).detach()
    return None
