"""The papers' tables by the planner: bytes, who wins, and that the page is what the numbers make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trisect_bench import _paper_layers, _paper_time
from trisect_bench._paper_figures import ROWS
from trisect_bench._scaling_page import EXACT, NEAR, near, winners
from trisect_bench.papers import FOLDER, NUMBERS, files, rounded, run

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def numbers() -> dict[str, Any]:
    return dict(json.loads((DOCS / FOLDER / NUMBERS).read_text(encoding="utf-8")))


def test_the_page_is_made_of_the_numbers(numbers):
    for name, text in files(numbers).items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, f"{name}: run trisect bench papers --set write=docs"


@pytest.mark.parametrize("case", ["squirrel gcn", "flickr resgcn+", "physics gcnii"])
def test_the_numbers_are_what_the_planner_says(numbers, case):
    row = next(row for row in ROWS if f"{row.graph} {row.model}" == case)
    made = rounded(_paper_layers.predict(row, _paper_layers.cluster(**_paper_layers.CONSTANTS)))
    stored = next(each for each in numbers["pipeline"]["rows"] if f"{each['graph']} {each['model']}" == case)
    for key in ("seconds", "gib"):
        assert made[key] == pytest.approx(stored[key], rel=0.02)
    assert made["winner"] == stored["winner"]


def test_bytes_winners_and_seconds_of_the_table(numbers):
    rows = numbers["pipeline"]["rows"]
    table = rows[: len(ROWS)]
    assert near(rows, "gib", EXACT) == (3 * len(rows), 3 * len(rows))
    assert winners(table) >= 14
    close, count = near(table, "seconds", NEAR)
    assert close > count / 2
    # the comparison can fail
    wrong = [{**row, "gib": [1.05 * value for value in row["gib"]]} for row in rows]
    assert near(wrong, "gib", EXACT)[0] == 0


def test_transfers_by_their_formula():
    assert [round(_paper_time.ratio(life), 1) for life in (10, 20, 40)] == [2.8, 3.6, 4.2]
    layout = _paper_time.time_cut(1)
    whole, less, compact = (_paper_time.transfer_seconds(layout, kind) for kind in ("whole", "difference", "compact"))
    assert whole / less == pytest.approx(_paper_time.ratio(20), rel=0.02)
    assert compact < less < whole


@pytest.mark.slow
def test_all_rows_again(numbers):
    made = run(only=("pipeline", "timeline", "internet"))
    for key in ("seconds", "gib"):
        for now, before in zip(made["pipeline"]["rows"], numbers["pipeline"]["rows"], strict=True):
            assert now[key] == pytest.approx(before[key], rel=0.02)
    for name in ("scaling", "alternatives"):
        for now, before in zip(made["timeline"][name], numbers["timeline"][name], strict=True):
            assert now["seconds"] == pytest.approx(before["seconds"], rel=0.02)
    assert [row["layout"] for row in made["internet"]] == [row["layout"] for row in numbers["internet"]]


@pytest.mark.slow
def test_the_constants_are_found_again():
    assert run(fit=True)["constants"] == pytest.approx(_paper_layers.CONSTANTS, rel=1e-3)
