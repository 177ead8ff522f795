from __future__ import annotations

import subprocess
import sys

import pytest

import trisect

HEAVY = ("torch", "torch_geometric", "pandas", "matplotlib", "pyarrow", "sklearn", "scipy", "sympy", "torch._dynamo")
TRAINED = """
from trisect import Graph, Timeline, fit
from trisect.data.generators.generate import generate
static, over_time = generate("community", vertices=60), generate("evolving", vertices=30, steps=6)
fit("resgcn+", Graph.from_record(static), epochs=1, layers=2)
fit("cd-gcn", Timeline.from_record(over_time), {"name": "link-prediction", "eval_negatives": 2}, epochs=1)
"""


def loaded_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sorted(m for m in {HEAVY!r} if m in sys.modules))"
    return set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        .stdout.split("\n")[-2]
        .split()
    )


def test_import_is_light() -> None:
    assert loaded_after("import trisect") == set()
    assert loaded_after("import trisect; trisect.fit, trisect.Graph, trisect.Timeline, trisect.nn") <= {"torch"}


def test_training_loads_no_compiler() -> None:
    """What torch compiles with takes 70 MB of every process that loads it, and a second."""
    assert loaded_after(f"exec({TRAINED!r})") == {"torch"}
    assert loaded_after("import torch, torch._dynamo") > {"torch"}  # the negative control


def test_names_are_found_when_asked_for() -> None:
    assert set(trisect.__all__) <= set(dir(trisect))
    for name in trisect.__all__:
        assert getattr(trisect, name) is not None
    with pytest.raises(AttributeError, match="plot"):
        _ = trisect.plot
