"""Cases for what carries rows between ranks of one host."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch
import torch.distributed as dist
from static_cases import Setting, taken_gradients
from torch import Tensor

from trisect.layout import Layout
from trisect.noise import Noise
from trisect.runtime.exchange import Exchange, Rows, Shape
from trisect.runtime.faults import is_lost
from trisect.runtime.ledger import Ledger
from trisect.runtime.mailbox import Mailboxes
from trisect.runtime.mesh import connect


def _trained(case: dict[str, Any], transport: str, room: int | None = None, seed: int = 9) -> dict[str, Any]:
    setting = Setting({**case, "layout": {**case["layout"], "transport": transport}})
    boxes = setting.mesh.mailboxes
    if room is not None and boxes is not None:
        boxes.room.limit = room
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rank = setting.rank()
        losses = []
        for epoch in range(2):
            order = list(range(setting.layout.chunks)) if setting.layout.chunks > 1 and epoch else None
            losses.append(setting.epoch(rank, Noise(seed=seed, epoch=epoch), order))
    return {
        "losses": torch.stack(losses),
        "gradients": taken_gradients(setting.model),
        "bytes": setting.ledger.by_axis(),
        "used": 0 if boxes is None else boxes.room.used,
        "boxes": boxes is not None,
        "said": [str(one.message) for one in caught if "shared memory" in str(one.message)],
    }


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    gradients: dict[str, Tensor] = one["gradients"]
    return (
        bool(torch.equal(one["losses"], other["losses"]))
        and gradients.keys() == other["gradients"].keys()
        and all(torch.equal(g, other["gradients"][name]) for name, g in gradients.items())
    )


def transports(case: dict[str, Any]) -> dict[str, Any]:
    """An epoch or two through shared memory, through the network, and with too little room for either alone."""
    shared, network = _trained(case, "auto"), _trained(case, "network")
    crowded, other = _trained(case, "auto", room=0), _trained(case, "network", seed=10)
    return {
        "same": _same(shared, network) and _same(crowded, network),
        "other": _same(other, network),
        "bytes": [one["bytes"] for one in (shared, network, crowded)],
        "used": [one["used"] for one in (shared, network, crowded)],
        "boxes": [one["boxes"] for one in (shared, network, crowded)],
        "said": [len(one["said"]) for one in (shared, network, crowded)],
    }


def messages(case: dict[str, Any]) -> dict[str, Any]:
    """Messages of several sizes and forms between two ranks: in order, growing, shrinking, kept while others come."""
    mesh = connect(Layout(vertex=2), torch.device("cpu"), 60)
    boxes = mesh.mailboxes
    if boxes is None:
        raise RuntimeError("ranks of one host have no mailboxes")
    exchange, peer = Exchange(mesh, Ledger()), 1 - mesh.rank

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
    exchange, peer = Exchange(mesh, Ledger()), 1 - mesh.rank
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
