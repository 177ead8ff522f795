"""The world that SLURM's `srun` starts: its variables become those that torchrun sets."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trisect.errors import LayoutError

_FIRST_PORT, _PORTS = 20_000, 20_000


def slurm_world(environment: Mapping[str, str]) -> dict[str, str]:
    """Give RANK, WORLD_SIZE and the others for a task of `srun`; nothing elsewhere, or where torchrun has set them.

    A script that `sbatch` runs is no task of `srun`, and one task alone starts its own ranks.
    """
    size = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if "RANK" in environment or "SLURM_PROCID" not in environment or int(size) < 2:
        return {}
    hosts = host_names(environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_JOB_NODELIST", "")))
    tasks = tasks_of_hosts(environment.get("SLURM_STEP_TASKS_PER_NODE", environment.get("SLURM_TASKS_PER_NODE", size)))
    host = int(environment.get("SLURM_NODEID", "0"))
    if host >= len(tasks) or not hosts:
        raise LayoutError(
            "srun has started this process, but its variables do not say on which hosts (SLURM_STEP_NODELIST,"
            " SLURM_STEP_TASKS_PER_NODE); start the ranks with torchrun."
        )
    # steps of one job on the same hosts must not meet each other
    number = int(environment.get("SLURM_JOB_ID", "0")) * 97 + int(environment.get("SLURM_STEP_ID", "0"))
    return {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": size,
        "LOCAL_RANK": environment.get("SLURM_LOCALID", "0"),
        "LOCAL_WORLD_SIZE": str(tasks[host]),
        "MASTER_ADDR": environment.get("MASTER_ADDR", "127.0.0.1" if len(tasks) == 1 else hosts[0]),
        "MASTER_PORT": environment.get("MASTER_PORT", str(_FIRST_PORT + number % _PORTS)),
    }


def host_names(text: str) -> list[str]:
    """List the hosts of a node list.

    >>> host_names("gpu[01-03,7],login")
    ['gpu01', 'gpu02', 'gpu03', 'gpu7', 'login']
    """
    names = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\])?[^,\[]*", text):
        ranges = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
        if ranges is None:
            names.append(part)
            continue
        for piece in ranges[2].split(","):
            low, _, high = piece.partition("-")
            numbers = range(int(low), int(high or low) + 1)
            names += [f"{ranges[1]}{number:0{len(low)}d}{ranges[3]}" for number in numbers]
    return names


def tasks_of_hosts(text: str) -> list[int]:
    """Count the tasks of each host.

    >>> tasks_of_hosts("4(x2),1")
    [4, 4, 1]
    """
    counts = []
    for count, repeated in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(repeated or 1)
    return counts
