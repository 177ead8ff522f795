"""Which cluster is meant: this machine as it was calibrated, a preset, or a file."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch

from trisect.errors import TrisectError
from trisect.ops.memory import free_bytes
from trisect.plan.cluster import GUESSED, MEASURED, Cluster, Device, Link, read_cluster
from trisect.plan.presets import PRESETS, find_cluster

CLUSTER_VARIABLE = "TRISECT_CLUSTER"


def cluster_path() -> Path:
    """Say where the cluster file of this machine is kept."""
    asked = os.environ.get(CLUSTER_VARIABLE)
    if asked:
        return Path(asked).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "trisect" / "cluster.yaml"


def earlier_calibration() -> Cluster | None:
    """Give this machine as it was calibrated before; None where it was not, or was disturbed then."""
    try:
        earlier = read_cluster(cluster_path()) if cluster_path().exists() else None
    except TrisectError:
        return None
    return earlier if earlier is not None and earlier.source == MEASURED else None


# Of a device beside the host nothing was measured here: its rates are those of a common one.
_BESIDE = "8xa100"


def local_cluster(device: str = "cpu", *, bounded: bool = True) -> Cluster:
    """Give this machine as it was calibrated, or else a guess; its memory is what is free now.

    Args:
        device: what ranks compute on; of CUDA devices the memory is that of the device with the least free.
        bounded: whether it is no more than the variable TRISECT_MEMORY allows.
    """
    if device.startswith("cuda") and torch.cuda.is_available():
        count = torch.cuda.device_count()
        least = min(free_bytes(torch.device("cuda", number), bounded=bounded) for number in range(count))
        usual = PRESETS[_BESIDE]
        return replace(usual, hosts=1, devices=count, device=replace(usual.device, memory=least), name="this machine")
    path, free = cluster_path(), free_bytes(torch.device("cpu"), bounded=bounded)
    if path.exists():
        measured = read_cluster(path)
        return replace(measured, device=replace(measured.device, memory=free))
    cores = os.cpu_count() or 1
    guessed = Device(
        flops=4e10 * cores,
        gather={16: 2e9 * cores, 64: 4e9 * cores, 256: 6e9 * cores},
        gather_cached={16: 5e9 * cores, 64: 1e10 * cores, 256: 1.5e10 * cores},
        cache=1 << 20,
        elementwise=5e9 * cores,
        memory=free,
    )
    inside = Link(bandwidth=4e9, latency=3e-5, message=1e-4, copies=True)
    between = Link(bandwidth=1.25e8, latency=1e-4, message=1e-4)
    # one rank uses all cores with its threads; several divide them
    shares = {ranks: 1.0 / ranks for ranks in range(1, cores + 1)}
    return Cluster("this machine", guessed, inside, between, devices=cores, shares=shares, source=GUESSED)


def cluster_of(name: str | Path | Cluster | None, device: str = "cpu") -> Cluster:
    """Give a cluster by name, file or value; None: this machine, with what it has of the device."""
    if isinstance(name, Cluster):
        return name
    return local_cluster(device) if name is None else find_cluster(str(name))
