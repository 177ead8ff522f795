"""LSTM and GRU over vertices against the written-out formulas and torch.nn: values, gradients, strides, controls."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trisect.errors import ConfigError
from trisect.native import library
from trisect.ops.recurrent import OutputBuffers, gru, gru_torch, lstm, lstm_torch

needs_native = pytest.mark.skipif(not library.available(), reason="the native kernels were not built")
CELLS = {"lstm": (lstm, lstm_torch, 4), "gru": (gru, gru_torch, 3)}


def operands(
    cell: str, steps: int, rows: int, widths: tuple[int, ...], hidden: int, dtype: torch.dtype, seed: int
) -> tuple[list[Tensor], list[Tensor]]:
    """(frames, the other arguments), all with gradients."""
    gates = CELLS[cell][2]
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    frames = [draw(steps, rows, width) for width in widths]
    state = [draw(rows, hidden) for _ in range(2 if cell == "lstm" else 1)]
    weights = [draw(gates * hidden, sum(widths)), draw(gates * hidden, hidden)]
    biases = [draw(gates * hidden) for _ in range(1 if cell == "lstm" else 2)]
    return frames, [*state, *weights, *biases]


def results(function, frames: list[Tensor], rest: list[Tensor]) -> list[Tensor]:
    """Outputs and state, then the gradients of all arguments for a fixed direction."""
    outputs = function(frames, *rest)
    generator = torch.Generator().manual_seed(9)
    directions = [torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.dtype) for o in outputs]
    leaves = [tensor for tensor in (*frames, *rest) if tensor.requires_grad]
    gradients = torch.autograd.grad(outputs, leaves, directions, allow_unused=True, materialize_grads=True)
    return [*(output.detach() for output in outputs), *gradients]


def differ(got: list[Tensor], wanted: list[Tensor]) -> float:
    """The largest difference, each tensor by its own scale."""
    worst = 0.0
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape
        if b.numel():
            worst = max(worst, float((a - b).abs().max() / b.abs().max().clamp(min=1.0)))
    return worst


@needs_native
@settings(max_examples=60, deadline=None)
@given(
    cell=st.sampled_from(["lstm", "gru"]),
    steps=st.integers(1, 6),
    rows=st.sampled_from([0, 1, 5, 12, 23, 24, 25, 60, 130]),
    widths=st.lists(st.integers(1, 34), min_size=1, max_size=2).map(tuple),
    hidden=st.sampled_from([1, 2, 6, 7, 8, 17, 32]),
    single=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_native_equals_torch(
    cell: str, steps: int, rows: int, widths: tuple[int, ...], hidden: int, single: bool, seed: int
) -> None:
    native, oracle, _ = CELLS[cell]
    frames, rest = operands(cell, steps, rows, widths, hidden, torch.float32 if single else torch.float64, seed)
    assert differ(results(native, frames, rest), results(oracle, frames, rest)) < (1e-4 if single else 1e-12)


@pytest.mark.parametrize("hidden", [1, 6, 32])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_equals_torch_nn(cell: str, hidden: int) -> None:
    steps, rows, widths = 5, 70, (3, 4)
    frames, _ = operands(cell, steps, rows, widths, hidden, torch.float64, 1)
    module = (torch.nn.LSTM if cell == "lstm" else torch.nn.GRU)(sum(widths), hidden, dtype=torch.float64)
    wanted, _ = module(torch.cat(frames, 2))
    zero = torch.zeros(rows, hidden, dtype=torch.float64)
    weights = (module.weight_ih_l0, module.weight_hh_l0)
    if cell == "lstm":
        got, h, _ = lstm(frames, zero, zero, *weights, module.bias_ih_l0 + module.bias_hh_l0)
    else:
        got, h = gru(frames, zero, *weights, module.bias_ih_l0, module.bias_hh_l0)
    leaves = [*frames, *module.parameters()]
    direction = torch.randn(wanted.shape, dtype=torch.float64)
    pairs = [torch.autograd.grad(out, leaves, direction) for out in (got, wanted)]
    got, h, wanted = got.detach(), h.detach(), wanted.detach()
    assert differ([got, h, *pairs[0]], [wanted, wanted[-1], *pairs[1]]) < 1e-12


@needs_native
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_the_comparison_notices_swapped_gates_and_a_wrong_state(cell: str) -> None:
    native, oracle, gates = CELLS[cell]
    frames, rest = operands(cell, 3, 30, (2, 6), 6, torch.float64, 2)
    got = results(native, frames, rest)
    assert differ(got, results(oracle, frames, rest)) < 1e-12
    at = 2 if cell == "lstm" else 1
    swapped = list(rest)
    swapped[at] = rest[at].detach().view(gates, 6, -1).flip(0).reshape(rest[at].shape).requires_grad_()
    assert differ(got, results(oracle, frames, swapped)) > 1e-3
    moved = [rest[0].detach().roll(1, 0).requires_grad_(), *rest[1:]]
    assert differ(got, results(oracle, frames, moved)) > 1e-3


@needs_native
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_gradcheck(cell: str) -> None:
    frames, rest = operands(cell, 3, 4, (2, 3), 2, torch.float64, 3)
    native = CELLS[cell][0]
    assert torch.autograd.gradcheck(lambda *inputs: native(inputs[:2], *inputs[2:]), (*frames, *rest))


@needs_native
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_run_in_pieces_equals_the_whole(cell: str) -> None:
    """State out is state in: gradients flow through it from one piece to the piece before."""
    native = CELLS[cell][0]
    frames, rest = operands(cell, 7, 40, (3, 5), 6, torch.float64, 4)
    count = 2 if cell == "lstm" else 1

    def pieces(inputs: list[Tensor], *arguments: Tensor) -> tuple[Tensor, ...]:
        state, outputs = arguments[:count], []
        for start, stop in ((0, 1), (1, 4), (4, 7)):
            out, *state = native([frame[start:stop] for frame in inputs], *state, *arguments[count:])
            outputs.append(out)
        return torch.cat(outputs), *state

    assert differ(results(pieces, frames, rest), results(native, frames, rest)) < 1e-12


@needs_native
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_views_expanded_frames_and_only_the_last_state_used(cell: str) -> None:
    native, oracle, _ = CELLS[cell]
    frames, rest = operands(cell, 4, 50, (6, 6), 6, torch.float64, 5)

    def views(function):
        def call(inputs: list[Tensor], *arguments: Tensor) -> tuple[Tensor, ...]:
            count = 2 if cell == "lstm" else 1
            state = [part[10:37] for part in arguments[:count]]
            first = inputs[0][:, 10:37]
            second = inputs[1][0, 10:37, 1:4].expand(4, 27, 3)  # one frame for all steps
            weight = arguments[count][:, :9]
            _, *after = function((first, second), *state, weight, *arguments[count + 1 :])
            return (after[0],)

        return call

    assert differ(results(views(native), frames, rest), results(views(oracle), frames, rest)) < 1e-12


@needs_native
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_chunks_of_vertices_written_into_one_tensor(cell: str) -> None:
    function = CELLS[cell][0]
    frames, rest = operands(cell, 4, 53, (5, 3), 6, torch.float64, 3)
    states = 2 if cell == "lstm" else 1
    direction = torch.randn(4, 53, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    wanted = function(frames, *rest)[0]
    gradients = torch.autograd.grad(wanted, [*frames, *rest[states:]], direction)

    out = torch.full((4, 53, 6), 7.0, dtype=torch.float64)
    d_frames = [torch.full_like(frame, 7.0) for frame in frames]
    weights = [torch.zeros_like(weight) for weight in rest[states:]]
    for rows in (slice(0, 30), slice(30, 53)):
        buffers = OutputBuffers(out[:, rows])
        part = [frame.detach()[:, rows] for frame in frames]
        state = [tensor.detach()[rows] for tensor in rest[:states]]
        found = function(part, *state, *rest[states:], buffers=buffers)[0]
        assert found.data_ptr() == out[:, rows].data_ptr()
        if rows.start == 0:
            assert differ([out], [wanted.detach()]) > 1.0, "rows that nobody has written yet"
        buffers.gradients = [d_frame[:, rows] for d_frame in d_frames]
        for total, gradient in zip(weights, torch.autograd.grad(found, rest[states:], direction[:, rows]), strict=True):
            total += gradient
    assert differ([out, *d_frames, *weights], [wanted.detach(), *gradients]) < 1e-12


@needs_native
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_same_bits_for_any_number_of_threads(cell: str) -> None:
    frames, rest = operands(cell, 3, 3500, (2, 6), 6, torch.float32, 6)
    before = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(results(CELLS[cell][0], frames, rest))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@needs_native
def test_activations_hold_at_the_ends() -> None:
    """Saturated gates are exactly 0 and 1 to rounding, tiny ones keep their relative precision, NaN stays NaN."""
    for dtype, limit in ((torch.float32, 4e-7), (torch.float64, 1e-15)):
        bias = torch.tensor([-1e4, 1e4, 0.0, 1e4, -80.0, 40.0, 1e-3, -80.0, 5.0, 1e-30], dtype=dtype)
        hidden = bias.numel()
        zero = torch.zeros(1, hidden, dtype=dtype)
        # input gate open, forget gate shut, output gate open: h = tanh(tanh(bias))
        full = torch.cat((torch.full_like(bias, 1e4), torch.full_like(bias, -1e4), bias, torch.full_like(bias, 1e4)))
        weights = torch.zeros(4 * hidden, 1, dtype=dtype), torch.zeros(4 * hidden, hidden, dtype=dtype)
        out, _, _ = lstm(torch.ones(1, 1, 1, dtype=dtype), zero, zero, *weights, full)
        wanted = bias.double().tanh().tanh()
        assert bool(((out[0, 0].double() - wanted).abs() <= limit * wanted.abs()).all())
        broken, _, _ = lstm(torch.full((1, 1, 1), torch.nan, dtype=dtype), zero, zero, *weights, full)
        assert bool(broken.isnan().all())


def test_no_bias_is_zero_bias() -> None:
    frames, (h, c, weight_ih, weight_hh, bias) = operands("lstm", 2, 9, (4,), 3, torch.float64, 7)
    got = lstm(frames[0], h, c, weight_ih, weight_hh)
    assert torch.equal(got[0], lstm(frames, h, c, weight_ih, weight_hh, torch.zeros_like(bias))[0])


def test_wrong_shapes_are_named() -> None:
    frames, (h, c, weight_ih, weight_hh, bias) = operands("lstm", 2, 9, (4, 2), 3, torch.float32, 8)
    with pytest.raises(ConfigError, match="weight_ih"):
        lstm(frames[:1], h, c, weight_ih, weight_hh, bias)
    with pytest.raises(ConfigError, match="state"):
        lstm(frames, h[:5], c, weight_ih, weight_hh, bias)
    with pytest.raises(ConfigError, match="one or two"):
        lstm([*frames, frames[0]], h, c, weight_ih, weight_hh, bias)
    with pytest.raises(ConfigError, match="make them equal"):
        lstm([frames[0], frames[1][:1]], h, c, weight_ih, weight_hh, bias)
