"""JSON that every reader understands."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

import trisect
from trisect.settings.writing import to_json


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, 2.5, "x", None, True]}, '{"a": [1, 2.5, "x", null, true]}'),
        (
            {"a": math.nan, "b": {"c": [math.inf, -math.inf, (1.0, math.nan)]}},
            '{"a": null, "b": {"c": [null, null, [1.0, null]]}}',
        ),
        (np.float64("nan"), "null"),
        ({3: math.nan}, '{"3": null}'),
    ],
)
def test_numbers_that_json_does_not_have_are_null(value: object, text: str) -> None:
    assert to_json(value) == text
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name)) is not Ellipsis


def test_options_of_json_hold() -> None:
    assert to_json({"b": math.nan, "a": np.float32("nan")}, sort_keys=True, default=float) == '{"a": null, "b": null}'
    with pytest.raises(TypeError):
        to_json({"a": object()})


def test_nothing_else_writes_json() -> None:
    """Texts between processes (comm/values.py) keep every number; all others go through `to_json`."""
    package = Path(trisect.__file__).parent
    own = {"settings/writing.py", "comm/values.py", "report/compare.py"}
    writers = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if path.relative_to(package).parts[0] != "bench" and re.search(r"json\.dumps?\(", path.read_text())
    }
    assert writers <= own
