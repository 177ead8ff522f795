"""The build, the loader, and the one OpenMP runtime."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trisect.native import library

ROOT = Path(__file__).resolve().parents[2]
native = pytest.mark.skipif(not library.PATH.exists(), reason="the native library is not built")


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@native
def test_kernels_are_found_at_the_best_level():
    assert library.available()
    assert library.level() in library.LEVELS
    assert library.Kernel("trisect_sum_f32").exists()
    assert not library.Kernel("trisect_no_such_kernel").exists()


@native
def test_one_openmp_runtime_and_one_pool_of_threads():
    code = """
import os, torch
from trisect.graph.adjacency import Adjacency
from trisect.ops import aggregate
torch.set_num_threads(3)
x = torch.randn(3000, 300)
(x @ x.t()).add_(1).sum()
before = len(os.listdir("/proc/self/task"))
pointers = torch.arange(3001) * 5
for _ in range(3):
    aggregate(x, Adjacency.from_csr(pointers, torch.randint(0, 3000, (3000, 5)).sort(1).values.flatten(), None, 3000))
    x.add(1)
after = len(os.listdir("/proc/self/task"))
names = {line.split()[-1] for line in open("/proc/self/maps") if "omp" in line.split("/")[-1] and ".so" in line}
print(before, after, len(names))
"""
    if not Path("/proc/self/task").exists():
        pytest.skip("needs /proc")
    done = run(code, OMP_NUM_THREADS="3")
    assert done.returncode == 0, done.stderr
    before, after, runtimes = map(int, done.stdout.split())
    assert before >= 3, "torch itself must have started its pool for the comparison to mean anything"
    assert after == before
    assert runtimes == 1


def test_without_the_library_one_warning_and_the_same_result(tmp_path):
    code = f"""
import warnings, torch
from pathlib import Path
from trisect.native import library
library.PATH = Path({str(tmp_path / "missing.so")!r})
from trisect.graph.adjacency import Adjacency
from trisect.ops import aggregate
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    matrix = Adjacency.from_csr(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1]), None, 2)
    for _ in range(2):
        out = aggregate(torch.eye(2), matrix)
print(out.tolist(), sum("native kernels" in str(w.message) for w in seen))
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[[1.0, 1.0], [0.0, 1.0]] 1"


def test_turned_off_by_the_environment():
    done = run("from trisect.native import library; print(library.kernels(), library.level())", TRISECT_NATIVE="0")
    assert done.stdout.split() == ["None", "none"]
    assert done.stderr == ""


@native
def test_unknown_level_is_refused_in_a_sentence():
    done = run("from trisect.native import library; library.level()", TRISECT_NATIVE="sse9")
    assert "TRISECT_NATIVE is 'sse9'" in done.stderr
    assert "base" in done.stderr


@native
@pytest.mark.parametrize("level", library.LEVELS)
def test_every_level_gives_the_same_sums(level):
    code = """
import torch
from trisect.graph.adjacency import Adjacency
from trisect.ops import aggregate
from trisect.ops.spmm._aggregate_torch import sum_torch, max_torch
torch.manual_seed(0)
pointers = torch.arange(201) * 7
matrix = Adjacency.from_csr(pointers, torch.randint(0, 150, (200, 7)).sort(1).values.flatten(), torch.rand(1400), 150)
for width in (1, 5, 37, 600):
    x = torch.randn(150, width)
    torch.testing.assert_close(aggregate(x, matrix), sum_torch(x, matrix))
    torch.testing.assert_close(aggregate(x, matrix, "max"), max_torch(x, matrix)[0])
print("same")
"""
    done = run(code, TRISECT_NATIVE=level, OMP_NUM_THREADS="2")
    if "this processor and build allow" in done.stderr:
        pytest.skip(f"{level} does not run here")
    assert done.stdout.strip() == "same", done.stderr


@pytest.fixture
def checkout(tmp_path):
    """A copy of what the build needs, with one small kernel file, so that it takes a second."""
    target = tmp_path / "checkout"
    sources = target / "src" / "trisect" / "native"
    sources.mkdir(parents=True)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, target / name)
    here = ROOT / "src" / "trisect"
    shutil.copy(here / "__init__.py", target / "src" / "trisect" / "__init__.py")
    for name in ("__init__.py", "cpu.c", "kernels.h"):
        shutil.copy(here / "native" / name, sources / name)
    return target


def build(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"],
        cwd=checkout,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_failing_compiler_leaves_a_warning_not_an_error(checkout):
    done = build(checkout, CC="no-such-compiler-at-all")
    assert done.returncode == 0, done.stderr
    assert "native kernels were not built" in done.stdout
    assert not (checkout / "src/trisect/native/_kernels.so").exists()


def test_a_failing_compiler_is_an_error_where_kernels_are_required(checkout):
    done = build(checkout, CC="no-such-compiler-at-all", TRISECT_REQUIRE_NATIVE="1")
    assert done.returncode != 0


@pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc")), reason="needs a C compiler")
def test_builds_in_place_without_an_abi_tag_and_only_once(checkout):
    done = build(checkout)
    assert done.returncode == 0, done.stderr
    assert (checkout / "src/trisect/native/_kernels.so").exists()
    objects = {path: path.stat().st_mtime_ns for path in checkout.glob("build/temp*/*.o")}
    assert objects
    build(checkout)
    assert objects == {path: path.stat().st_mtime_ns for path in checkout.glob("build/temp*/*.o")}
