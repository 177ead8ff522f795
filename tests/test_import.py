from __future__ import annotations

import subprocess
import sys

import pytest

import trisect

HEAVY = ("torch", "torch_geometric", "pandas", "matplotlib", "pyarrow", "sklearn", "scipy")


def loaded_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sorted(m for m in {HEAVY!r} if m in sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_import_is_light() -> None:
    assert loaded_after("import trisect") == set()
    assert loaded_after("import trisect; trisect.fit, trisect.Graph, trisect.Timeline, trisect.nn") <= {"torch"}


def test_names_are_found_when_asked_for() -> None:
    assert set(trisect.__all__) <= set(dir(trisect))
    for name in trisect.__all__:
        assert getattr(trisect, name) is not None
    with pytest.raises(AttributeError, match="plot"):
        _ = trisect.plot
