from __future__ import annotations

import pytest
import torch

from trisect.errors import TrisectError
from trisect.graph.timeline.window import Form, Window


@pytest.mark.parametrize("native", [True, False])
def test_counts_of_what_entered_and_has_not_left(native: bool) -> None:
    window = Window(3, 3, 2, native=native)
    none = torch.tensor([], dtype=torch.int64)
    window.slide(torch.tensor([1, 1, 6]), none)  # (0, 1) twice, (1, 2)
    assert window.matrix(Form()).dense().tolist() == [[0, 2, 0], [0, 0, 1], [0, 0, 0]]
    found = window.slide(torch.tensor([8]), torch.tensor([1, 6]), Form("row"))
    assert found is not None
    assert found.dense().tolist() == [[0, 1, 0], [0, 0, 0], [1, 0, 0]]
    window.clear()
    assert window.matrix(Form()).entries == 0


@pytest.mark.parametrize("native", [True, False])
def test_an_edge_cannot_leave_that_is_not_there(native: bool) -> None:
    window = Window(3, 3, 2, native=native)
    window.slide(torch.tensor([1, 1, 6]), torch.tensor([], dtype=torch.int64))
    with pytest.raises(TrisectError, match="does not hold"):
        window.slide(torch.tensor([], dtype=torch.int64), torch.tensor([2]))
    assert window.matrix(Form()).entries == 0
