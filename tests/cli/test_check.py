"""`trisect check` counts what the layout saves."""

from __future__ import annotations

import re

import pytest


@pytest.fixture
def needed(trisect, small_timeline):
    def estimate(*words: str) -> int:
        shown = trisect("check", small_timeline, "--set", "data.vertices=20000", "--set", "model.hidden=64", *words)
        assert shown.code == 0, shown.err
        return int(re.search(r"memory: about ([\d,]+) MiB", shown.out).group(1).replace(",", ""))

    return estimate


def test_blocks_save_memory(needed):
    whole = needed()
    assert whole == needed("--layout", "blocks=1") > 0
    assert needed("--layout", "blocks=3") < 0.75 * whole
    assert needed("--layout", "time=2,blocks=3") == needed("--layout", "blocks=3")
