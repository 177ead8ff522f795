"""Fixtures for the runtime."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def ranks() -> ModuleType:
    """tests/ranks/launch.py, which starts worlds of ranks; the folder is no package."""
    spec = importlib.util.spec_from_file_location("launch", Path(__file__).parents[1] / "ranks" / "launch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
