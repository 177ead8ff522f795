from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from trisect.errors import CheckpointError, RunError
from trisect.train.outputs.saved_rows import RowsReader, RowsWriter
from trisect.train.outputs.table import drafted, rows_folder, rows_folder_beside


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


def test_two_processes_do_not_predict_to_the_same_file(tmp_path: Path) -> None:
    target = tmp_path / "p.npz"
    rows_folder(target).mkdir()
    (rows_folder(target) / "0-0").mkdir()  # left by a process that was killed
    with rows_folder_beside(target) as folder:
        assert [path.name for path in folder.iterdir()] == [".lock"]
        (folder / "mine").touch()
        with pytest.raises(CheckpointError, match="Another process is writing"), rows_folder_beside(target):
            pass
        assert (folder / "mine").exists()
    assert not folder.exists()


def test_links_in_the_way_of_predictions_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "file").write_text("kept")
    target = tmp_path / "p.npz"
    rows_folder(target).symlink_to(tmp_path / "others")
    with pytest.raises(CheckpointError, match="is no directory; remove it"), rows_folder_beside(target):
        pass
    (tmp_path / ".p.npz.draft").symlink_to(tmp_path / "others" / "file")
    with drafted(target) as draft:
        draft.write_text("new")
    assert target.read_text() == "new"
    assert (tmp_path / "others" / "file").read_text() == "kept"
