"""The variables of `srun` are those of torchrun in other words."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from trisect.comm.slurm import host_names, slurm_world, tasks_of_hosts
from trisect.errors import LayoutError


def task(rank: int, **more: str) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "6",
        "SLURM_STEP_NODELIST": "gpu[09-10],big",
        "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank % 2),
        "SLURM_NODEID": str(rank // 2),
        **more,
    }


def test_the_world_of_a_task() -> None:
    worlds = [slurm_world(task(rank)) for rank in range(6)]
    assert [world["RANK"] for world in worlds] == list("012345")
    assert [world["LOCAL_RANK"] for world in worlds] == list("010101")
    assert {world["WORLD_SIZE"] for world in worlds} == {"6"}
    assert {world["LOCAL_WORLD_SIZE"] for world in worlds} == {"2"}
    assert {world["MASTER_ADDR"] for world in worlds} == {"gpu09"}
    assert len({world["MASTER_PORT"] for world in worlds}) == 1
    assert worlds[0]["MASTER_PORT"] != slurm_world(task(0, SLURM_STEP_ID="1"))["MASTER_PORT"]


def test_what_is_no_task_of_srun() -> None:
    assert slurm_world({}) == {}
    assert slurm_world({"SLURM_PROCID": "0", "SLURM_NTASKS": "6"}) == {}  # the script of sbatch
    assert slurm_world(task(0, SLURM_STEP_NUM_TASKS="1")) == {}
    assert slurm_world(task(0, RANK="0")) == {}  # torchrun inside a task


def test_node_lists() -> None:
    assert host_names("a[1-2],b") == ["a1", "a2", "b"]
    assert host_names("n[008-011]-ib") == ["n008-ib", "n009-ib", "n010-ib", "n011-ib"]
    assert tasks_of_hosts("4(x2),1") == [4, 4, 1]
    with pytest.raises(LayoutError, match="SLURM_STEP_NODELIST"):
        slurm_world(task(0, SLURM_STEP_NODELIST="", SLURM_JOB_NODELIST=""))


def test_two_tasks_train_together(tmp_path: Path) -> None:
    """As `srun -n 2 trisect train …` on one host would."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "trisect", "train", "deep", "--layout", "vertex=2", "--out", str(tmp_path / "run")]
    settings = ["--set", "train.epochs=2", "--set", "model.layers=2", "--set", "data.vertices=200"]
    processes = []
    for rank in range(2):
        world = task(rank, SLURM_STEP_NUM_TASKS="2", SLURM_STEP_NODELIST="here", SLURM_STEP_TASKS_PER_NODE="2")
        environment = {**os.environ, **world, "SLURM_NODEID": "0", "MASTER_PORT": port}
        processes.append(
            subprocess.Popen([*command, *settings], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        )
    outputs = [process.communicate(timeout=120)[0].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert (tmp_path / "run" / "summary.json").is_file()
