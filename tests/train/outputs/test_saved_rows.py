from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from trisect.errors import RunError
from trisect.train.outputs.saved_rows import RowsReader, RowsWriter


def test_rows_of_any_cut_join_in_the_users_order(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    expected = torch.randn(5, 23, 3, generator=generator)
    order = torch.randperm(23, generator=generator)
    for rank, rows in enumerate((order[:7], order[7:7], order[7:])):
        writer = RowsWriter(tmp_path, rank)
        for steps in (slice(0, 2), slice(2, 5)):
            writer.add(steps.start, rows, {"a": expected[steps][:, rows], "b": expected[steps][:, rows, 0].long()})
    joined = RowsReader(tmp_path, 23, range(5))
    assert joined.names == ["a", "b"]
    found = {(step, start): joined.block("a", step, start, stop) for step, start, stop in joined.blocks(10)}
    assert sorted(found) == [(step, start) for step in range(5) for start in (0, 10, 20)]
    for (step, start), block in found.items():
        assert np.array_equal(block, expected[step, start : start + 10].numpy())
    assert not np.array_equal(found[0, 0], expected[1, :10].numpy())
    assert joined.block("b", 3, 4, 6).dtype == np.int64


def test_rows_that_nobody_computed_are_noticed(tmp_path: Path) -> None:
    RowsWriter(tmp_path).add(0, torch.tensor([0, 2]), {"a": torch.zeros(1, 2)})
    with pytest.raises(RunError, match="1 rows of a at step 0"):
        RowsReader(tmp_path, 3, range(1)).block("a", 0, 0, 3)
