"""A wheel holds all that `trisect train` needs: the examples, the kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_built_in_example_trains_from_a_wheel(tmp_path: Path):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    options = ["--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "wheel", *options, "-w", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("trisect-*.whl")
    subprocess.run([*pip, "install", *options, "--target", str(tmp_path / "site"), str(wheel)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    where = "import trisect; print(trisect.__file__)"
    shown = subprocess.run(
        [sys.executable, "-c", where], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    assert shown.stdout.startswith(str(tmp_path / "site"))
    command = [sys.executable, "-m", "trisect", "train", "--set", "train.epochs=2", "--out", "run"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "run" / "summary.json").is_file()
