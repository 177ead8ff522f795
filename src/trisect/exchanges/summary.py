"""Summary: all parts give their candidates for what a weight reads of a snapshot (EvolveGCN-H)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from trisect.comm.incoming import Swap
from trisect.comm.rows import Shape
from trisect.exchanges.base import Exchange, crossings, made
from trisect.exchanges.facts import Facts
from trisect.exchanges.port import Port
from trisect.nn.halves import HalfKind
from trisect.schedule.action import Action


class Summary(Exchange[tuple[Swap, Tensor]]):
    """Every part evolves the same weights and has its own share of their gradient; candidates' gradients go back to
    their owners. Exact on the wire, since all parts must evolve the same weights.
    """

    name: ClassVar[str] = "summary"
    axis: ClassVar[str] = "vertex"
    letter: ClassVar[str] = "m"
    moves = "candidates"

    def stands_before(self, facts: Facts, half: int) -> bool:
        """It comes before a weight evolves that reads a summary of all vertices."""
        layer = facts.layer_at(half, HalfKind.TEMPORAL)
        return layer is not None and layer.summarises and facts.parts > 1

    def returns(self, facts: Facts, half: int) -> bool:
        """Gradients cross where the rows are trained."""
        return facts.reads_trained(facts.layer_of(half))

    def volume(self, facts: Facts, posts: Sequence[tuple[int, Action]], fetched: Sequence[int]) -> dict[str, int]:
        """Each part's candidates to all others, of each step."""
        total = 0
        for (half, block, _), count in crossings(posts).items():
            layer = facts.halves[half].layer
            # features that are the same in all steps are looked at once by every run
            once = layer == 0 and facts.fixed
            steps = sum(1 for run in facts.runs[block] if run) if once else len(facts.steps(block))
            rows = sum(_candidates(facts, layer)) * (facts.parts - 1) * steps
            total += count * rows * facts.layers[layer].in_channels * facts.dtype.itemsize
        return {"summary": total}

    def post(self, action: Action, port: Port) -> tuple[Swap, Tensor]:
        """Give own candidates to all parts, or each part the gradients of its candidates."""
        (rows,) = port.crossed(action)
        facts, part, steps = port.facts, port.mesh.part_index, len(port.steps_of(action))
        layer = facts.halves[action.half].layer
        counts, width = _candidates(facts, layer), facts.layers[layer].in_channels
        if action.back:
            if rows is None:
                rows = torch.zeros(steps * sum(counts), width, dtype=port.dtype, device=port.device)
            tensors = [tensor.flatten(0, 1) for tensor in torch.split(rows.view(steps, sum(counts), width), counts, 1)]
            shapes = [Shape(0 if k == part else steps * counts[part], width, port.dtype) for k in range(facts.parts)]
        else:
            tensors = [made(rows, action)] * facts.parts
            shapes = [Shape(0 if k == part else steps * count, width, port.dtype) for k, count in enumerate(counts)]
        outgoing = [tensor[:0] if k == part else tensor for k, tensor in enumerate(tensors)]
        swap = port.transport.begin_swap(outgoing, shapes, "summary", 0, wire="float32")
        return swap, tensors[part]

    def wait(self, action: Action, port: Port, posted: tuple[Swap, Tensor]) -> None:
        """Hand all candidates on in the order of parts, so that all parts break ties alike; or add up gradients."""
        swap, own = posted
        received = list(swap.wait())
        received[port.mesh.part_index] = own
        if action.back:
            port.deliver(action, [torch.stack([tensor.reshape(own.shape) for tensor in received]).sum(0)])
            return
        steps, width = len(port.steps_of(action)), own.shape[1]
        port.deliver(action, [torch.cat([tensor.reshape(steps, -1, width) for tensor in received], 1).flatten(0, 1)])


def _candidates(facts: Facts, layer: int) -> list[int]:
    return [min(rows, facts.layers[layer].out_channels) for rows in facts.rows]
