"""The kernels under AddressSanitizer and UBSan (`make sanitize`), and that a wrong access would be seen."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from trisect.native import library

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not library.PATH.exists(), reason="the native library is not built"),
    pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc").split()[0]) is None, reason="there is no C compiler"),
]

# reads a thousand numbers beyond the end of an array
WRONG = """
import torch
from trisect.graph import check
array = torch.zeros(1000, dtype=torch.int64)
print(check._FIRST_OUTSIDE(array.data_ptr(), 1, array.numel() + MORE, 2**62))
"""


@pytest.fixture(scope="module")
def sanitized() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sanitized", Path(__file__).with_name("sanitized.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def built(sanitized: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sanitized.build(tmp_path_factory.mktemp("sanitized"))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("level", library.LEVELS)
def test_kernels_are_clean(sanitized: ModuleType, built: Path, tmp_path: Path, level: str) -> None:
    if level not in sanitized.usable_levels():
        pytest.skip(f"this processor has no {level}")
    assert sanitized.check(built, tmp_path, level, sanitized.tests_of(level))


@pytest.mark.parametrize("more", [0, 1000])
def test_a_wrong_access_is_reported(sanitized: ModuleType, built: Path, tmp_path: Path, more: int) -> None:
    variables = sanitized.environment(built, tmp_path, "base")
    code = WRONG.replace("MORE", str(more))
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)
    reports = [path.read_text() for path in tmp_path.iterdir()]
    assert (done.returncode != 0) == bool(reports) == bool(more), done.stderr
    assert all("heap-buffer-overflow" in report and "trisect_first_outside" in report for report in reports)
