"""The device that a run is to use, and whether it is there."""

from __future__ import annotations

import torch

from trisect.errors import ConfigError


def check_device(name: str) -> torch.device:
    """Give the device of that name, or raise a ConfigError where it does not exist."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"train.device is {name!r}, which is no device; use cpu or cuda:0.") from None
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            reason = "" if torch.version.cuda is not None else ", and torch is built without CUDA"
            raise ConfigError(f"train.device is {name!r}, and this machine has {count} CUDA devices{reason}; use cpu.")
    elif device.type != "cpu" and not _holds_tensors(device):
        raise ConfigError(f"train.device is {name!r}, on which torch cannot make a tensor here; use cpu or cuda.")
    return device


def device_of_rank(name: str, local_rank: int) -> torch.device:
    """Give the device of one of the ranks of a host: on CUDA each has its own, other devices are shared."""
    device = check_device(name)
    if device.type != "cuda":
        return device
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise ConfigError(
            f"train.device is {name!r}, and this host has {count} CUDA devices for {local_rank + 1} ranks or more;"
            " start one rank for each device."
        )
    return torch.device("cuda", local_rank)


def _holds_tensors(device: torch.device) -> bool:
    """Whether a number gets there and back, which it does not on `meta` or without the backend."""
    try:
        return torch.ones((), device=device).item() == 1.0
    except (RuntimeError, NotImplementedError, AssertionError, ImportError):
        return False
