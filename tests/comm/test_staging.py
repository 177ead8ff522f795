"""Rows of a device without collectives of its own."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from trisect.comm.staging import needs_staging, to_device, to_host


@pytest.mark.parametrize(
    ("device", "backends", "staged"),
    [
        ("cpu", "cpu:gloo", False),
        ("cuda", "cpu:gloo,cuda:nccl", False),
        ("cuda", "cpu:gloo,cuda:gloo", True),
        ("mps", "cpu:gloo", True),
        ("xpu", "cpu:gloo", True),
    ],
)
def test_which_devices_go_through_the_host(device: str, backends: str, staged: bool) -> None:
    assert needs_staging(torch.device(device), backends) is staged


def test_staged_rows_are_copies() -> None:
    x = torch.randn(5, 3)
    for copy in (to_host(x), to_device(x, torch.device("cpu"))):
        assert copy.equal(x)
        assert copy.data_ptr() != x.data_ptr()


def test_every_row_goes_to_the_host_and_back(tmp_path: Path, ranks: ModuleType) -> None:
    cases = [
        {"run": "staged", "module": "transport_cases", "transport": transport, "smallest": smallest}
        for transport in ("auto", "network")
        for smallest in (1, 1 << 16)
    ]
    for results in ranks.run_forks(2, cases, tmp_path):
        for result in results:
            assert result == {"right": True, "without": False}
