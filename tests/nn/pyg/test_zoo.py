"""Each convolution of torch_geometric.nn in a model, as it stands: gradients and statistics of plain PyG."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torch_geometric")
sys.path.insert(0, str(Path(__file__).parent))

import zoo

import trisect
from trisect.errors import ConfigError

LAYOUTS = ("", "vertex=2", "vertex=3")
Found = dict[str, dict[str, torch.Tensor] | str]


@pytest.fixture(scope="module")
def found() -> dict[str, Found]:
    """What a step of each model leaves; ranks are started once for all of them."""
    return {
        layout: trisect.launch(zoo.all_trained, layout, layout, zoo.PASSING) if layout else {} for layout in LAYOUTS
    }


def furthest(one: Any, other: Any) -> float:
    assert one.keys() == other.keys()
    return max(float((value - other[name]).abs().max()) for name, value in one.items())


@pytest.mark.parametrize("name", zoo.PASSING)
def test_gradients_are_those_of_plain_pyg(name: str, found: dict[str, Found]) -> None:
    want = zoo.wanted(name)
    assert max(float(value.abs().max()) for value in want.values()) > 1e-3
    for layout in LAYOUTS:
        got = found[layout][name] if layout else zoo.trained("", name)
        assert not isinstance(got, str), got
        assert furthest(want, got) < 1e-10, layout


def test_other_labels_are_seen() -> None:
    """The comparison fails where a rank has other labels."""
    got = trisect.launch(zoo.trained, "vertex=2", "vertex=2", "GCNConv", True)
    assert furthest(zoo.wanted("GCNConv"), got) > 1e-3


@pytest.mark.parametrize("name", list(zoo.REFUSED))
def test_what_a_cut_would_change_is_refused(name: str) -> None:
    """In one sentence that names the module, before the first step."""
    with pytest.raises(ConfigError, match=rf"^Plain\S*{zoo.REFUSED[name][0]}.* cannot be cut by vertex: .*\.$"):
        zoo.trained("", name)
