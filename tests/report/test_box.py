"""The box: its pieces fill it, and each is its rank's."""

from __future__ import annotations

import pytest

from trisect.report.box import box_data, box_of, rank_table, share_of
from trisect.report.run_view import RunView

SHAPES = [
    {},
    {"vertex": 2, "layer": 2},
    {"time": 2, "steps": 12, "blocks": 3},
    {"time": 2, "layer": 2, "vertex": 3, "steps": 9, "blocks": 2},
    {"vertex": 64},
    {"steps": 7, "blocks": 2},
]


@pytest.mark.parametrize("shape", SHAPES)
def test_pieces_fill_the_box(make_run, shape: dict[str, int]):
    run = RunView.of(make_run(**shape))
    box = box_of(run)
    data = box_data(run, box)
    assert box.exact
    volume = dict.fromkeys(range(run.axes.world), 0.0)
    for rank, x0, x1, y0, y1, z0, z1 in data["pieces"]:
        assert 0 <= x0 < x1 <= 1
        assert 0 <= y0 < y1 <= 1
        assert 0 <= z0 < z1 <= 1
        volume[rank] += (x1 - x0) * (y1 - y0) * (z1 - z0)
    assert sum(volume.values()) == pytest.approx(1, abs=1e-3)
    for rank, own in volume.items():
        assert share_of(run, box, rank) == pytest.approx(own, abs=1e-3)
    assert len(data["pieces"]) == run.axes.world * box.blocks
    assert len(data["ranks"]) == run.axes.world


def test_words(make_run):
    run = RunView.of(make_run(time=2, vertex=2, steps=12, blocks=3, layers=2))
    box = box_of(run)
    data = box_data(run, box)
    assert data["axes"] == ["2,010 vertices in 2 parts", "2 layers", "12 steps in 3 blocks of 2 runs"]
    assert data["ranks"][3] == "Rank 3 holds 1,010 vertices, layers 0–1, steps 2–3, 6–7, 10–11: 25% of the box."
    assert "2–3, 6–7, 10–11" in rank_table(run, box)


def test_very_many_pieces_are_drawn_as_fewer(make_run):
    run = RunView.of(make_run(time=2, vertex=32, steps=60, blocks=30))
    assert len(box_data(run, box_of(run))["pieces"]) == 64


@pytest.mark.parametrize(
    "forged",
    [
        {"rows": [1]},
        {"rows": "x"},
        {"stages": [[99, 99]]},
        {"runs": [[[0, 1]]]},
        {"runs": [[[0, 0], [0, 0]]]},
        {"layers": []},
    ],
)
def test_a_plan_without_sizes_gives_equal_shares(make_run, forge, forged: dict[str, object]):
    directory = make_run(time=2, vertex=2, steps=8, blocks=2)
    forge(directory, "plan.json", lambda plan: {**plan, **forged})
    run = RunView.of(directory)
    box = box_of(run)
    assert not box.exact
    data = box_data(run, box)
    assert data["axes"] == ["2 parts", "1 stage", "2 runs"]
    assert len(data["pieces"]) == 4


def test_a_world_that_is_too_large_to_be_true(make_run, forge):
    directory = make_run()
    forge(directory, "summary.json", lambda s: {**s, "layout": {"time": 10**9, "layer": 10**9, "vertex": 10**9}})
    assert RunView.of(directory).axes.world == 1
