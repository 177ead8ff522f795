"""`layout.history`: a name, or parts; mistakes named with the nearest known word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trisect.config import apply_overrides, parse_config, parse_layout
from trisect.errors import ConfigError
from trisect.layout.history import PRESETS, History
from trisect.train.from_config import resolve

PLAIN: dict[str, Any] = {
    "data": {"generate": "community"},
    "model": {"name": "gcnii"},
    "task": "node-classification",
}


def config(history: Any, chunks: int = 4) -> Any:
    return parse_config({**PLAIN, "layout": {"chunks": chunks, "history": history}})


def test_a_name_and_parts_are_read() -> None:
    assert config("gnnpipe").layout.history == PRESETS["gnnpipe"] != History()
    assert config({"period": 3}).layout.history == History(period=3)
    assert parse_layout("layer=2,chunks=8,history=exact").history == "exact"
    changed = parse_config(apply_overrides({**PLAIN, "layout": {"history": "gnnpipe"}}, ["layout.history.scale=1.0"]))
    assert changed.layout.history == replace(PRESETS["gnnpipe"], scale=1.0)


def test_the_resolved_recipe_has_every_part() -> None:
    found = resolve(config({"preset": "gnnpipe", "scale": 1.0}))
    plain = found.resolved()
    assert plain["layout"]["history"]["period"] == 23
    assert plain["layout"]["history"]["scale"] == 1.0
    assert plain["layout"]["history"].keys() >= {"start", "shuffle", "refresh", "guard", "margin"}
    assert parse_config(plain) == found
    assert resolve(found) == found
    # where nothing can be stale, the name stands as it was
    assert resolve(config("default", chunks=1)).resolved()["layout"]["history"] == "default"
    assert resolve(config("exact")).resolved()["layout"]["history"] == "exact"


@pytest.mark.parametrize(
    ("history", "said"),
    [
        ({"perod": 3}, "layout.history.perod is not a setting; did you mean layout.history.period?"),
        ("gnnpip", "did you mean 'gnnpipe'"),
        ({"start": "zeros"}, "did you mean 'zero'"),
        ({"period": 0}, "layout.history.period is 0, but must be at least 1"),
        ({"scale": 0.0}, "layout.history.scale"),
        ({"preset": "exact", "period": 2}, "layout.history is exact and has a period"),
        (3, "layout.history is 3, but must be a mapping"),
    ],
)
def test_mistakes_are_named(history: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(history)
    assert said in str(caught.value)
