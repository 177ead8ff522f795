"""The measurement runs and compares its candidates before it times them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from trisect.errors import RunError
from trisect.native import library
from trisect.ops.spmm._aggregate_torch import sum_torch
from trisect_bench import spmm
from trisect_bench._check import require_sums
from trisect_bench._harness import python_path


def test_runs_small_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    result = spmm.run(vertices=300, edges=3000, widths=(6, 20), rounds=2, threads=1)
    candidates = result["widths"]["6"]["candidates"]
    assert {"torch csr int64", "torch csr int32", "gather and scatter", "trisect", "trisect backward"} <= set(
        candidates
    )
    assert "gather and scatter" not in result["widths"]["20"]["candidates"]
    assert candidates["torch csr int64"]["speedup"] == 1.0
    ours = candidates["trisect"]
    assert ours["speedup"] == candidates["torch csr int64"]["best"] / ours["best"]
    # an honest copy of 128 MiB: no memory is faster than 10 TB/s, and no machine as slow as 10 MB/s
    assert 1e7 < result["copy_bytes_per_second"] < 1e13
    assert set(result["attention"]) == {"1x64", "8x8"}
    spmm.show(result)
    assert "times torch int64" in capsys.readouterr().out


LEVELS = [
    name for name in library.LEVELS if library.available() and hasattr(library.kernels(), f"trisect_built_{name}")
]


@pytest.mark.parametrize("level", LEVELS)
def test_candidates_agree_with_every_instruction_set(level: str) -> None:
    library_of_all = library.kernels()
    if library_of_all is None or library.LEVELS.index(level) > library_of_all.trisect_cpu_level():
        pytest.skip(f"this processor has no {level}")
    program = (
        "from trisect_bench import spmm; m = spmm._matrix(1000, 60_000, 0); "
        "[spmm._compare(m, width, 1) for width in (6, 64)]; spmm._compare_attention(m, 2, 1)"
    )
    environment = {**os.environ, "PYTHONPATH": python_path(), "TRISECT_NATIVE": level}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_check_follows_what_was_added_up() -> None:
    """A hub's row is far off in absolute terms and right; a row that lacks one of its terms is not."""
    matrix = spmm._matrix(2000, 400_000, seed=1)
    hub = int((matrix.ends - matrix.starts).argmax())
    x = 1000 * torch.randn(2000, 3, generator=torch.Generator().manual_seed(2))
    expected, magnitude = sum_torch(x.double(), matrix), sum_torch(x.double().abs(), matrix)
    result = sum_torch(x, matrix)
    assert float((result.double() - expected).abs()[hub].max()) > 1e-4
    require_sums("sum", result, expected, magnitude)
    assert matrix.values is not None
    values = matrix.values.clone()
    values[int(matrix.starts[hub])] = 0.0
    with pytest.raises(RunError, match=r"sum gives .* for element .* its kernel is wrong"):
        require_sums("sum", sum_torch(x, matrix.with_values(values)), expected, magnitude)
    with pytest.raises(RunError, match="gives nan"):
        require_sums("sum", torch.full_like(result, torch.nan), expected, magnitude)
