"""Kernels: native C, the torch fallback, CUDA through torch; autograd functions on top. They know no layouts."""

from trisect.ops.attention import attend
from trisect.ops.dropout import dropout
from trisect.ops.elementwise import add, elu, scale
from trisect.ops.entropy import cross_entropy
from trisect.ops.fused import branches, dense
from trisect.ops.norm import normalise
from trisect.ops.pairs import multiply_pairs, score_pairs, take_rows
from trisect.ops.recurrent import gru, lstm
from trisect.ops.spmm.aggregate import aggregate
from trisect.ops.spmm.steps import product_steps

__all__ = [
    "add",
    "aggregate",
    "attend",
    "branches",
    "cross_entropy",
    "dense",
    "dropout",
    "elu",
    "gru",
    "lstm",
    "multiply_pairs",
    "normalise",
    "product_steps",
    "scale",
    "score_pairs",
    "take_rows",
]
