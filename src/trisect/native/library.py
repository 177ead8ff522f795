"""Loads the native kernels beside torch, and declares their functions.

The library `_kernels.so` is made from the C files of this folder by the package's build. In an editable install, after
a change of a C file:

    python setup.py build_ext --inplace

An ops module declares a function once and calls it where `available()`:

    _SUM = Kernel("trisect_sum_f32", POINTER, POINTER, INT64, INT)
    if available(): _SUM(x.data_ptr(), out.data_ptr(), rows, threads())

The environment variable TRISECT_NATIVE chooses: `0` turns the kernels off, `base`, `avx2` or `avx512` takes that
instruction set instead of the processor's best. TRISECT_KERNELS names another library, such as one that was built with
sanitizers (`make sanitize`).
"""

from __future__ import annotations

import ctypes
import functools
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from trisect.errors import ConfigError

POINTER = ctypes.c_void_p
INT = ctypes.c_int
INT64 = ctypes.c_int64
UINT32 = ctypes.c_uint32
UINT64 = ctypes.c_uint64
FLOAT = ctypes.c_float
DOUBLE = ctypes.c_double

LEVELS = ("base", "avx2", "avx512")
PATH = Path(os.environ.get("TRISECT_KERNELS") or Path(__file__).with_name("_kernels.so"))


@functools.cache
def kernels() -> ctypes.CDLL | None:
    """Give the loaded library; None, after one warning, where it is missing, and None where TRISECT_NATIVE is 0."""
    if os.environ.get("TRISECT_NATIVE") == "0":
        return None
    try:
        if not PATH.exists():
            raise OSError(f"{PATH.name} was not built")
        _make_openmp_global()
        return ctypes.CDLL(str(PATH))
    except OSError as error:
        warnings.warn(
            f"Trisect's native kernels are not used and training is several times slower ({error}); "
            "install a C compiler and reinstall Trisect.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def pointer(tensor: torch.Tensor | None) -> int | None:
    """What a kernel is given; None: NULL."""
    return None if tensor is None else tensor.data_ptr()


def available() -> bool:
    """Tell whether the native kernels can be called."""
    return kernels() is not None


@functools.cache
def level() -> str:
    """Give the instruction set in use: `base`, `avx2` or `avx512`; `none` without the library."""
    library = kernels()
    if library is None:
        return "none"
    best = library.trisect_cpu_level()
    usable = [name for name in LEVELS[: best + 1] if hasattr(library, f"trisect_built_{name}")]
    asked = os.environ.get("TRISECT_NATIVE", "")
    if asked in ("", "1"):
        return usable[-1]
    if asked not in usable:
        raise ConfigError(f"TRISECT_NATIVE is {asked!r}; this processor and build allow 0, {', '.join(usable)}.")
    return asked


def threads() -> int:
    """Give the number of threads to hand to a kernel: torch's."""
    return torch.get_num_threads()


class Kernel:
    """One function of the library, found and typed at its first call.

    Args:
        name: as in TRISECT(name) of the C source.
        argtypes: POINTER, INT, INT64, … of this module; a POINTER takes `tensor.data_ptr()` or None.
        returns: the result's type, None for void.
    """

    __slots__ = ("_argtypes", "_call", "_returns", "name")

    def __init__(self, name: str, *argtypes: Any, returns: Any = None) -> None:
        self.name = name
        self._argtypes = argtypes
        self._returns = returns
        self._call: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Call the C function; the interpreter lock is released meanwhile."""
        call = self._call
        if call is None:
            call = self._call = self._resolve()
        return call(*arguments)

    def exists(self) -> bool:
        """Tell whether the library has this function (an older build may not)."""
        return hasattr(kernels(), f"{self.name}_{level()}")

    def _resolve(self) -> Callable[..., Any]:
        library = kernels()
        if library is None:
            raise RuntimeError(f"{self.name} was called without the native library; test available() first.")
        function = getattr(library, f"{self.name}_{level()}")
        function.argtypes = self._argtypes
        function.restype = self._returns
        return function  # type: ignore[no-any-return]


def _make_openmp_global() -> None:
    """Make the OpenMP runtime that torch has loaded visible to the library, so that there is one pool of threads."""
    loaded = _loaded_openmp()
    for path in loaded:
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL | os.RTLD_NOLOAD)
        except OSError:
            continue
        return
    for name in ("libgomp.so.1", "libomp.so.5", "libomp.dylib"):
        try:
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return


def _loaded_openmp() -> list[str]:
    """Paths of the OpenMP runtimes in this process, torch's own first."""
    beside_torch = Path(torch.__file__).parent / "lib"
    maps = Path("/proc/self/maps")
    if maps.exists():
        paths = {line.split(maxsplit=5)[5].strip() for line in maps.read_text().splitlines() if ".so" in line}
    else:
        paths = {str(path) for path in beside_torch.glob("*omp*")}
    runtimes = [path for path in paths if Path(path).name.startswith(("libgomp", "libiomp", "libomp"))]
    return sorted(runtimes, key=lambda path: (not path.startswith(str(beside_torch)), "torch" not in path, path))
