"""Cases that train the same graph over every transport between ranks of one host."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import run_cases
import static_cases
import torch
from static_cases import RankOfGraph
from torch import Tensor

# name → transport, the room for shared memory (None: as much as there is), the seed
VARIANTS: dict[str, tuple[str, int | None, int]] = {
    "shared": ("auto", None, 9),
    "network": ("network", None, 9),
    "crowded": ("auto", 0, 9),
    "other": ("network", None, 10),
}


def _case_of(case: run_cases.Case, name: str) -> run_cases.Case:
    transport, _, seed = VARIANTS[name]
    return {**case, "seed": seed, "layout": {**case["layout"], "transport": transport}}


def prepare(case: run_cases.Case, folder: Path) -> None:
    """Do the launcher's part of every variant."""
    for name in VARIANTS:
        static_cases.prepare(_case_of(case, name), folder / name)


def _trained(case: run_cases.Case, folder: Path, name: str) -> dict[str, Any]:
    """Train two epochs, the second over chunks where the layout has any."""
    variant, room = _case_of(case, name), VARIANTS[name][1]
    run_cases._MESHES.clear()
    boxes = run_cases.mesh_of(run_cases.layout_of(variant)).mailboxes
    if room is not None and boxes is not None:
        boxes.room.limit = room
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rank = RankOfGraph(variant, folder / name)
        losses = [rank.epoch(epoch) for epoch in (1, 2)]
    return {
        "losses": losses,
        "gradients": {key: p.grad for key, p in rank.setup.modules.named_parameters() if p.grad is not None},
        "bytes": rank.program.ledger.by_axis(),
        "used": 0 if boxes is None else boxes.room.used,
        "boxes": boxes is not None,
        "said": [str(one.message) for one in caught if "shared memory" in str(one.message)],
    }


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    gradients: dict[str, Tensor] = one["gradients"]
    return (
        one["losses"] == other["losses"]
        and bool(gradients)
        and gradients.keys() == other["gradients"].keys()
        and all(torch.equal(g, other["gradients"][name]) for name, g in gradients.items())
    )


def transports(case: run_cases.Case, folder: Path) -> dict[str, Any]:
    """An epoch or two through shared memory, through the network, and with too little room for either alone."""
    shared, network, crowded, other = (_trained(case, folder, name) for name in VARIANTS)
    return {
        "same": _same(shared, network) and _same(crowded, network),
        "other": _same(other, network),
        "bytes": [one["bytes"] for one in (shared, network, crowded)],
        "used": [one["used"] for one in (shared, network, crowded)],
        "boxes": [one["boxes"] for one in (shared, network, crowded)],
        "said": [len(one["said"]) for one in (shared, network, crowded)],
    }
