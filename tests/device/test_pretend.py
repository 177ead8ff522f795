"""The pretend device itself: what it counts, what it refuses, and that nothing of it is left behind."""

from __future__ import annotations

import warnings
from types import ModuleType

import pytest
import torch


def test_copies_are_counted(pretend: ModuleType) -> None:
    with pretend.counted() as transfers:
        x = torch.ones(3, 2).to("sim")
        x.copy_(torch.zeros(3, 2))
        torch.empty(3, 2).copy_(x)
        assert float(x.sum().cpu()) == 0.0
        assert x.sum().item() == 0.0
        assert x[torch.tensor([0, 2])].shape == (2, 2)
    assert transfers.to_device == [(3, 2), (3, 2)]
    assert transfers.device_bytes == 48
    assert transfers.to_host == [(3, 2), ()]
    assert transfers.host_bytes == 28
    assert transfers.reads == 1
    assert transfers.lists == 1


def test_work_on_the_device_is_no_copy(pretend: ModuleType) -> None:
    x = torch.ones(3, 2).to("sim")
    with pretend.counted() as transfers:
        y = torch.cat([x, x.new_zeros(2, 2)]).index_select(0, torch.arange(4, device="sim"))
        y.to("sim").to(torch.float64).clone().sum()
    assert transfers == pretend.Transfers()


def test_tensors_of_both_sides_cannot_be_mixed(pretend: ModuleType) -> None:
    x = torch.ones(3, 2).to("sim")
    with pytest.raises(RuntimeError, match="of sim and of the CPU"):
        x + torch.ones(3, 2)
    with pytest.raises(RuntimeError, match="of sim and of the CPU"):
        x.index_select(0, torch.tensor([0]))


def test_nothing_is_left_in_the_process(pretend: ModuleType) -> None:
    makers = (torch.arange, torch.eye, torch.tensor, torch.sparse_csr_tensor)
    assert torch.get_device_module("sim").device_count() == 1
    pretend.uninstall()
    assert all(a is not b for a, b in zip(makers, (torch.arange, torch.eye, torch.tensor), strict=False))
    assert torch.get_device_module("sim").device_count() == 0
    assert not torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator(check_available=True) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.manual_seed(1)
        with torch.random.fork_rng():
            first = torch.rand(2)
        torch.testing.assert_close(torch.rand(2), first, rtol=0, atol=0)
    pretend.install()
    with torch.random.fork_rng():
        assert torch.get_device_module("sim").device_count() == 1
