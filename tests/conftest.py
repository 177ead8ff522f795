"""Fixtures for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real graphs beside the checkout; tests that need it skip where it does not exist."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no folder of real graphs at {SHARED_DATA}")
    return SHARED_DATA
