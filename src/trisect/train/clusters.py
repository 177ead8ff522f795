"""Which cluster is meant: this machine as it was calibrated, a preset, or a file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from trisect.comm.cores import usable_cores
from trisect.errors import TrisectError
from trisect.ops.memory import free_bytes
from trisect.plan.cluster import DISTURBED, GUESSED, MEASURED, QUICK, Cluster, Device, Link, read_cluster
from trisect.plan.presets import PRESETS, find_cluster

CLUSTER_VARIABLE = "TRISECT_CLUSTER"


def cluster_path() -> Path:
    """Say where the cluster file of this machine is kept."""
    asked = os.environ.get(CLUSTER_VARIABLE)
    if asked:
        return Path(asked).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    # where the system knows no home, this stays a relative path of a folder that is not there
    return (Path(cache) if cache else Path(os.path.expanduser("~"), ".cache")) / "trisect" / "cluster.yaml"


def earlier_calibration() -> Cluster | None:
    """Give this machine as it was calibrated before; None where it was not, or was disturbed then."""
    try:
        earlier = read_cluster(cluster_path()) if cluster_path().exists() else None
    except TrisectError:
        return None
    return earlier if earlier is not None and earlier.source == MEASURED else None


def _kept_cluster(say: Callable[[str], None]) -> Cluster | None:
    """Return this machine as the cluster file has it; None where there is no file.

    One at the usual place that cannot be read, which no user need know of, is passed over with a sentence.
    """
    path = cluster_path()
    try:
        return read_cluster(path) if path.exists() else None
    except (TrisectError, OSError) as error:
        if os.environ.get(CLUSTER_VARIABLE):
            raise
        say(f"The kept measurement of this machine is passed over: {error}")
        return None


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
    free, measured = free_bytes(torch.device("cpu"), bounded=bounded), _kept_cluster(_warn)
    if measured is not None:
        return replace(measured, device=replace(measured.device, memory=free))
    cores = usable_cores()
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


def calibrated_cluster(device: str = "cpu", say: Callable[[str], None] = lambda sentence: None) -> Cluster:
    """Return this machine as `local_cluster` does; where it was never measured, measure it for some seconds first.

    What was measured is kept for later where the cluster file can be written.

    Args:
        say: is told what was measured, and where it is kept.
    """
    path = cluster_path()
    if device.startswith("cuda"):
        return local_cluster(device)
    cluster = _kept_cluster(say)
    if cluster is not None:
        if cluster.source != QUICK or cluster.devices == usable_cores():
            return local_cluster(device)
        say(f"{path} was measured with {cluster.devices} cores, and there are {usable_cores()} now.")
    from trisect.train.machine.quick import measure_quickly  # imported here because it trains, which imports this

    try:
        measured = measure_quickly()
    except Exception as error:  # a plan by guessed rates is better than none
        said = str(error)[:200] if isinstance(error, TrisectError) else f"{type(error).__name__}: {str(error)[:200]}"
        say(f"This machine was not measured now, since {said}; its rates are guessed.")
        return local_cluster(device)
    if measured.cluster.source == DISTURBED:
        kept = f"not kept, since others took {measured.others:.1f} cores meanwhile"
    else:
        try:
            measured.cluster.write(path)
            kept = f"kept in {path}"
        except OSError as error:
            kept = f"not kept, since {path} cannot be written ({error.strerror})"
    say(f"Measured this machine for {measured.seconds:.1f} s; {kept}; trisect plan --calibrate measures it thoroughly.")
    free = free_bytes(torch.device("cpu"))
    return replace(measured.cluster, device=replace(measured.cluster.device, memory=free))


def _warn(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=4)


def cluster_of(name: str | Path | Cluster | None, device: str = "cpu") -> Cluster:
    """Give a cluster by name, file or value; None: this machine, with what it has of the device."""
    if isinstance(name, Cluster):
        return name
    return local_cluster(device) if name is None else find_cluster(str(name))
