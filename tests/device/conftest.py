"""The pretend device as a fixture."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest


def _load() -> ModuleType:
    """tests/device/pretend.py, once a process; the folder is no package."""
    if "pretend" not in sys.modules:
        spec = importlib.util.spec_from_file_location("pretend", Path(__file__).with_name("pretend.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["pretend"] = module
        spec.loader.exec_module(module)
    return sys.modules["pretend"]


@pytest.fixture(scope="session")
def available() -> None:
    """Skips where torch does not let a backend be written in Python."""
    if not _load().AVAILABLE:
        pytest.skip("this torch has no hook for a backend in Python")


@pytest.fixture
def pretend(available: None) -> Iterator[ModuleType]:
    """The module, with its device in this process for the length of a test."""
    module = _load()
    module.install()
    try:
        yield module
    finally:
        module.uninstall()
