"""`Mesh`: this rank's place among the others, and the process groups along each axis."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trisect.comm.calls import LEFT, Axis, Calls, no_memory
from trisect.comm.gathering import gather_values
from trisect.comm.local.hub import Hub
from trisect.comm.local.mailbox import Mailboxes, Room
from trisect.comm.local.neighbours import neighbours
from trisect.comm.staging import needs_staging
from trisect.comm.watch import Watch, end_watches
from trisect.comm.world import Store, World, meet, world_from_environment
from trisect.errors import LayoutError
from trisect.layout import AXES, Layout

_meshes = count()


@dataclass(frozen=True, eq=False)
class Mesh:
    """The position of this rank among all, and its groups.

    Attributes:
        layout: the degrees of the cuts.
        rank: this rank; (run_index · layer + stage_index) · vertex + part_index.
        device: where its tensors live.
        device_mesh: torch's mesh with the axes `time`, `layer`, `vertex`; None for one rank.
        replicas: the group of the ranks that hold the same layers, over which weight gradients are summed.
        mailboxes: for the ranks of this host; None where there is none, or `layout.transport` is `network`.
        staged: whether rows go through host memory, since the device has no collectives of its own.
        calls: which exchanges the ranks of an axis took part in; None for one rank.
    """

    layout: Layout
    rank: int
    device: torch.device
    device_mesh: DeviceMesh | None = None
    replicas: dist.ProcessGroup | None = None
    mailboxes: Mailboxes | None = None
    staged: bool = False
    calls: Calls | None = None

    @property
    def part_index(self) -> int:
        """Say which part of the vertices this rank holds."""
        return self.rank % self.layout.vertex

    @property
    def stage_index(self) -> int:
        """Say which run of layers this rank holds."""
        return self.rank // self.layout.vertex % self.layout.layer

    @property
    def run_index(self) -> int:
        """Say which run of snapshots this rank holds."""
        return self.rank // (self.layout.vertex * self.layout.layer)

    def rank_at(
        self, *, part_index: int | None = None, stage_index: int | None = None, run_index: int | None = None
    ) -> int:
        """Give the rank at these indices; an index that is left out is our own."""
        part_index = self.part_index if part_index is None else part_index
        stage_index = self.stage_index if stage_index is None else stage_index
        run_index = self.run_index if run_index is None else run_index
        return (run_index * self.layout.layer + stage_index) * self.layout.vertex + part_index

    @property
    def replica_ranks(self) -> list[int]:
        """Give the ranks that hold the same layers, this one among them, in their order."""
        return _replica_ranks(self.layout, self.stage_index)

    def group(self, axis: str) -> dist.ProcessGroup | None:
        """Give the group of the ranks along an axis through this one; None where the axis is not cut."""
        if self.device_mesh is None or getattr(self.layout, axis) == 1:
            return None
        return self.device_mesh.get_group(axis)


def connect(
    layout: Layout,
    device: torch.device,
    timeout: float = 600.0,
    *,
    store: Store | None = None,
    world: World | None = None,
) -> Mesh:
    """Join the other ranks.

    Args:
        timeout: seconds that a rank waits for another, in every group.
        store: where they meet (`world.meet`), with `world`; None: as the environment says.
    """
    if layout.world == 1:
        return Mesh(layout, 0, device)
    patience = datetime.timedelta(seconds=timeout)
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"
        if store is None and (world := world_from_environment()) is not None:
            store = meet(world)
        rank, size = (-1, -1) if world is None else (world.rank, world.size)
        dist.init_process_group(backend, timeout=patience, store=store, rank=rank, world_size=size)
    if dist.get_world_size() != layout.world:
        raise LayoutError(
            f"the layout needs {layout.time} × {layout.layer} × {layout.vertex} = {layout.world} ranks, "
            f"but {dist.get_world_size()} were started"
        )
    shape = (layout.time, layout.layer, layout.vertex)
    staged = needs_staging(device, dist.get_backend_config())
    device_mesh = init_device_mesh("cpu" if staged else device.type, shape, mesh_dim_names=AXES)
    for axis in AXES:
        # torch gives these groups its own patience of half an hour
        dist.distributed_c10d._set_pg_timeout(patience, device_mesh.get_group(axis))
    rank = dist.get_rank()
    replicas = None
    if layout.time * layout.vertex > 1:
        # every rank takes part in making every group, in the same order
        for stage in range(layout.layer):
            members = _replica_ranks(layout, stage)
            group = dist.new_group(members, timeout=patience)
            if rank in members:
                replicas = group
    mailboxes = None
    if layout.transport != "network" and (staged or device.type == "cpu"):
        mailboxes = _mailboxes(rank, layout.world, timeout)
    mesh = Mesh(layout, rank, device, device_mesh, replicas, mailboxes, staged)
    return replace(mesh, calls=_calls(mesh, store))


def _calls(mesh: Mesh, store: Store | None) -> Calls:
    """Return the log of a rank, which other ranks read in shared memory and in the store where they met."""
    layout, boxes = mesh.layout, mesh.mailboxes
    axes: dict[Axis, Sequence[int]] = {
        "vertex": [mesh.rank_at(part_index=part) for part in range(layout.vertex)],
        "time": [mesh.rank_at(run_index=run) for run in range(layout.time)],
    }
    if boxes is None:
        calls = Calls(mesh.rank, axes, no_memory(), {})
    else:
        hub = boxes.hub
        calls = Calls(mesh.rank, axes, hub.calls_of(mesh.rank), {rank: hub.calls_of(rank) for rank in hub.peers})
        for peer in hub.peers.values():
            peer.looks.append(calls.glance)
    number = next(_meshes)  # all ranks make their meshes in one order
    if layout.time * layout.vertex > 1 and (boxes is None or not boxes.all_here(range(layout.world))):
        store = dist.distributed_c10d._get_default_store() if store is None else store
        Watch(calls, PrefixStore(f"calls/{number}", store), frees=mesh.staged or mesh.device.type == "cpu")
    return calls


def _replica_ranks(layout: Layout, stage: int) -> list[int]:
    return [
        (run_index * layout.layer + stage) * layout.vertex + part_index
        for run_index in range(layout.time)
        for part_index in range(layout.vertex)
    ]


def _mailboxes(rank: int, world: int, timeout: float) -> Mailboxes | None:
    gather = partial(gather_values, device=torch.device("cpu"))
    processes = neighbours(rank, gather)
    hub = Hub.connect(rank, world, processes, timeout, gather)
    return None if hub is None else Mailboxes(processes, Room.of_host(len(processes) + 1), hub)


def disconnect(mesh: Mesh | None = None) -> None:
    """Leave the process group; no exchange is possible afterwards.

    Args:
        mesh: of a rank that has done all that it was to do: others that wait for it learn that.
    """
    if mesh is not None and mesh.calls is not None and mesh.calls.notes is None:
        mesh.calls.note_all(LEFT)
    end_watches(ended=mesh is not None)
    if dist.is_initialized():
        dist.destroy_process_group()
