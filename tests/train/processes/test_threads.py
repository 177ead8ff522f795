"""A limit of threads lasts as long as its context."""

from __future__ import annotations

import pytest
import torch

from trisect.train.processes.threads import limited_threads


def test_threads_are_as_many_as_before_afterwards() -> None:
    before = torch.get_num_threads()
    with limited_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(ZeroDivisionError), limited_threads(before + 1):
        _ = 1 / 0
    assert torch.get_num_threads() == before
    with limited_threads(None):
        assert torch.get_num_threads() == before
