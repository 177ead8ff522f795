"""`fetch` against one process: rows of others behind the own ones, their gradients back, for a loss on pairs."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from ranks import on_ranks
from trisect.comm.ledger import Ledger
from trisect.comm.mesh import Mesh
from trisect.comm.transport import Transport
from trisect.comm.wire import encoded_bytes
from trisect.graph.build import adjacency_from_edges
from trisect.tasks.division import Division
from trisect.views.door import Door
from trisect.views.local import Local
from trisect.views.redistribute import RedistributeRows
from trisect.views.view import View

CHANNELS = 5


def problem(case: dict[str, Any]) -> tuple[Tensor, list[tuple[Tensor, Tensor]], Tensor]:
    """Return x, the pairs (source, destination) of each step, and a weight."""
    draw, rows = torch.Generator().manual_seed(3), case["rows"]
    x = torch.randn(case["steps"], sum(rows), CHANNELS, generator=draw, dtype=torch.float64)
    pairs = []
    for step in range(case["steps"]):
        src, dst = torch.randint(0, sum(rows), (2, 0 if step == case.get("silent") else 30), generator=draw)
        if case.get("one_way"):
            # the first part reads from all, and nobody from it
            src, dst = src % rows[0], rows[0] + dst % (sum(rows) - rows[0])
        pairs.append((src, dst))
    return x, pairs, torch.randn(CHANNELS, CHANNELS, generator=draw, dtype=torch.float64)


def lists_of(case: dict[str, Any], pairs: list[tuple[Tensor, Tensor]]) -> tuple[list[list[Tensor]], Any]:
    """Return of each step the rows that each part wants, and the same by owner."""
    bounds = [0, *accumulate(case["rows"])]
    wanted = [Division(tuple(bounds), 0).remote(src, dst) for src, dst in pairs]
    lists = []
    for step in wanted:
        by_owner = [[rows[(rows >= low) & (rows < high)] - low for low, high in pairwise(bounds)] for rows in step]
        lists.append(by_owner)
    return wanted, lists


def result_of(x: Tensor, weight: Tensor, losses: list[Tensor]) -> dict[str, Tensor]:
    assert x.grad is not None
    assert weight.grad is not None
    return {"loss": torch.stack(losses).sum()[None].detach(), "x": x.grad, "weight": weight.grad}


def one_process(case: dict[str, Any]) -> dict[str, Tensor]:
    x, pairs, weight = problem(case)
    x.requires_grad_()
    weight.requires_grad_()
    none = adjacency_from_edges(torch.empty(0).long(), torch.empty(0).long(), None, x.shape[1])
    view = View(Local([none] * case["steps"], x.shape[1]), steps=range(case["steps"]))
    frames = view.fetch(x[0] @ weight if case["steps"] == 1 else x @ weight, [])
    losses = [torch.tanh(frame[src] * frame[dst]).sum() for frame, (src, dst) in zip(frames, pairs, strict=True)]
    torch.stack(losses).sum().backward()
    return result_of(x, weight, losses)


def rank(mesh: Mesh, case: dict[str, Any]) -> dict[str, Any]:
    rows, part, ledger, steps = case["rows"], mesh.part_index, Ledger(), case["steps"]
    x, pairs, weight = problem(case)
    wanted, lists = lists_of(case, pairs)
    bounds = [0, *accumulate(rows)]
    division = Division(tuple(bounds), part)
    none = adjacency_from_edges(torch.empty(0).long(), torch.empty(0).long(), None, sum(rows))
    door = Door(Transport(mesh, ledger, case.get("wire", "float32")))
    view = View(RedistributeRows([none] * steps, rows, door), steps=range(steps), vertices=sum(rows))
    own = x[:, bounds[part] : bounds[part + 1]].clone().requires_grad_()
    if case.get("spoilt") and part == 1:
        weight = weight + 1e-6
    weight.requires_grad_()
    frames = view.fetch(own[0] @ weight if steps == 1 else own @ weight, lists)
    losses = []
    for frame, (src, dst), remote in zip(frames, pairs, wanted, strict=True):
        assert frame.shape[0] == rows[part] + remote[part].numel()
        mine = division.mine(src)
        near, far = division.local(src[mine], dst[mine], remote[part])
        losses.append(torch.tanh(frame[near] * frame[far]).sum())
    view.tie(torch.stack(losses).sum()).backward()
    result = result_of(own, weight, losses)
    for name in ("loss", "weight"):
        torch.distributed.all_reduce(result[name])
    return {**result, "sent": {entry.kind: entry.bytes for entry in ledger.entries()}}


def differences(case: dict[str, Any]) -> dict[str, float]:
    want = one_process(case)
    ranks = on_ranks(__file__, "rank", f"vertex={len(case['rows'])}", case)
    got = {"loss": ranks[0]["loss"], "weight": ranks[0]["weight"], "x": torch.cat([one["x"] for one in ranks], 1)}
    wanted, _ = lists_of(case, problem(case)[1])
    fetched = sum(rows.numel() for step in wanted for rows in step)
    assert fetched > 0
    formula = 2 * encoded_bytes(fetched, CHANNELS, case.get("wire", "float32"), torch.float64)  # forward and backward
    assert sum(one["sent"]["fetch"] for one in ranks) == formula
    assert all(set(one["sent"]) == {"fetch"} for one in ranks)
    return {
        name: ((got[name] - value).abs().max() / value.abs().max().clamp_min(1e-6)).item()
        for name, value in want.items()
    }


CASES = {
    "two": {"rows": [11, 19], "steps": 1},
    "three": {"rows": [17, 3, 12], "steps": 1},
    "timeline-two": {"rows": [11, 19], "steps": 3},
    "timeline-three": {"rows": [17, 3, 12], "steps": 3, "silent": 1},  # a step without pairs
    "one-way": {"rows": [17, 3, 12], "steps": 3, "one_way": True},
    "an-empty-part": {"rows": [17, 0, 12], "steps": 3},
}


@pytest.mark.parametrize("name", CASES)
def test_fetched_rows_are_exact(name: str) -> None:
    """The loss, every gradient and the bytes that leave equal those of one process and of the formula."""
    assert max(differences(CASES[name]).values()) < 1e-10


def test_a_spoilt_part_is_seen() -> None:
    """The comparison fails where one part reads something else."""
    assert max(differences({**CASES["two"], "spoilt": True}).values()) > 1e-10


@pytest.mark.parametrize("wire", ["bfloat16", "int8"])
def test_shorter_wires(wire: str) -> None:
    """Rows cross in the run's form, at the formula's bytes."""
    found = differences({**CASES["timeline-three"], "wire": wire})
    assert 1e-10 < max(found.values()) < 5e-2
