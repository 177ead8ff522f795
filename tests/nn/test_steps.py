"""The halves of a layer over several steps equal the calls of each step, in the result and in every gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.nn import Evolving, GATLayer, GCN2Layer, GCNLayer, GINLayer, ResGCNLayer, SAGELayer
from trisect.nn.base import Context, Layer
from trisect.noise import Noise
from trisect.ops.message import Message
from trisect.ops.spmm.collect import Collector

ROWS, WIDTH = 17, 6
HALO = (5, 0, 9)  # of each step: the columns differ
LAYERS: dict[str, Callable[[], Layer]] = {
    "gcn, narrowing": lambda: GCNLayer(WIDTH, 4, activation="relu", dropout=0.4),
    "gcn, widening": lambda: GCNLayer(WIDTH, 9, activation="relu", dropout=0.4),
    "gcn, norm and residual": lambda: GCNLayer(WIDTH, WIDTH, norm="layer", residual=True),
    "sage": lambda: SAGELayer(WIDTH, 4, activation="relu"),
    "sage, max": lambda: SAGELayer(WIDTH, 4, reduce="max"),
    "gcnii": lambda: GCN2Layer(WIDTH, dropout=0.4),
    "gin": lambda: GINLayer(WIDTH, 4, train_eps=True),
    "gat": lambda: GATLayer(WIDTH, 3, heads=2, attention_dropout=0.3),
    "resgcn": lambda: ResGCNLayer(WIDTH, dropout=0.4),
}


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def block(columns: int, seed: int) -> Adjacency:
    dense = draw(ROWS, columns, seed=seed) * (draw(ROWS, columns, seed=seed + 50) > 0.5)
    row, column = torch.nonzero(dense, as_tuple=True)
    pointers = torch.zeros(ROWS + 1, dtype=torch.int64)
    pointers[1:] = torch.cumsum(torch.bincount(row, minlength=ROWS), 0)
    return Adjacency.from_csr(pointers, column, dense[row, column], columns)


class Case:
    """A layer and what the three steps of it are made of."""

    def __init__(self, name: str, steps: int, noisy: bool, fixed: bool = False) -> None:
        torch.manual_seed(0)
        self.layer = LAYERS[name]().double()
        for parameter in self.layer.parameters():
            torch.nn.init.normal_(parameter, std=0.7)
        self.steps = steps
        self.blocks = [block(ROWS + HALO[t], t) for t in range(steps)]
        self.xs = (draw(ROWS, WIDTH) if fixed else draw(steps, ROWS, WIDTH)).requires_grad_()
        self.h0 = draw(steps, ROWS, WIDTH, seed=7)
        self.halos = [draw(HALO[t], self.layer.message_channels, seed=20 + t).requires_grad_() for t in range(steps)]
        noise = Noise(3, epoch=2, layer=1) if noisy else None
        self.contexts = [
            Context(None if noise is None else noise.at(step=t), {"h0": self.h0[t]}, self.columns(noise, t))
            for t in range(steps)
        ]

    def columns(self, noise: Noise | None, t: int) -> Noise | None:
        if noise is None:
            return None
        at = noise.at(step=t)
        return Noise(at.seed, at.epoch, at.layer, at.step, torch.arange(ROWS + HALO[t]))

    def frame(self, t: int) -> Tensor:
        return self.xs if self.xs.dim() == 2 else self.xs[t]

    def prepared(self, contexts: Sequence[Context] | None = None) -> Tensor:
        contexts = self.contexts if contexts is None else contexts
        return torch.stack([self.layer.prepare(self.frame(t), context) for t, context in enumerate(contexts)])

    def messages(self, prepared: Tensor) -> list[Message]:
        return [Message(torch.cat([prepared[t], self.halos[t]])) for t in range(self.steps)]

    def inputs(self) -> list[Tensor]:
        return [self.xs, *self.halos, *self.layer.parameters()]


def gradients(y: Tensor, inputs: Sequence[Tensor], seed: int = 30) -> list[Tensor | None]:
    return list(torch.autograd.grad(y, inputs, draw(*y.shape, seed=seed), allow_unused=True, retain_graph=True))


def assert_equal(left: Sequence[Tensor | None], right: Sequence[Tensor | None]) -> None:
    for one, other in zip(left, right, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("name", LAYERS)
def test_both_halves_equal_those_of_each_step(name: str, steps: int, noisy: bool, fixed: bool) -> None:
    case = Case(name, steps, noisy, fixed)
    layer, contexts = case.layer, case.contexts
    prepared = case.prepared()
    single = [
        layer.combine(message, case.frame(t), case.blocks[t], contexts[t])
        for t, message in enumerate(case.messages(prepared))
    ]
    wanted = torch.stack(single)
    out = layer.combine_steps(case.messages(prepared), case.xs, case.blocks, contexts)
    torch.testing.assert_close(out, wanted, rtol=1e-12, atol=1e-12)
    expected = gradients(wanted, case.inputs())
    assert_equal(gradients(out, case.inputs()), expected)
    with pytest.raises(AssertionError):
        assert_equal(gradients(out, case.inputs(), seed=31), expected)
    if steps > 1 and noisy and name in ("gcn, narrowing", "resgcn"):
        swapped = [contexts[1], contexts[0], *contexts[2:]]
        other = layer.combine_steps(case.messages(case.prepared(swapped)), case.xs, case.blocks, swapped)
        assert not torch.allclose(other, wanted)


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("name", LAYERS)
def test_whole_snapshots_equal_each_step(name: str, steps: int, noisy: bool) -> None:
    case = Case(name, steps, noisy)
    snapshots = [block(ROWS, t) for t in range(steps)]
    contexts = [replace(context, columns=None) for context in case.contexts]
    wanted = torch.stack([case.layer(case.frame(t), snapshots[t], contexts[t]) for t in range(steps)])
    out = case.layer.over_steps(case.xs, snapshots, contexts)
    torch.testing.assert_close(out, wanted, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(out, 1.001 * wanted)
    assert_equal(gradients(out, case.inputs()), gradients(wanted, case.inputs()))


def test_a_sink_takes_the_gradient_of_every_step() -> None:
    case = Case("gcn, narrowing", 3, noisy=False)
    prepared = case.prepared().detach()
    rows = [message.rows.requires_grad_() for message in case.messages(prepared)]
    sinks = [Collector((len(r), 4), torch.float64) for r in rows]
    out = case.layer.combine_steps([Message(r) for r in rows], case.xs, case.blocks, case.contexts)
    messages = [Message(r, sink=sink) for r, sink in zip(rows, sinks, strict=True)]
    taken = case.layer.combine_steps(messages, case.xs, case.blocks, case.contexts)
    wanted = gradients(out, rows)
    assert gradients(taken, rows) == [None, None, None]
    assert_equal([sink.rows() for sink in sinks], wanted)
    assert float(sinks[0].rows().abs().max()) > 0.1


def test_one_step_is_not_copied() -> None:
    case = Case("gcn, narrowing", 1, noisy=False)
    kept = []

    class Spy(GCNLayer):
        def combine(self, message: Message, x: Tensor, adjacency: Adjacency, context: Context) -> Tensor:
            kept.append(super().combine(message, x, adjacency, context))
            return kept[-1]

    layer = Spy(WIDTH, 4).double()
    prepared = case.prepared()
    out = layer.combine_steps(case.messages(prepared), case.xs, case.blocks, case.contexts)
    assert out.data_ptr() == kept[-1].data_ptr()
    out = layer.over_steps(case.xs, [block(ROWS, 0)], case.contexts)
    assert out.data_ptr() == kept[-1].data_ptr()
    assert out.shape == (1, ROWS, 4)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("channels", [4, 9])
def test_evolving_weights(steps: int, channels: int) -> None:
    torch.manual_seed(0)
    layer = Evolving(WIDTH, channels).double()
    xs, weights = draw(steps, ROWS, WIDTH).requires_grad_(), draw(steps, WIDTH, channels, seed=2).requires_grad_()
    blocks = [block(ROWS + HALO[t], t) for t in range(steps)]
    prepared = layer.prepare(xs, weights)
    messages = [Message(torch.cat([prepared[t], draw(HALO[t], prepared.shape[2], seed=20 + t)])) for t in range(steps)]
    contexts = [Context()] * steps
    wanted = torch.stack([layer.combine(messages[t], blocks[t], contexts[t], weights[t]) for t in range(steps)])
    out = layer.combine_steps(messages, xs, blocks, contexts, weights)
    torch.testing.assert_close(out, wanted, rtol=1e-12, atol=1e-12)
    assert_equal(gradients(out, [xs, weights]), gradients(wanted, [xs, weights]))
    with pytest.raises(AssertionError):
        assert_equal(gradients(out, [xs, weights], seed=31), gradients(wanted, [xs, weights]))
