"""Ranks that hold the same parameters are compared, bit for bit."""

from __future__ import annotations

import pytest
import torch

from trisect.errors import RunError
from trisect.train.run.replicas import replica_digest, require_equal_replicas


def test_a_bit_that_differs_is_noticed():
    first = {"model.w": torch.ones(3), "program.history": torch.zeros(2)}
    same = {"model.w": torch.ones(3), "program.history": torch.ones(2)}
    stage = {"model.v": torch.zeros(3)}
    require_equal_replicas([replica_digest(state) for state in (first, stage, same)], 4)
    other = {"model.w": torch.tensor([1.0, 1.0, 1.0 + 2**-23])}
    with pytest.raises(RunError, match="rank 2 holds other parameters than rank 0 after epoch 4"):
        require_equal_replicas([replica_digest(state) for state in (first, stage, other)], 4)
