"""The kernels and the tests that call them under AddressSanitizer and UBSan: `make sanitize`.

`python tests/native/sanitized.py [LEVEL …]` builds a library of its own in a temporary folder, and runs the tests with
each instruction set that the processor has. An access outside of an array, or arithmetic that C leaves undefined, ends
the process with a report, and this program with exit code 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from trisect.native.library import LEVELS, kernels

ROOT = Path(__file__).resolve().parents[2]
# what calls kernels; the second list is for the best instruction set alone, since these kernels have one form. Tests
# that load Arrow, polars or a partitioner are not among them; whether they would run here is not known
EVERY_LEVEL = ["tests/native/test_library.py", "tests/ops"]
ONCE = [
    *(f"tests/graph/test_{name}.py" for name in ("adjacency", "build", "edge_features", "graph", "sound")),
    "tests/graph/timeline",
    "tests/partition/test_order.py",
    "tests/shards",
    "tests/comm/local",
    "tests/nn/temporal",
    "tests/tasks/test_pairs.py",
]
# two kinds of tests build libraries of their own, and one counts threads
LEFT_OUT = "not builds_in_place and not a_failing_compiler and not pool_of_threads"


def sanitizer(name: str) -> str:
    """Give the path of a runtime of the compiler, which must be loaded before all else."""
    compiler = os.environ.get("CC", "cc").split()
    return subprocess.run(
        [*compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()


def build(folder: Path) -> Path:
    """Build the kernels with sanitizers; give the library."""
    command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", str(folder), "--build-temp", str(folder)]
    environment = {**os.environ, "TRISECT_SANITIZE": "address,undefined", "TRISECT_REQUIRE_NATIVE": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    return folder / "trisect" / "native" / "_kernels.so"


def environment(library: Path, reports: Path, level: str) -> dict[str, str]:
    """Give the variables under which Python loads the library, with reports as files."""
    # torch throws exceptions, which the runtime passes on to a C++ library that must be there before it
    preload = " ".join(map(sanitizer, ("libasan.so", "libubsan.so", "libstdc++.so.6")))
    return {
        **os.environ,
        "LD_PRELOAD": preload,
        "ASAN_OPTIONS": f"detect_leaks=0:quarantine_size_mb=32:log_path={reports}/asan",
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={reports}/ubsan",
        "PYTHONMALLOC": "malloc",  # Python's own allocator would hide where an array ends
        "OMP_NUM_THREADS": "2",
        "TRISECT_KERNELS": str(library),
        "TRISECT_NATIVE": level,
    }


def usable_levels() -> list[str]:
    """Give the instruction sets of this processor."""
    library = kernels()
    assert library is not None, "the kernels are not built"
    return list(LEVELS[: library.trisect_cpu_level() + 1])


def tests_of(level: str) -> list[str]:
    """Give the tests to run with an instruction set."""
    return [*EVERY_LEVEL, *(ONCE if level == usable_levels()[-1] else [])]


def check(library: Path, reports: Path, level: str, tests: list[str], *more: str) -> bool:
    """Run tests with an instruction set; print reports; say whether all went well."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-x",
        "-s",
        "-p",
        "no:cacheprovider",
        "-k",
        LEFT_OUT,
        *more,
        *tests,
    ]
    # a process that is ended in the middle says nothing by itself: its last lines name the test, and hold what UBSan
    # has written, which goes to the standard error stream whatever its options say
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        variables = {**environment(library, reports, level), "PYTHONUNBUFFERED": "1"}
        done = subprocess.run(command, cwd=ROOT, env=variables, stdout=log, stderr=subprocess.STDOUT, check=False)
        log.seek(0)
        lines = log.read().splitlines()
    written = sorted(reports.iterdir())
    clean = done.returncode == 0 and not written
    for report in written:
        print(report.read_text(errors="replace")[:4000], flush=True)
    print("\n".join(lines[-1:] if clean else lines[-60:]), flush=True)
    if done.returncode < 0:
        print(f"the tests were ended by signal {-done.returncode}", flush=True)
    return clean


def main(levels: list[str]) -> int:
    """Build, and test with each level; the number of those that failed."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="trisect-sanitized-") as name:
        folder = Path(name)
        library = build(folder)
        for level in levels or usable_levels():
            reports = folder / f"reports-{level}"
            reports.mkdir()
            clean = check(library, reports, level, tests_of(level))
            print(f"{level}: {'clean' if clean else 'FAILED'}", flush=True)
            failed += not clean
    return failed


if __name__ == "__main__":
    if shutil.which(os.environ.get("CC", "cc").split()[0]) is None:
        sys.exit("make sanitize needs a C compiler (set CC, or install gcc).")
    sys.exit(min(1, main(sys.argv[1:])))
