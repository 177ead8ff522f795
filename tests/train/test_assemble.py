"""How runs along time are balanced: what a vertex costs against an event."""

from __future__ import annotations

from typing import Any

import pytest

import trisect
from trisect.graph.timeline.timeline import Timeline
from trisect.nn.models.registry import build
from trisect.nn.temporal.dynamic import DynamicModel
from trisect.train import ranks
from trisect.train.assemble import work_of_vertex


def dynamic(name: str, hidden: int) -> DynamicModel:
    model = build(name, 2, 5, layers=2, hidden=hidden)
    assert isinstance(model, DynamicModel)
    return model


def test_a_recurrent_part_makes_vertices_dear():
    wide, narrow = (work_of_vertex(dynamic("cd-gcn", hidden), aggregated=True) for hidden in (32, 8))
    assert wide > 2 * narrow > 2 * work_of_vertex(dynamic("tm-gcn", 8), aggregated=True)


def test_weights_that_evolve_are_made_once_a_step():
    model = dynamic("evolvegcn-o", 8)
    assert model.head is not None
    products = 2 * 8 + 8 * 8 + sum(parameter.numel() for parameter in model.head.parameters())
    assert work_of_vertex(model, aggregated=True) == products / (2 * 8)
    assert work_of_vertex(model, aggregated=False) == products / (2 * (2 + 8))


@pytest.mark.parametrize(
    ("layout", "method"),
    [(f"vertex=2,partition={method}", method) for method in ("hypergraph", "stream")] + [("vertex=2", "metis")],
)
def test_the_layout_says_what_cuts_the_vertices(
    timeline: Timeline, layout: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CutError(Exception):
        pass

    def cut_timeline(*values: Any, **named: Any) -> None:
        raise CutError(named["method"])

    monkeypatch.setattr(ranks, "cut_timeline", cut_timeline)
    with pytest.raises(CutError, match=f"^{method}$"):
        trisect.fit("cd-gcn", timeline, "link-prediction", layout=layout, epochs=1)
