"""State as JSON reads back to equal values."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from trisect.errors import ConfigError
from trisect.settings.plain_state import from_plain, to_plain
from trisect.settings.writing import to_json

VALUES: list[Any] = [
    None,
    3,
    0.1,
    "text",
    [1, (2, 3)],
    {"a": {4: [math.inf, -math.inf]}, "is": "tuple", "of": [1]},
    (),
    {},
    True,
]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_reads_back(value: Any) -> None:
    found = from_plain(json.loads(to_json(to_plain(value, "it"))))
    assert found == value
    assert type(found) is type(value)


def test_what_is_no_number_reads_back() -> None:
    assert math.isnan(from_plain(json.loads(to_json(to_plain(math.nan, "it")))))


@pytest.mark.parametrize("value", [torch.zeros(1), {"a": [object()]}, (lambda: 3,)])
def test_what_is_not_plain_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"train\.scheduler has a .* in its state, which a checkpoint cannot hold"):
        to_plain(value, "train.scheduler")


@pytest.mark.parametrize("plain", [{"is": "code", "of": "x"}, {"of": 3}, {"is": "mapping", "of": [[1]]}, {"a": 1}])
def test_what_was_not_written_so_is_refused(plain: Any) -> None:
    with pytest.raises(ValueError, match=r"no plain state"):
        from_plain(plain)
