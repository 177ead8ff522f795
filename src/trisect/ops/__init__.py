"""Kernels: native C, the torch fallback, CUDA through torch; autograd functions on top. They know no layouts."""

from trisect.ops.attention import attend
from trisect.ops.dropout import dropout
from trisect.ops.elementwise import add, elu, scale
from trisect.ops.entropy import cross_entropy
from trisect.ops.fused import branches, convolve, convolve_dense, dense
from trisect.ops.message import Message
from trisect.ops.norm import normalise
from trisect.ops.pairs import multiply_pairs, score_pairs, take_rows
from trisect.ops.recurrent import gru, lstm
from trisect.ops.spmm.aggregate import aggregate
from trisect.ops.spmm.steps import aggregate_steps, product_steps

__all__ = [
    "Message",
    "add",
    "aggregate",
    "aggregate_steps",
    "attend",
    "branches",
    "convolve",
    "convolve_dense",
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
