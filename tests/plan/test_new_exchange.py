"""A new exchange is a class and a line in the catalogue: toys of the tests train exactly, and `auto` chooses one.

The toys are in `tests/ranks/toy_exchanges.py`; the library knows nothing of them.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

Case = dict[str, Any]
LSTM = {"hidden": 4, "dropout": 0.3}


def case(of: str, layout: Case, model: str, options: Case, **more: Any) -> Case:
    return {"module": "toy_exchanges", "run": "compared", "of": of, "layout": layout, "model": model} | {
        "options": options,
        **more,
    }


ALONG: list[Case] = [
    case("timeline_cases", {"time": 2, "temporal": "gather"}, "wd-gcn", LSTM, evaluate=True),
    case("timeline_cases", {"time": 2, "blocks": 2, "temporal": "gather"}, "tm-gcn", {"hidden": 4, "window": 3}),
    case("timeline_cases", {"time": 2, "blocks": 2, "temporal": "gather"}, "wd-gcn", LSTM, uneven=True, evaluate=True),
    # chosen among those of the catalogue that fit: a window, which refuses the model, and the toy
    case("timeline_cases", {"time": 2, "temporal": "auto"}, "wd-gcn", LSTM, without=["carry", "redistribute"]),
    case("timeline_cases", {"time": 2, "temporal": "gather"}, "wd-gcn", LSTM, **{"break": "swap"}),
]
ACROSS: list[Case] = [
    case("timeline_cases", {"vertex": 2, "blocks": 2, "spatial": "halves"}, "wd-gcn", LSTM, evaluate=True),
    case("static_cases", {"vertex": 2, "spatial": "halves"}, "gcn", {"hidden": 5, "layers": 3, "dropout": 0.3}),
    case("static_cases", {"vertex": 2, "spatial": "halves"}, "gat", {"hidden": 4, "heads": 2, "layers": 2}),
    case("static_cases", {"vertex": 2, "spatial": "halves"}, "gcn", {"hidden": 5, "layers": 3}, **{"break": "swap"}),
]


@pytest.fixture(scope="module")
def results(ranks: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Case, list[Case]]]:
    """Every case with what its two ranks give; one world does them all."""
    cases = [*ALONG, *ACROSS]
    return list(zip(cases, ranks.run_forks(2, cases, tmp_path_factory.mktemp("ranks")), strict=True))


def test_toys_are_exact(results: list[tuple[Case, list[Case]]]) -> None:
    for given, ranks in results:
        if "break" in given:
            assert max(rank["gradient"] for rank in ranks) > 1e-6, given
            continue
        assert max(rank["gradient"] for rank in ranks) < 1e-10, given
        assert max(rank["loss"] for rank in ranks) < 1e-12, given
        assert ranks[0]["bytes"] == ranks[0]["formula"], given
        assert max(rank.get("outputs", 0.0) for rank in ranks) < 1e-12, given


def test_toys_are_used(results: list[tuple[Case, list[Case]]]) -> None:
    for given, [first, _] in results:
        axis, kind = ("time", "gather") if "time" in given["layout"] else ("vertex", "halo")
        assert any(key.startswith(f"{axis}/{kind}") for key in first["bytes"]), given
        assert (set(first["along"]) if axis == "time" else set(first["across"]) - {"none"}) == (
            {"gather"} if axis == "time" else {"halves"}
        )
