"""Where ranks listen: on loopback or the interface that was named, and on no other."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import psutil
import pytest

from trisect.comm import world
from trisect.comm.interface import VARIABLES, is_one_host, loopback, use_interface
from trisect.errors import ConfigError
from trisect.train.processes.launch import launch

# what a rank that our launcher started listens on, once it is connected
_RANK = """
import json, os, pathlib, psutil, torch
from trisect.comm.mesh import connect, disconnect
from trisect.layout import Layout
mesh = connect(Layout(vertex=2, transport="network"), torch.device("cpu"), 60)
value = torch.ones(1)
torch.distributed.all_reduce(value)
addresses = {c.laddr.ip for c in psutil.Process().net_connections() if c.status == "LISTEN"}
pathlib.Path(FOLDER, os.environ["RANK"] + ".json").write_text(json.dumps([sorted(addresses), float(value)]))
disconnect()
"""


def test_ranks_of_one_host_listen_on_loopback_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")  # as it may be set for runs on several hosts
    launch([sys.executable, "-c", _RANK.replace("FOLDER", repr(str(tmp_path)))], 2, threads=1)
    for rank in range(2):
        addresses, value = json.loads((tmp_path / f"{rank}.json").read_text())
        assert value == 2.0
        assert addresses
        assert set(addresses) <= {"127.0.0.1", "::1"}


def test_a_meeting_listens_on_its_address_alone(monkeypatch: pytest.MonkeyPatch):
    """Rank 0 without a launcher of ours, as SLURM starts it. (torch itself listens on all addresses.)"""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    store = world.meet(world.World(0, 2, 0, 2))
    store.set("a", "b")
    here = [c.laddr for c in psutil.Process().net_connections() if c.status == "LISTEN"]
    assert [address.ip for address in here if address.port == port] == ["127.0.0.1"]


def test_an_interface_that_is_named_or_not(monkeypatch: pytest.MonkeyPatch):
    for variable in (*VARIABLES, "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(variable, "")
    with pytest.raises(ConfigError, match="--interface: unknown network interface 'eht7'"):
        use_interface("eht7")
    use_interface(None)  # ranks may be on several hosts: as the environment has it
    assert [os.environ[variable] for variable in VARIABLES] == ["", ""]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    use_interface(None)
    assert {variable: os.environ[variable] for variable in VARIABLES} == loopback()
    assert not is_one_host({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"})
    assert not is_one_host({"WORLD_SIZE": "4"})
