"""Kernels: native C, the torch fallback, CUDA through torch; autograd functions on top. Knows no layouts."""

from trisect.ops.aggregate import aggregate
from trisect.ops.dropout import dropout

__all__ = ["aggregate", "dropout"]
