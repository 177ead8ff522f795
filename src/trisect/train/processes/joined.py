"""What every rank does first: find its shards of the data, and join the others."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from trisect.comm.files import Files
from trisect.comm.mesh import Mesh, connect, disconnect
from trisect.comm.notes import StoreNotes
from trisect.comm.world import Store, World, agent_store, meet, restart_count
from trisect.errors import FaultError, RunError, TrisectError
from trisect.layout import Layout
from trisect.settings.writing import to_json
from trisect.train.processes.faults import Phase, naming_lost_ranks, show_phase
from trisect.train.processes.folders import remove_folder, temporary_folder
from trisect.train.processes.resources import explaining_limits
from trisect.train.run.apart import Host

_LONGEST_CUT = datetime.timedelta(hours=12)


@contextmanager
def joined(
    layout: Layout, world: World, device: torch.device, timeout: float, shards: Path | Callable[[Path], None]
) -> Iterator[tuple[Mesh, Host]]:
    """Join the other ranks; give this rank's mesh, and its host, whose folder has the shards.

    Args:
        timeout: seconds that a rank waits for another.
        shards: the folder; or a function that cuts the data into one, which the first rank of each host calls, before
            any rank is connected.
    """
    world.require(layout)
    show_phase(world.rank, Phase.MEETS)
    store = meet(world)
    with ExitStack() as stack, naming_lost_ranks(store, world):
        if isinstance(shards, Path):
            folder = shards
        elif world.local_rank == 0:
            folder = stack.enter_context(temporary_folder("trisect-shards-"))
            _remove_earlier(world, folder)
            _cut(store, world, shards, folder)
        else:
            folder = _find(store, world)
        show_phase(world.rank, Phase.MET)
        mesh = connect(layout, device, timeout, store=store, world=world)
        show_phase(world.rank, Phase.JOINED)
        yield mesh, Host(world.first_here, folder, StoreNotes(store), Files(store, timeout), timeout)
        # after a failure the process ends, and waiting for ranks that are gone would only delay that
        disconnect(mesh)


def _remove_earlier(world: World, folder: Path) -> None:
    """Remove the folder of the attempt before, whose ranks torchrun has ended, and leave word of ours."""
    agent = agent_store(world)
    if agent is None:
        return
    key = f"shards/{world.first_here}"
    if restart_count() > 0 and agent.check([key]):
        earlier = Path(agent.get(key).decode())
        if earlier.parent == folder.parent:
            remove_folder(earlier)
    agent.set(key, str(folder))


def _cut(store: Store, world: World, cut: Callable[[Path], None], folder: Path) -> None:
    told = {"path": str(folder), "fault": False, "why": None}
    try:
        with explaining_limits():
            cut(folder)
    except BaseException as error:
        why = str(error) if isinstance(error, TrisectError) else None
        told = {"path": None, "fault": isinstance(error, FaultError), "why": why}
        raise
    finally:
        store.set(f"cut/{world.rank}", to_json(told))


def _find(store: Store, world: World) -> Path:
    key = f"cut/{world.first_here}"
    store.wait([key], _LONGEST_CUT)
    told = json.loads(store.get(key))
    if told["path"] is None:
        # the launcher tells what the first rank says that ends, which may be this one
        said = told["why"] or f"rank {world.first_here} could not cut the data; it says why."
        if told["fault"]:
            raise FaultError(said)
        error = RunError(said)
        error.exit_code = 2
        raise error
    return Path(told["path"])
