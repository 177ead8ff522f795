"""The native kernels: plain C without Python or torch headers, called through ctypes on raw pointers."""

from trisect.native.library import Kernel, available, kernels, level, threads

__all__ = ["Kernel", "available", "kernels", "level", "threads"]
