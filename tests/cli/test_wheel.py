"""A wheel holds all that `trisect train` needs: the examples, the kernels, the pages of report and watch."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIP = ["-m", "pip", "--disable-pip-version-check"]
OPTIONS = ["--quiet", "--no-deps", "--no-build-isolation"]


@pytest.mark.slow
def test_an_sdist_becomes_a_wheel_that_trains_where_there_is_no_compiler(tmp_path: Path) -> None:
    def run(*command: str, python: str = sys.executable, **more: str) -> str:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | more
        done = subprocess.run([python, *command], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    make = "import setuptools.build_meta as backend, sys; print(backend.build_sdist(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", make, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (sdist,) = tmp_path.glob("trisect-*.tar.gz")
    run(*PIP, "wheel", *OPTIONS, "-w", str(tmp_path), str(sdist), TRISECT_REQUIRE_NATIVE="1")
    (wheel,) = tmp_path.glob("trisect-*.whl")
    assert wheel.name.split("-")[2:4] == ["py3", "none"]

    run("-m", "venv", str(tmp_path / "new"))
    python = str(tmp_path / "new" / "bin" / "python")
    # torch and the others are those of this environment; Trisect is the wheel's
    (site,) = (tmp_path / "new").glob("lib/python*/site-packages")
    run(*PIP, "install", *OPTIONS, str(wheel), python=python, PATH=str(tmp_path / "new" / "bin"))
    (site / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    nowhere = str(tmp_path / "new" / "bin")  # no compiler
    where = run("-c", "import trisect; print(trisect.__file__)", python=python, PATH=nowhere)
    assert where.startswith(str(tmp_path / "new"))
    native = run("-c", "from trisect.native.library import available; print(available())", python=python, PATH=nowhere)
    assert native.strip() == "True"
    run("-m", "trisect", "train", "--set", "train.epochs=2", "--out", "run", python=python, PATH=nowhere)
    assert (tmp_path / "run" / "summary.json").is_file()
    assert (tmp_path / "run" / "report.html").is_file()
    assert "page.html" in run("-m", "zipfile", "-l", str(wheel))
