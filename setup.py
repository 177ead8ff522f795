"""Builds the native kernels (see `trisect.native.library`); everything else is in pyproject.toml.

The kernels are plain C without Python headers, so the result is an ordinary shared library without an ABI tag, and one
wheel serves every Python on a platform. Each source is compiled once for each instruction set; the loader picks one.
Where there is no working C compiler the installation still succeeds, and the slower torch path is used; with the
environment variable TRISECT_REQUIRE_NATIVE set it fails instead. TRISECT_SANITIZE=address,undefined builds kernels that
end the process at an access that is wrong (`make sanitize` tests them).
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

SOURCES = Path("src/trisect/native")
FLAGS = ["-std=gnu11", "-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-Wall", "-g0"]
SANITIZE = os.environ.get("TRISECT_SANITIZE", "")
CHECKS = [f"-fsanitize={SANITIZE}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O1", "-g1"]

# Spelt as features, not as -march=x86-64-v3, which older compilers do not know.
AVX2 = ["-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2", "-mlzcnt", "-mpopcnt"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512cd"]


def levels() -> dict[str, list[str]]:
    """The instruction sets to compile for, with their flags; `base` must compile, the others may be missing."""
    if platform.machine().lower() in ("x86_64", "amd64"):
        return {"base": [], "avx2": AVX2, "avx512": AVX512}
    return {"base": []}


def find_compiler() -> list[str]:
    """The C compiler as a command: $CC, or the first of cc, gcc, clang."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise CompileError("no C compiler found (set CC, or install gcc)")


def run(command: list[str]) -> None:
    """Run a compiler; its messages become the error's text."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as error:
        raise CompileError(f"{command[0]}: {error}") from error
    if done.returncode:
        raise CompileError(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")
    if done.stderr:
        print(done.stderr, file=sys.stderr)


def works(compiler: list[str], flags: list[str], folder: Path) -> bool:
    """Whether the compiler takes these flags."""
    probe = folder / f"probe-{hashlib.sha256(' '.join(flags).encode()).hexdigest()[:8]}.c"
    probe.write_text("int probe(int x) { return x + 1; }\n")
    try:
        run([*compiler, *flags, "-c", str(probe), "-o", str(probe.with_suffix(".o"))])
    except CompileError:
        return False
    return True


def compile_library(target: Path, objects: Path) -> None:
    """Compile all sources for all levels and link `target`.

    Objects are kept in `objects` and reused while newer than their source and all headers. Every file is written beside
    and renamed, so that two builds at once, or a build beside a running program, do no harm.
    """
    compiler = find_compiler()
    objects.mkdir(parents=True, exist_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    headers = max((path.stat().st_mtime_ns for path in [*SOURCES.glob("*.h"), Path(__file__)]), default=0)
    with tempfile.TemporaryDirectory(dir=objects) as scratch:
        folder = Path(scratch)
        # Code is generated for OpenMP but not linked with a runtime: the loader shares torch's.
        openmp = ["-fopenmp"] if works(compiler, ["-fopenmp"], folder) else []
        checks = CHECKS if SANITIZE else []
        chosen = {
            name: [*FLAGS, *openmp, *checks, *flags, f"-DTRISECT_LEVEL={name}", f"-DTRISECT_LEVEL_{name.upper()}=1"]
            for name, flags in levels().items()
            if name == "base" or works(compiler, flags, folder)
        }

        def compile_one(source: Path, name: str) -> Path:
            mark = hashlib.sha256(" ".join([*compiler, *chosen[name]]).encode()).hexdigest()[:8]
            result = objects / f"{source.stem}-{name}-{mark}.o"
            newest = max(headers, source.stat().st_mtime_ns)
            if not result.exists() or result.stat().st_mtime_ns <= newest:
                fresh = folder / result.name
                run([*compiler, *chosen[name], "-c", str(source), "-o", str(fresh)])
                os.replace(fresh, result)
            return result

        jobs = [(source, name) for source in sorted(SOURCES.glob("*.c")) for name in chosen]
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            built = list(pool.map(lambda job: compile_one(*job), jobs))
        shape = ["-dynamiclib", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
        linked = folder / target.name
        run([*compiler, *shape, *checks, *map(str, built), "-lm", "-o", str(linked)])
        # `target` may be on another file system than `objects`, where a rename is impossible.
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copyfile(linked, beside)
        os.replace(beside, target)


class BuildKernels(build_ext):
    """Builds `trisect/native/_kernels.so` instead of a Python extension module."""

    def get_ext_filename(self, fullname: str) -> str:
        """The library's path, without the ABI tag of a Python extension."""
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extension(self, ext: Extension) -> None:
        """Compile; on failure warn and go on where the extension is optional."""
        try:
            compile_library(Path(self.get_ext_fullpath(ext.name)), Path(self.build_temp))
        except CompileError as error:
            if not ext.optional:
                raise
            print(f"warning: the native kernels were not built, the slower torch path will be used: {error}")

    def copy_extensions_to_source(self) -> None:
        """As setuptools does for an editable install, but by renaming, since programs may have the old file open."""
        build_py = self.get_finalized_command("build_py")
        for ext in self.extensions:
            inplace, regular = self._get_inplace_equivalent(build_py, ext)
            if os.path.exists(regular):
                beside = f"{inplace}.{os.getpid()}"
                shutil.copyfile(regular, beside)
                os.replace(beside, inplace)


class PlatformWheel(bdist_wheel):
    """The wheel fits any Python 3 on this platform."""

    def get_tag(self) -> tuple[str, str, str]:
        """py3-none-<platform>."""
        return "py3", "none", super().get_tag()[2]


KERNELS = Extension(
    "trisect.native._kernels",
    [str(path) for path in sorted(SOURCES.glob("*.c"))],
    optional=not os.environ.get("TRISECT_REQUIRE_NATIVE"),
)

setup(
    ext_modules=[KERNELS],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": PlatformWheel},
)
