"""Arguments of public operations that do not fit: kernels would read or write past their memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trisect import ops
from trisect.errors import ConfigError, DataError
from trisect.graph import Adjacency, adjacency_from_edges
from trisect.noise import Noise
from trisect.ops.edges import attend_edges, relu_edges
from trisect.ops.recurrent import OutputBuffers
from trisect.ops.spmm.sums import aggregate_into

N = 6
RING = torch.arange(N)


def _ring() -> Adjacency:
    return adjacency_from_edges(RING, (RING + 1) % N, vertices=N)


def _with_edges() -> Adjacency:
    return _ring().with_features(torch.rand(N, 2))


def _noise(vertices: int) -> Noise:
    return replace(Noise(1), vertices=torch.arange(vertices))


def _lstm(**changes: Any) -> Any:
    hidden, width = 3, 2
    arguments: dict[str, Any] = {
        "frames": torch.rand(4, N, width),
        "h": torch.rand(N, hidden),
        "c": torch.rand(N, hidden),
        "weight_ih": torch.rand(4 * hidden, width),
        "weight_hh": torch.rand(4 * hidden, hidden),
        "bias": torch.rand(4 * hidden),
    }
    return ops.lstm(**{**arguments, **changes})


def _attend(**changes: Any) -> Tensor:
    return ops.attend(torch.ones(N, 1, 1), torch.ones(N, 1), torch.ones(N, 1), _ring(), **changes)


def _attend_edges(**changes: Any) -> Tensor:
    return attend_edges(torch.ones(N, 2), torch.ones(N, 2), torch.ones(1, 2), _with_edges(), **changes)


ONE = torch.zeros(1, dtype=torch.int64)
X = torch.rand(N, 2)

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "attend: source_vertices": (
        lambda: _attend(dropout=0.5, noise=_noise(N), source_vertices=ONE),
        r"source_vertices has the shape \[1\]; \[6\] is needed",
    ),
    "attend: vertices of the noise": (
        lambda: _attend(dropout=0.5, noise=_noise(2), source_vertices=RING),
        "noise.vertices has 2 ids; there are 6 rows",
    ),
    "attend_edges: source_vertices": (
        lambda: _attend_edges(dropout=0.5, noise=_noise(N), source_vertices=ONE),
        "source_vertices has the shape",
    ),
    "attend_edges: vertices of the noise": (
        lambda: _attend_edges(dropout=0.5, noise=_noise(2), source_vertices=RING),
        "noise.vertices has 2 ids",
    ),
    "features of edges": (lambda: replace(_ring(), features=torch.rand(2, 2)), "The edges' features have the shape"),
    "features of edges: type": (lambda: replace(_ring(), features=torch.ones(N, 2).long()), "features are torch.int64"),
    "lstm: type of a state": (lambda: _lstm(c=torch.rand(N, 3).half()), "give all of one type"),
    "lstm: type of a weight": (lambda: _lstm(weight_hh=torch.rand(12, 3).half()), "give all of one type"),
    "lstm: bias": (lambda: _lstm(bias=torch.rand(3)), r"a bias has shape \(3,\); \(12,\) is needed"),
    "lstm: buffers": (
        lambda: _lstm(buffers=OutputBuffers(torch.zeros(1, N, 3))),
        r"buffers.out is torch.float32 \[1, 6, 3\]; torch.float32 \[4, 6, 3\]",
    ),
    "lstm: buffers of another type": (lambda: _lstm(buffers=OutputBuffers(torch.zeros(4, N, 3).half())), "buffers.out"),
    "lstm: buffers of other strides": (
        lambda: _lstm(buffers=OutputBuffers(torch.zeros(4, 3, N).transpose(1, 2))),
        "buffers.out has a stride of 6",
    ),
    "gru: bias": (
        lambda: ops.gru(torch.rand(4, N, 2), torch.rand(N, 3), torch.rand(9, 2), torch.rand(9, 3), torch.rand(1)),
        "a bias has shape",
    ),
    "labels elsewhere": (
        lambda: ops.cross_entropy(X, torch.zeros(N, dtype=torch.int64, device="meta")),
        "labels are on meta",
    ),
    "pairs elsewhere": (lambda: ops.multiply_pairs(X, X, ONE.to("meta"), ONE), "src is on meta"),
    "pairs of three dims": (lambda: ops.multiply_pairs(X[None], X[None], ONE, ONE), "the rows of pairs have the shape"),
    "last rows": (
        lambda: aggregate_into(torch.empty(N, 2), X, _ring(), last_rows=torch.rand(N + 1, 2)),
        "last_rows has the shape",
    ),
    "last rows: width": (
        lambda: aggregate_into(torch.empty(N, 2), X, _ring(), last_rows=torch.rand(2, 1)),
        "last_rows has the shape",
    ),
    "a matrix elsewhere": (
        lambda: ops.attend(
            torch.ones(N, 1, 1), torch.ones(N, 1), torch.ones(N, 1), replace(_ring(), **_elsewhere(_ring()))
        ),
        "the adjacency on meta",
    ),
}


def _elsewhere(matrix: Adjacency) -> dict[str, Tensor]:
    return {name: getattr(matrix, name).to("meta") for name in ("starts", "ends", "indices")}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_a_sentence(case: str) -> None:
    call, words = REFUSED[case]
    with pytest.raises((ConfigError, DataError), match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_buffer_for_the_gradient_that_does_not_fit() -> None:
    buffers = OutputBuffers(torch.zeros(4, N, 3))
    frames = torch.rand(4, N, 2, requires_grad=True)
    out, _, _ = _lstm(frames=frames, buffers=buffers)
    buffers.gradients = (torch.zeros(1, N, 2),)
    with pytest.raises(ConfigError, match=r"buffers.gradients\[0\] is torch.float32 \[1, 6, 2\]"):
        out.sum().backward()


def test_a_norm_whose_parameters_differ_goes_by_torch() -> None:
    norm = nn.LayerNorm(2)
    norm.bias = nn.Parameter(torch.zeros(1))
    with pytest.raises(RuntimeError):
        ops.normalise(X, norm)


def test_starts_and_ends_with_gaps_between_them() -> None:
    ring = _with_edges()
    apart = {name: getattr(ring, name).repeat_interleave(2)[::2] for name in ("starts", "ends")}
    gaps = replace(ring, **apart)
    assert not gaps.starts.is_contiguous()
    weight = torch.rand(2, 2)
    assert torch.equal(relu_edges(X, torch.ones(2), gaps, weight), relu_edges(X, torch.ones(2), ring, weight))
    attention, target = torch.rand(1, 2), torch.rand(N, 2)
    assert torch.equal(
        attend_edges(X, target, attention, gaps, weight), attend_edges(X, target, attention, ring, weight)
    )
