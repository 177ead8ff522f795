"""Which network interface ranks listen on. torch.distributed authenticates nobody, so that others must not reach it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from trisect.errors import ConfigError, unknown

# gloo would otherwise listen on whatever address the host's name has, and NCCL on the first interface that it sees
VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def loopback() -> dict[str, str]:
    """Give the variables for ranks of one host, which no other host can reach; none where the name is not known."""
    names = interfaces()
    own = next((name for name in ("lo", "lo0") if name in names), None)
    return {} if own is None else dict.fromkeys(VARIABLES, own)


def use_interface(name: str | None) -> None:
    """Let this process listen on the interface that the user names; None: on that of the environment.

    Without either, ranks that are known to be all on this host use loopback.

    Raises:
        ConfigError: there is no such interface.
    """
    if name is None:
        if not any(os.environ.get(variable) for variable in VARIABLES) and is_one_host(os.environ):
            os.environ.update(loopback())
        return
    if name not in interfaces():
        raise ConfigError(f"--interface: {unknown('network interface', name, interfaces())}")
    os.environ.update(dict.fromkeys(VARIABLES, name))


def interfaces() -> list[str]:
    """List the network interfaces of this host."""
    return [name for _, name in socket.if_nameindex()]


def is_one_host(environment: Mapping[str, str]) -> bool:
    """Say whether whoever started the ranks says that all of them are on this host."""
    size = environment.get("WORLD_SIZE")
    return bool(size) and environment.get("LOCAL_WORLD_SIZE") == size
