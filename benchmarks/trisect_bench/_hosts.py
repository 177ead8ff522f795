"""Several hosts on one machine: a network namespace each, joined by a bridge, every port with the same rate.

Needs root and iproute2. Traffic stays between these namespaces, and all of it is taken down again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


class NoHostsError(Exception):
    """This machine cannot play several hosts; the message says why."""


@dataclass(frozen=True)
class Host:
    """One of them: its namespace, its network interface and its address."""

    namespace: str
    interface: str
    address: str

    def command(self, words: Sequence[str]) -> list[str]:
        """The same command, inside this host."""
        return ["ip", "netns", "exec", self.namespace, *words]


@contextmanager
def several_hosts(count: int, mbit: int = 1000) -> Iterator[list[Host]]:
    """`count` hosts whose ports carry `mbit` Mbit/s each way, or (0) what the machine can.

    Raises:
        NoHostsError: where they cannot be made.
    """
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        raise NoHostsError("network namespaces need root; run the measurement as root.")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise NoHostsError(f"the command {tool} is missing; install iproute2.")
    mark = f"trisect-{os.getpid()}"
    switch = f"{mark}-switch"
    hosts = [Host(f"{mark}-{k}", f"v{k}", f"10.77.0.{k + 1}") for k in range(count)]
    # a token bucket that holds what the kernel hands out between two ticks
    limit = f"tbf rate {mbit}mbit burst {max(32, mbit // 4)}kb latency 50ms".split()
    try:
        for name in (switch, *(host.namespace for host in hosts)):
            _run("ip", "netns", "add", name)
        _run("ip", "-n", switch, "link", "add", "bridge0", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge0", "up")
        for k, host in enumerate(hosts):
            pair = ("link", "add", host.interface, "netns", host.namespace, "type", "veth")
            _run("ip", *pair, "peer", "name", f"p{k}", "netns", switch)
            _run("ip", "-n", switch, "link", "set", f"p{k}", "master", "bridge0", "up")
            _run("ip", "-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", host.interface)
            _run("ip", "-n", host.namespace, "link", "set", host.interface, "up")
            _run("ip", "-n", host.namespace, "link", "set", "lo", "up")
            if mbit:
                _run("tc", "-n", host.namespace, "qdisc", "add", "dev", host.interface, "root", *limit)
                _run("tc", "-n", switch, "qdisc", "add", "dev", f"p{k}", "root", *limit)
        yield hosts
    finally:
        for name in (switch, *(host.namespace for host in hosts)):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise NoHostsError(f"`{' '.join(command)}` failed ({said[0] if said else done.returncode}).")
