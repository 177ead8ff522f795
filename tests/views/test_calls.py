"""Ranks whose forward asks different things all end with the same sentence, and soon."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ranks import on_ranks
from trisect.comm.calls import ENDED, LEFT, Calls, no_memory
from trisect.comm.ledger import Ledger
from trisect.comm.mesh import Mesh
from trisect.comm.transport import Transport
from trisect.errors import MismatchError
from trisect.graph.build import adjacency_from_edges
from trisect.partition.halo import part_graph_of
from trisect.partition.partition import Partition
from trisect.views.door import Door
from trisect.views.halo import Halo
from trisect.views.redistribute import RedistributeRows
from trisect.views.verbs import AGGREGATE, FETCH, RECUR, layer_name, number_of, words_of
from trisect.views.view import View

VERTICES = 24


class Branches(nn.Module):
    """Takes another branch on one rank."""

    def __init__(self, case: str, rank: int) -> None:
        super().__init__()
        self.case, self.other = case, rank == 1

    def forward(self, x: Tensor, g: Any) -> Tensor:
        g.enter(1)
        x = g.aggregate(x)
        if self.case == "another" and self.other:
            return x + g.sum(x)
        if self.case == "width" and self.other:
            return g.aggregate(x[:, :2].contiguous()).repeat(1, 2)
        if self.case == "more" and self.other:
            x = g.aggregate(x)
        return g.aggregate(x)


def rank(mesh: Mesh, case: str, exchange: str) -> tuple[str, float]:
    index = torch.arange(VERTICES)
    source, target = torch.cat([index, index]), torch.cat([(index + 1) % VERTICES, (index + 5) % VERTICES])
    both = torch.cat([source, target]), torch.cat([target, source])
    matrix = adjacency_from_edges(*both, torch.rand(len(both[0]), dtype=torch.float64), VERTICES, dtype=torch.float64)
    partition = Partition.equal(VERTICES, mesh.layout.vertex)
    net = Branches(case, mesh.rank)
    transport = Transport(mesh, Ledger())
    door = Door(transport, torch.float64, {1: net})
    spatial: Any = Halo([part_graph_of(matrix, partition, mesh.part_index)], door)
    if exchange == "redistribute":
        low_high = [partition.part(part) for part in range(mesh.layout.vertex)]
        spatial = RedistributeRows([matrix], [high - low for low, high in low_high], door)
    torch.distributed.barrier()
    start = time.monotonic()
    try:
        for turn in range(3):
            x = torch.rand(spatial.rows, 4, dtype=torch.float64, requires_grad=True)
            view = View(spatial, vertices=VERTICES)
            if turn == 2 and case == "ends" and mesh.rank == 1:
                break
            net.case = case if turn == 2 else ""
            with torch.set_grad_enabled(case != "evaluates"):
                net.case = "more" if net.case == "evaluates" else net.case
                out = view.tie(net(x, view))
            if case != "evaluates":
                out.sum().backward()
            transport.flush()
            transport.sum_everywhere(torch.ones(1, dtype=torch.float64))
        if case == "ends":
            transport.gather("the end")
    except MismatchError as error:
        return str(error), time.monotonic() - start
    return "", time.monotonic() - start


SENTENCES = {
    "another": "asked aggregate 2 of layer 1 (Branches()), rank 1 asked sum 2 of layer 1 (Branches());",
    "more": "asked aggregate 2 of layer 1 (Branches()) in backward, rank 1 asked aggregate 3 of layer 1 (Branches());",
    "width": "(Branches()) with 4 columns of 8 bytes in chunk or block 0, rank 1 asked aggregate 2 of layer 1 (Branches"
    "()) with 2 columns",
    "evaluates": "to the end of a pass or to a call of all ranks, rank 1 asked aggregate 3 of layer 1 (Branches())",
    "ends": "asked aggregate 1 of layer 1 (Branches()), rank 1 came to the end of a pass or to a call of all ranks",
}


def check(results: list[tuple[str, float]], wanted: str) -> None:
    assert len({sentence for sentence, _ in results}) == 1, results
    for sentence, seconds in results:
        assert wanted in sentence
        assert sentence.startswith("rank 0 " if len(results) == 2 else "ranks 0 and 2 ")
        assert sentence.endswith("forward must ask the same of the view on every rank, in the same order.")
        assert seconds < 12.0  # nobody waits for the timeout of 30 seconds


@pytest.mark.parametrize("exchange", ["halo", "redistribute"])
@pytest.mark.parametrize("case", SENTENCES)
def test_two_ranks_that_differ(case: str, exchange: str) -> None:
    check(on_ranks(__file__, "rank", "vertex=2", case, exchange), SENTENCES[case])


@pytest.mark.parametrize("case", ["another", "more", "evaluates"])
def test_a_rank_that_differs_from_two_others(case: str) -> None:
    check(on_ranks(__file__, "rank", "vertex=3", case, "halo"), SENTENCES[case])


@pytest.mark.parametrize("case", SENTENCES)
def test_through_the_network(case: str) -> None:
    check(on_ranks(__file__, "rank", "vertex=2,transport=network", case, "halo"), SENTENCES[case])


@pytest.mark.parametrize("layout", ["vertex=2", "vertex=2,transport=network", "vertex=3"])
def test_ranks_that_ask_the_same(layout: str) -> None:
    """The negative control: nothing is found where nothing differs."""
    assert [sentence for sentence, _ in on_ranks(__file__, "rank", layout, "", "halo")] == [""] * int(layout[7])


def pair() -> tuple[Calls, Calls]:
    memory = [no_memory(), no_memory()]
    axes: Any = {"vertex": [0, 1], "time": [0, 1]}
    return tuple(Calls(r, axes, memory[r], {1 - r: memory[1 - r]}) for r in range(2))  # type: ignore[return-value]


def test_a_rank_that_is_behind_does_not_differ() -> None:
    one, other = pair()
    for number in range(16, 1016):
        one.note("vertex", number)
        if number < 900:
            other.note("vertex", number)
    assert one.find() is other.find() is None
    other.note("vertex", 7)
    assert "exchange 7" in str(one.find())


def test_an_alarm_is_what_all_end_with() -> None:
    one, other = pair()
    with pytest.raises(MismatchError, match="because"):
        raise one.failed("because")
    with pytest.raises(MismatchError, match="because"):
        other.look()


def test_numbers_say_all() -> None:
    numbers = {
        number_of((layer, call, verb), cell, columns, size, back=back, crossing=crossing)
        for verb in (AGGREGATE, FETCH, RECUR)
        for layer in (0, 7)
        for call in (1, 2)
        for cell in (0, 3)
        for columns in (1, 300)
        for size in (4, 8)
        for back in (False, True)
        for crossing in (0, 1)
    }
    assert len(numbers) == 3 * 2**7
    assert not numbers & {0, ENDED, LEFT}
    assert max(numbers) < 1 << 60
    number = number_of((7, 2, RECUR), 3, 300, 8, back=True)
    assert words_of(number, {7: nn.Linear(2, 2)}) == (
        "asked recur 2 of layer 7 (Linear(in_features=2, out_features=2, bias=True)) in backward"
    )
    assert "300 columns of 8 bytes in chunk or block 3" in words_of(number, {}, fully=True)
    assert layer_name(nn.Sequential(nn.Linear(1, 1))) == "Sequential"
    assert re.search("end", words_of(ENDED, {}))
