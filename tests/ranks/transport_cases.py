"""Cases for what carries rows between ranks of one host."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trisect.comm import staging
from trisect.comm.ledger import Ledger
from trisect.comm.local.mailbox import Mailboxes
from trisect.comm.mesh import connect
from trisect.comm.transport import Rows, Shape, Transport
from trisect.layout import Layout
from trisect.train.processes.faults import is_lost


def messages(case: dict[str, Any]) -> dict[str, Any]:
    """Messages of several sizes and forms between two ranks: in order, growing, shrinking, kept while others come."""
    mesh = connect(Layout(vertex=2), torch.device("cpu"), 60)
    boxes = mesh.mailboxes
    if boxes is None:
        raise RuntimeError("ranks of one host have no mailboxes")
    exchange, peer = Transport(mesh, Ledger()), 1 - mesh.rank

    def rows(number: int, count: int, of: int) -> Tensor:
        return torch.arange(count * 7).view(count, 7) % 1000 + number * 1000 + of * 500_000.0

    sizes = [1, 50_000, 3, 120_000, 120_000, 9]
    kept, right = [], True
    for number, count in enumerate(sizes):
        incoming = exchange.receive(count, 7, torch.float32, peer, number)
        exchange.send(rows(number, count, mesh.rank), peer, number, "layer", "activations")
        found = incoming.wait()
        right &= bool(torch.equal(found, rows(number, count, peer)))
        kept.append(found)
    # nothing has been written over while it was held
    right &= all(torch.equal(found, rows(n, found.shape[0], peer)) for n, found in enumerate(kept))
    busy = boxes.room.used
    del found
    kept.clear()
    exchange.wait_for_all()
    which = torch.tensor([5, 1, 8])
    for wire in ("float32", "bfloat16", "int8"):
        outgoing: list[Tensor | Rows] = [torch.zeros(0, 7), torch.zeros(0, 7)]
        outgoing[peer] = Rows(rows(2, 9, mesh.rank), which)
        places: list[Tensor | Shape] = [Shape(0, 7, torch.float32)] * 2
        places[peer] = Shape(3, 7, torch.float32)
        received = exchange.begin_swap(outgoing, places, "halo", 3, wire=wire).wait()[peer]  # type: ignore[arg-type]
        wanted = rows(2, 9, peer)[which]
        right &= bool(((received - wanted).abs() <= wanted.abs().max() / (1e9 if wire == "float32" else 100)).all())
        del received
    exchange.flush()
    return {"right": bool(right), "busy": busy, "used": boxes.room.used}


def lost(case: dict[str, Any]) -> dict[str, Any]:
    """A peer that leaves while its rows are waited for."""
    mesh = connect(Layout(vertex=2), torch.device("cpu"), 20)
    boxes: Mailboxes | None = mesh.mailboxes
    exchange, peer = Transport(mesh, Ledger()), 1 - mesh.rank
    incoming = exchange.receive(1000, 7, torch.float32, peer, 1)
    exchange.send(torch.zeros(1000, 7), peer, 1, "layer", "activations")
    incoming.wait()
    exchange.wait_for_all()
    if mesh.rank == 1:
        dist.destroy_process_group()
        return {"boxes": boxes is not None}
    try:
        exchange.receive(1000, 7, torch.float32, peer, 2).wait()
    except RuntimeError as error:
        return {"boxes": boxes is not None, "lost": is_lost(error), "left": _left()}
    return {"boxes": boxes is not None, "lost": False}


def _left() -> list[str]:
    return [name for name in os.listdir("/dev/shm") if "trisect" in name] if os.path.isdir("/dev/shm") else []


def orders(case: dict[str, Any]) -> dict[str, Any]:
    """Messages of many sizes and tags between all pairs of ranks, waited for in another order than they were sent."""
    world = case["world"]
    answers: dict[str, Any] = {"bytes": {}, "right": True, "other": False}
    for transport in ("auto", "network"):
        mesh = connect(Layout(vertex=world, transport=transport), torch.device("cpu"), 60)  # type: ignore[arg-type]
        exchange = Transport(mesh, Ledger())
        for turn in range(case["turns"]):
            expected = []
            for peer in range(world):
                for number, (tag, count) in enumerate(_plan(turn, peer, mesh.rank) if peer != mesh.rank else ()):
                    incoming = exchange.receive(count, 7, torch.float32, peer, tag)
                    expected.append((incoming, _message(turn, number, peer, mesh.rank, count)))
            for peer in range(world):
                for number, (tag, count) in enumerate(_plan(turn, mesh.rank, peer) if peer != mesh.rank else ()):
                    rows = _message(turn, number, mesh.rank, peer, count)
                    exchange.send(rows, peer, tag, "vertex", "halo", once=number % 5 == 0)
            Random(turn * 100 + mesh.rank).shuffle(expected)
            for incoming, rows in expected:
                received = incoming.wait()
                answers["right"] &= bool(torch.equal(received, rows))
                answers["other"] |= bool(torch.equal(received, rows + 1))
            exchange.flush()
            exchange.wait_for_all()
        answers["bytes"][transport] = exchange.ledger.bytes
    return answers


def _plan(turn: int, source: int, target: int) -> list[tuple[int, int]]:
    """Tags and rows of the messages between two ranks."""
    choose = Random(turn * 10_000 + source * 100 + target)
    sizes = [1, 3, 40, 1000, 2340, 2341, 6000]
    return [(choose.randrange(3), choose.choice(sizes)) for _ in range(choose.randrange(1, 30))]


def _message(turn: int, number: int, source: int, target: int, count: int) -> Tensor:
    return torch.arange(count * 7.0).view(count, 7) + (turn * 1000 + number * 100 + source * 10 + target)


def sums(case: dict[str, Any]) -> dict[str, Any]:
    """Sums over all ranks with both transports, beside the same sums in the order of ranks and in the reverse."""
    world = case["world"]
    answers: dict[str, Any] = {"right": True, "other": False, "bytes": [], "gathered": True}
    for transport in ("auto", "network"):
        mesh = connect(Layout(vertex=world, transport=transport), torch.device("cpu"), 60)  # type: ignore[arg-type]
        exchange = Transport(mesh, Ledger())
        for elements in (1, 5, 10_000, 70_000, 3, 1_200_000, 10_000):
            vectors = [torch.randn(elements, generator=torch.Generator().manual_seed(rank)) for rank in range(world)]
            total, reverse = vectors[0].clone(), vectors[-1].clone()
            for k in range(1, world):
                total += vectors[k]
                reverse += vectors[-1 - k]
            own = vectors[mesh.rank]
            answers["right"] &= bool(torch.equal(exchange.sum_everywhere(own), total))
            gradients = [own[: elements // 3].clone(), own[elements // 3 :].clone().view(-1, 1)]
            exchange.reduce_gradients(gradients)
            answers["right"] &= bool(torch.equal(torch.cat([g.view(-1) for g in gradients]), total))
            answers["other"] |= bool(elements > 1000 and torch.equal(reverse, total))
            answers["right"] &= bool(torch.equal(own, vectors[mesh.rank]))
        answers["right"] &= float(exchange.sum_everywhere(torch.tensor(1.5))) == 1.5 * world
        answers["bytes"].append(exchange.ledger.by_axis()["weights"])
        for size in (1, 100_000):
            values = exchange.gather({"rank": mesh.rank, "rows": (torch.full((size,), mesh.rank), None)})
            answers["gathered"] &= [value["rank"] for value in values] == list(range(world))
            answers["gathered"] &= all(bool((v["rows"][0] == k).all()) for k, v in enumerate(values))
    return answers


def staged(case: dict[str, Any]) -> dict[str, Any]:
    """A device whose rows are the negatives of what they are in host memory: who leaves out a copy is found out."""
    mesh = connect(Layout(vertex=2, transport=case["transport"]), torch.device("cpu"), 60)
    mesh, peer = replace(mesh, staged=True), 1 - mesh.rank
    before = staging.to_host, staging.to_device

    def swapped() -> bool:
        exchange = Transport(mesh, Ledger())
        own, other = torch.full((50, 7), 1.0 + mesh.rank), torch.full((50, 7), 1.0 + peer)
        right = True
        for wire in ("float32", "bfloat16", "int8"):
            for place in (torch.empty(50, 7), Shape(50, 7, torch.float32)):
                outgoing: list[Tensor | Rows] = [own[:0], own[:0]]
                outgoing[peer] = Rows(own, torch.arange(50)) if wire == "float32" else own
                places: list[Tensor | Shape] = [Shape(0, 7, torch.float32)] * 2
                places[peer] = place
                received = exchange.begin_swap(outgoing, places, "halo", 1, wire=wire).wait()[peer]  # type: ignore[arg-type]
                right &= bool((received - other).abs().max() < 0.01)
        incoming = exchange.receive(50, 7, torch.float32, peer, 3)
        exchange.send(own, peer, 3, "vertex", "halo")
        right &= bool(torch.equal(incoming.wait(), other))
        exchange.flush()
        return right and exchange.gather(mesh.rank) == [0, 1]

    try:
        staging.to_host = lambda rows: before[0](-rows)
        staging.to_device = lambda rows, device: before[1](-rows, device)
        right = swapped()
        staging.to_device = before[1]
        return {"right": right, "without": swapped()}
    finally:
        staging.to_host, staging.to_device = before


def silent(case: dict[str, Any]) -> dict[str, Any]:
    """A peer that stops for longer than the timeout, while its part of an exchange, a sum or a value is waited for."""
    mesh = connect(Layout(vertex=2), torch.device("cpu"), 1.0)
    exchange = Transport(mesh, Ledger())
    processes = exchange.gather(os.getpid())
    waits = {
        "rows": lambda: exchange.receive(10, 7, torch.float32, 1, 1).wait(),
        "sum": lambda: exchange.sum_everywhere(torch.ones(3)),
        "value": lambda: exchange.gather(1),
        "all": exchange.wait_for_all,
    }
    if mesh.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        return {}
    begin = time.monotonic()
    try:
        waits[case["wait"]]()
    except RuntimeError as error:
        return {"lost": is_lost(error), "seconds": time.monotonic() - begin}
    finally:
        os.kill(processes[1], signal.SIGCONT)
    return {"lost": False}
