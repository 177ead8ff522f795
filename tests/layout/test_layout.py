"""`Layout`: one value for the configuration, the text of --layout, `fit` and ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trisect.config import parse_config
from trisect.errors import LayoutError
from trisect.layout import History, Layout, parse_layout

SHARES = st.floats(0, 0.99, allow_nan=False)
RECIPES = st.builds(
    History, start=st.sampled_from(["exact", "zero"]), period=st.integers(1, 30), blend=SHARES, guard=st.integers(0, 9)
)
LAYOUTS = st.builds(
    Layout,
    time=st.integers(1, 4),
    layer=st.integers(1, 4),
    vertex=st.integers(1, 4),
    chunks=st.integers(1, 32),
    blocks=st.one_of(st.just("auto"), st.integers(1, 9)),
    temporal=st.sampled_from(["auto", "carry", "halo"]),
    spatial=st.sampled_from(["auto", "halo", "redistribute"]),
    recompute=st.booleans(),
    pack=st.sampled_from(["auto", True, False]),
    history=st.one_of(st.sampled_from(["exact", "default", "gnnpipe"]), RECIPES),
    wire=st.sampled_from(["float32", "int8"]),
    transport=st.sampled_from(["auto", "network"]),
    partition=st.sampled_from(["metis", "hypergraph", "stream"]),
)
SECTIONS: dict[str, Any] = {"data": {"generate": "community"}, "model": {"name": "gcn"}, "task": "node-classification"}


@given(LAYOUTS)
def test_the_text_and_the_section_read_back_to_an_equal_layout(layout: Layout) -> None:
    assert parse_layout(str(layout)) == layout
    assert parse_config({**SECTIONS, "layout": layout.plain()}).layout == layout
    other = replace(layout, vertex=layout.vertex + 1)
    assert parse_layout(str(other)) != layout


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (Layout(), "vertex=1"),
        (Layout(auto=True), "auto"),
        (Layout(layer=2, vertex=2), "layer=2,vertex=2"),
        (Layout(time=2, blocks="auto", recompute=True), "time=2,blocks=auto,recompute=true"),
        (Layout(vertex=2, pack=True), "vertex=2,pack=true"),
        (Layout(chunks=8, history="exact"), "chunks=8,history=exact"),
        (Layout(chunks=8, history=History(period=3)), "chunks=8,history.period=3"),
    ],
)
def test_texts(layout: Layout, text: str) -> None:
    assert str(layout) == text
    assert parse_layout(text) == layout


def test_parts_of_the_history_stand_beside_its_name() -> None:
    paper = parse_layout("chunks=8,history.scale=1.0,history=gnnpipe").recipe
    assert paper is not None
    assert (paper.period, paper.scale) == (23, 1.0)
    assert parse_layout("chunks=8,history={period: 3}") == parse_layout("chunks=8,history.period=3")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"vertx": 2}, "layout.vertx is not a setting; did you mean layout.vertex?"),
        ({"vertex": 0}, "layout.vertex is 0, but must be at least 1."),
        ({"vertex": True}, "layout.vertex is True, but must be a whole number."),
        ({"blocks": 0}, "layout.blocks is 0, but must be a whole number of at least 1, or auto."),
        ({"recompute": "yes"}, "layout.recompute is 'yes', but must be true or false."),
        ({"spatial": "hallo"}, "layout.spatial is 'hallo', but must be one of auto, halo, redistribute; did you mean"),
    ],
)
def test_mistakes_are_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LayoutError) as caught:
        Layout(**settings)
    assert str(caught.value).startswith(sentence)
    with pytest.raises(LayoutError):
        replace(Layout(), **settings) if "vertx" not in settings else Layout(**settings)


def test_the_number_of_blocks_is_known_once_it_is_chosen() -> None:
    assert Layout(blocks=3).block_count == 3
    with pytest.raises(LayoutError, match="blocks is auto"):
        _ = Layout(blocks="auto").block_count
