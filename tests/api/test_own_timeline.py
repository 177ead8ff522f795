"""A module of the user's own on a timeline: any cut equals plain torch over dense matrices."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

import own_timeline

import trisect
from trisect.errors import ConfigError
from trisect.nn.temporal.recurrent import recurrent


def difference(one: tuple[float, dict[str, Tensor]], other: tuple[float, dict[str, Tensor]]) -> float:
    """The largest difference, of the loss or relative to a parameter's largest gradient."""
    assert one[1].keys() == other[1].keys()
    each = [float((value - other[1][name]).abs().max() / value.abs().max()) for name, value in one[1].items()]
    return max(abs(one[0] - other[0]), *each)


@pytest.mark.parametrize("cell", list(own_timeline.CELLS))
def test_one_process_is_plain_torch(cell: str) -> None:
    wanted = own_timeline.plain(cell)
    assert difference(wanted, own_timeline.gradients("", cell)) < 1e-10
    assert difference(wanted, own_timeline.gradients("blocks=4", cell)) < 1e-10


@pytest.mark.parametrize(
    ("layout", "cell"),
    [
        ("vertex=2", "lstm"),
        ("time=2,temporal=carry", "two"),
        ("time=2,temporal=redistribute,blocks=2", "gru"),
        ("time=2,vertex=2,blocks=2,recompute=true", "lstm"),
    ],
)
def test_cuts_are_plain_torch(layout: str, cell: str) -> None:
    found = trisect.launch(own_timeline.gradients, layout, layout, cell)
    assert difference(own_timeline.plain(cell), (found[0], found[1])) < 1e-10


def test_a_spoilt_rank_is_seen() -> None:
    found = trisect.launch(own_timeline.gradients, "time=2", "time=2", "lstm", True)
    assert difference(own_timeline.plain("lstm"), (found[0], found[1])) > 1e-6


@pytest.mark.parametrize(
    ("module", "word"),
    [
        (nn.LSTM(3, 4, batch_first=True), "batch_first"),
        (nn.GRU(3, 4, bidirectional=True), "bidirectional"),
        (nn.LSTM(3, 4, num_layers=2, dropout=0.5), "dropout"),
        (nn.LSTM(3, 4, proj_size=2), "proj_size"),
        (nn.Linear(3, 4), "torch.nn.LSTM"),
    ],
)
def test_modules_that_cannot_be_cut_are_refused(module: nn.Module, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        recurrent(module)
